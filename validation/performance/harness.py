"""The digest of what measures: a figure is about its sources, and about how it was taken."""

from collections.abc import Mapping
from pathlib import PurePosixPath

from ..digests import package_files
from ..records import digest_files

_ROOMS = ("performance", "timing")
_SHARDS = ("grid.py", "graph.py", "compared_shard.py", "rank_shard.py", "rows_examined.py", "step_shard.py")


def digest(model: str, files: Mapping[str, bytes] | None = None) -> str:
    """SHA-256 (hex) over the grid's code, the timing, what a shard of `model` is, and its stock path: as installed, or of
    `files`, the tree of a commit (path relative to `validation/` -> contents)."""
    files = package_files() if files is None else files
    return digest_files({name: data for name, data in files.items() if _measures(PurePosixPath(name), model)})


def _measures(path: PurePosixPath, model: str) -> bool:
    contract = PurePosixPath("contracts") / model
    if path.is_relative_to(contract / "stock"):
        return path.suffix in (".py", ".cu")
    if path.parent == contract:
        return path.name in _SHARDS
    return str(path) == "contracts/grid.py" or (path.parts[0] in _ROOMS and path.suffix == ".py")
