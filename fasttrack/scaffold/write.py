"""Puts the files of a new model into a checkout: all of them or none, and never over anything that is there."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fasttrack_validation.errors import UserError

from . import names


def targets(name: str) -> tuple[str, ...]:
    """What the scaffold makes, relative to the checkout: two files, two directories, moved into place in this order."""
    return (
        f"tests/validation/contracts/test_{name}.py",
        f"tests/models/test_{name}_kernels.py",
        f"validation/contracts/{name}",
        f"models/{name}",
    )


def check(checkout: Path, name: str) -> None:
    """Raises UserError where `checkout` is not one of fasttrack's, or `name` cannot be used in it."""
    names.check(name)
    for room in ("validation/contracts", "models"):
        if not (checkout / room / "__init__.py").is_file():
            raise UserError(
                f"{checkout} has no {room}/: an exam cannot be added there",
                "run this in a clone of the fasttrack repository; a serving tree gets the model directory alone",
            )
        names.check_free(name, room, (entry.name for entry in (checkout / room).iterdir()))
    for target in targets(name):
        directory = (checkout / target).parent
        taken = (entry.name for entry in directory.iterdir()) if directory.is_dir() else ()
        names.check_free(Path(target).stem, target.rpartition("/")[0], taken)


def write(checkout: Path, name: str, files: Mapping[str, str]) -> None:
    """Writes `files` (paths relative to `checkout`, all of them below `targets`). `check` was called before.

    They are written beside the checkout's own files first and moved into place when all are there; whatever stops that
    leaves the checkout as it was, save for a kill between two moves, after which the next call names what lies there.
    """
    moved: list[Path] = []
    with _writing(checkout):
        stage = Path(tempfile.mkdtemp(prefix=f".new-{name}-", dir=checkout))
        try:
            for path, text in files.items():
                (stage / path).parent.mkdir(parents=True, exist_ok=True)
                (stage / path).write_bytes(text.encode())
            for target in targets(name):
                final = checkout / target
                final.parent.mkdir(parents=True, exist_ok=True)
                if os.path.lexists(final):
                    raise UserError(f"{final} exists already", "choose another name")
                os.rename(stage / target, final)
                moved.append(final)
        except BaseException:
            for final in moved:
                shutil.rmtree(final) if final.is_dir() else final.unlink()
            raise
        finally:
            shutil.rmtree(stage, ignore_errors=True)


@contextmanager
def _writing(checkout: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = f"cannot write {error.filename or checkout}: {error.strerror or error}"
        raise UserError(what, "free space or mend the path, and run it again: nothing was left behind") from error
