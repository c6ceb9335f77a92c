"""What the ladder needs of this model: the kept checkpoint, its paths by name, streams, a draft head, what is long."""

from functools import lru_cache
from pathlib import Path

from ....errors import UserError
from ....records import digest_files
from ..nano import tokenizer
from . import faults, streams
from .paths import Paths, TorchPath

CHECKPOINT = Path(__file__).parents[1] / "nano" / "checkpoint"


def checkpoint(directory: Path | None) -> Path:
    """`directory`, or the kept checkpoint. UserError where there is none."""
    found = directory or CHECKPOINT
    if not (found / "config.json").is_file():
        raise UserError(f"{found} holds no checkpoint", "name the `checkpoint` directory of a training run of the nano model")
    return found


def digest(directory: Path) -> str:
    """SHA-256 (hex) over the files of a checkpoint."""
    return digest_files({path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.is_file()})


@lru_cache(None)
def draft_head() -> streams.DraftHead:
    """Counted once."""
    return streams.DraftHead()


def plain_candidate(paths: Paths, name: str, tp: int) -> TorchPath:
    """A PyTorch path as the candidate: "twin", the honest one with the roundings of fused kernels, or a fault.

    UserError for another name.
    """
    if name == "twin":
        return TorchPath(paths.variant(tp, faults.Observed, faults.FUSED))
    if name not in faults.FAULTS:
        raise UserError(f"there is no PyTorch path {name!r}", f"known: twin, {', '.join(faults.FAULTS)}")
    fault = faults.FAULTS[name]
    return fault.path(paths.variant(tp, fault.model))


VOCABULARY = len(tokenizer.SYMBOLS)
