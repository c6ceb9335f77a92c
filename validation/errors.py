"""Errors that a person can act on: one line of what is wrong, one line of how to go on."""


class UserError(Exception):
    """Wrong usage, configuration or environment. Commands print both lines and exit with 2.

    `what` says what is wrong (with file, key and line where there is one); `how` says what to do.
    """

    def __init__(self, what: str, how: str) -> None:
        super().__init__(f"{what}\n{how}")
        self.what = what
        self.how = how

    def __reduce__(self):
        return (type(self), (self.what, self.how))


class SandboxUnavailable(UserError):
    """This system cannot confine candidate code; `what` names the missing facility."""
