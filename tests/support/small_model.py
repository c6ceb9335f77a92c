"""A model directory that claims one op at up to four rows of one card: little to judge, by the same rules."""

import shutil
from importlib.resources import files
from pathlib import Path

from fasttrack import dispatch, faster


def write(root: Path, op: str) -> None:
    """Puts `models/kimi_k3` below `root`, reduced to `op` on one H200 of TP 8."""
    model = root / "models/kimi_k3"
    shutil.copytree(Path(str(files("fasttrack_models.kimi_k3"))), model, ignore=shutil.ignore_patterns("__pycache__"))
    manifest = (model / "fasttrack.toml").read_text("utf-8")
    head, claim = manifest[: manifest.index("[ops.")], manifest[manifest.index("[[envelope]]") :]
    kept = manifest[manifest.index(f"[ops.{op}]") :].partition("\n\n")[0]
    claim = claim.partition("\n\n")[0].replace("rows = [1, 64]", "rows = [1, 4]")
    assert 'hardware = "h200"\ntp = 8' in claim
    (model / "fasttrack.toml").write_text(f"{head}{kept}\n\n{claim}\n")
    path = model / f"dispatch/{op}.toml"
    table = dispatch.parse(path.read_text("utf-8"), path)
    entries = [entry for entry in table.entry if (entry.hardware, entry.tp) == ("h200", 8) and entry.rows[1] <= 4]
    path.write_text(dispatch.render(dispatch.Table(entry=tuple(entries))))
    # Of what it claims now, nothing is said to be faster.
    (model / "dispatch/faster.toml").write_text(faster.render(faster.Table()))
