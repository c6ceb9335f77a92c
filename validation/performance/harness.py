"""The digest of what measures: a figure is about its sources, and about how it was taken."""

from pathlib import Path

from ..records import digest_files

_ROOT = Path(__file__).parent.parent


def digest(model: str) -> str:
    """SHA-256 (hex) over the grid's code, the timing, what a shard of `model` is, and its stock path."""
    contract = _ROOT / "contracts" / model
    files = [*(_ROOT / "performance").rglob("*.py"), *(_ROOT / "timing").rglob("*.py"), _ROOT / "contracts" / "grid.py"]
    shards = ("compared_shard.py", "rank_shard.py", "rows_examined.py", "step_shard.py")
    files += [contract / name for name in ("grid.py", "graph.py", *shards)]
    files += [path for kind in ("*.py", "*.cu") for path in (contract / "stock").rglob(kind)]
    return digest_files({path.relative_to(_ROOT).as_posix(): path.read_bytes() for path in files})
