"""The directory of a validation run: one run's at a time, and emptied of nothing that no run wrote."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from fasttrack_validation.errors import UserError
from fasttrack_validation.numerics.whole_model.stage import alone


def own(out: Path, written: Sequence[str], *, begun: str, fresh: bool) -> None:
    """Sees to it that `out` is a run's own, which writes files like `written`, `begun` the first of them; `fresh` empties it. UserError
    where it holds anything else and is to be emptied, or was never begun; and where another process runs there."""
    if not out.exists():
        return
    foreign = sorted(path.name for path in out.iterdir() if not any(path.match(pattern) for pattern in written))
    if foreign and (fresh or not (out / begun).exists()):
        raise UserError(f"{out} holds something else than records ({foreign[0]})", "name a directory of its own with --out")
    if fresh:
        with alone(out):
            for path in out.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
