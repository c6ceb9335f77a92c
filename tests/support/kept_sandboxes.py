"""One sandbox of a kind for all judges of a test process: a start takes two seconds, and jobs leave nothing in it."""

from contextlib import ExitStack

from fasttrack_validation.sandbox import Sandbox


class Kept:
    """Gives out sandboxes as `Sandbox(...)` does; one that is closed goes on running for whoever asks for its like."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack, self._made = stack, {}

    def __call__(self, profile, *, preload=(), environ=None, concurrency=2, unsafe=False):
        """As Sandbox."""
        key = profile, preload, tuple(sorted((environ or {}).items())), concurrency, unsafe
        if key not in self._made:
            made = Sandbox(profile, preload=preload, environ=environ, concurrency=concurrency, unsafe=unsafe)
            self._made[key] = self._stack.enter_context(made)
        return _Lent(self._made[key])


class _Lent:
    def __init__(self, sandbox: Sandbox) -> None:
        self.run, self.description = sandbox.run, sandbox.description

    def close(self) -> None:
        """Whoever made it closes it."""
