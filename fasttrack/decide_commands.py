"""What `fasttrack decide` does: write the decision and its signature beside the report that was read."""

import datetime
import json
from pathlib import Path

from fasttrack_validation.errors import UserError

from . import decision, model_dir, signatures
from .storage import write_inside


def decide(model: str, ruling: str, note: str, key: Path, *, as_json: bool) -> None:
    """Decides on the report of the checkout."""
    if ruling not in [*decision.Ruling]:
        raise UserError(f"{ruling!r} is no decision", "approve or reject")
    directory = model_dir.load(model, need_checkout=True)
    report = directory.path / decision.REPORT
    pages = {path.relative_to(directory.path).as_posix(): path.read_bytes()
             for path in sorted(report.rglob("*")) if path.is_file() and not path.is_symlink()}  # fmt: skip
    data = decision.decide(model, decision.Ruling(ruling), note, pages, datetime.date.today())
    mark = signatures.sign(data, key, decision.NAMESPACE)
    written = directory.path / decision.RECORD, Path(f"{directory.path / decision.RECORD}{signatures.SUFFIX}")
    for path, content in zip(written, (data, mark), strict=True):
        write_inside(directory.path, path.relative_to(directory.path).as_posix(), content).chmod(0o644)
    if as_json:
        print(json.dumps({"files": [str(path) for path in written], "decision": json.loads(data)}))
    else:
        print(f"{ruling}: {model}, report {decision.report_digest(pages)[:12]}")
        print(f"commit {written[0]} and {written[1].name}")
