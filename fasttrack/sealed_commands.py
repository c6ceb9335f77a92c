"""`fasttrack evidence seal` and `import`: what a kit's owner sends, and what becomes of it."""

import json
from pathlib import Path
from typing import NoReturn

import typer

from . import model_dir
from .kit import filing, sealing


def seal(folder: Path, out: Path, key: Path | None, *, as_json: bool) -> None:
    """Seals a kit."""
    made = sealing.seal(folder, out, key)
    size = out.stat().st_size
    if as_json:
        print(json.dumps({"file": str(out), "bytes": size, "files": len(made.files), "signed": key is not None}))
        return
    print(f"sealed: {out}, {len(made.files)} files, {size / 1e6:.1f} MB, {'signed' if key else 'signed by nobody'}")


def import_(file: Path, sender: Path | None, *, check: bool, replace: bool, as_json: bool) -> NoReturn:
    """Checks a sealed file, and files what is in it."""
    sealed = sealing.open_sealed(file)
    found = filing.check(sealed, sender)
    writes = not (check or found.faults or found.rehearsal or not found.measured)
    paths = filing.file(sealed, found, replace=replace) if writes else []
    code = 1 if found.faults else 4 if not (found.measured or found.rehearsal) else 0
    if as_json:
        print(json.dumps({**found.model_dump(mode="json"), "filed": [str(path) for path in paths], "exit_code": code}))
        raise typer.Exit(code)
    what = "a rehearsal" if found.rehearsal else f"{found.model} on {found.hardware}"
    print(f"{what}: {len(found.measured)} cells measured, {len(found.failed)} failed; signer: {found.signer or 'nobody'}")
    for note in found.notes:
        print(f"  {note}")
    for fault in found.faults:
        print(f"FAIL {fault}")
    if found.faults:
        print("nothing was filed")
    elif found.rehearsal:
        print("in order; a rehearsal is evidence of nothing, and is not filed")
    elif paths:
        print(f"filed: {len(paths)} files under {model_dir.load(found.model).path / 'evidence'}")
        print("commit them on a branch of their own; `fasttrack grid show` and `claims check` read them")
    raise typer.Exit(code)
