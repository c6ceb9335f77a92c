"""Refusals in OpenAI's form: a status, and a JSON body that says which parameter is wrong and how."""

from pydantic import ValidationError


class ApiError(Exception):
    """An answer that is an error."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message, self.status, self.param, self.code = message, status, param, code

    @property
    def body(self) -> dict:
        """As OpenAI's clients read it."""
        kinds = {404: "not_found_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def misfit(error: ValidationError) -> ApiError:
    """The first parameter that does not fit."""
    first = error.errors()[0]
    # Which member of a union failed says nothing to the caller.
    named = next((str(part) for part in first["loc"] if isinstance(part, str)), None)
    what = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        what = "this server knows no such parameter"
    if first["type"] == "missing":
        what = "it is missing"
    return ApiError(f"{named}: {what}" if named else what, param=named)
