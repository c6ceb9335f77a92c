"""A path's own process: it holds the weights and the states, and answers one command at a time.

A model directory's host code runs here and nowhere else; whether kernels are interpreted is decided when this process
starts.
"""

import traceback
from multiprocessing.connection import Connection

from ..errors import UserError
from .paths import Backend, Path, Setup


def main(descriptor: int, setup: str) -> None:
    """Answers on a connection until it closes, each time one of ("ok", value, launches), ("wrong", what, how) and
    ("error", text)."""
    pipe = Connection(descriptor)
    path: Path | None = None
    while True:
        try:
            command, arguments = pipe.recv()
        except EOFError:
            return
        try:
            if command == "load":
                path = build(Setup.model_validate_json(setup))
                value = path.card.model_dump(mode="json")
            else:
                value = getattr(path, command)(*arguments)
                value = None if value is None else (str(value.dtype), tuple(value.shape), value.numpy().tobytes())
            pipe.send(("ok", value, dict(path.launches)))
        except UserError as error:
            pipe.send(("wrong", error.what, error.how))
        except Exception as error:  # the caller decides what it means, so it gets the whole story
            pipe.send(("error", f"{error}\n{traceback.format_exc()}"))


def build(setup: Setup) -> Path:
    """The path, loaded. Raises UserError for a checkpoint, device or package that is not in order."""
    from .small import small_model

    if setup.backend is Backend.LATENCY_SPECIALIZED:
        from .specialised import Specialised

        return Specialised(setup)
    return small_model(setup.model).path(setup)
