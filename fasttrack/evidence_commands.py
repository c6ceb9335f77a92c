"""What the commands under `evidence` do: sign files where they lie, and read grades from git objects."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import typer

from fasttrack_validation.errors import UserError

from . import attestation, evidence, ladder_evidence, signatures
from .confinement.check import model_directory
from .git import Repository, display
from .storage import write_file


def sign(paths: Sequence[Path], key: Path, kind: str | None, *, as_json: bool) -> None:
    """Signs every file, or none: all are read and refused before the first signature is written."""
    if kind not in (None, *attestation.Kind):
        raise UserError(f"no kind {kind!r}", f"known: {', '.join(attestation.Kind)}")
    contents = {}
    for path in paths:
        try:
            contents[path] = path.read_bytes()
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}", "name statements, records of the grid or verdicts of the ladder") from error
        if len(contents[path]) > evidence.MAX_BYTES:
            raise UserError(f"{path}: more than {evidence.MAX_BYTES} bytes", "keep samples in files of their own")
        attestation.check_signable(contents[path], str(path), kind)
        _beside(path, contents[path])
    marks = {Path(f"{path}{signatures.SUFFIX}"): signatures.sign(data, key) for path, data in contents.items()}
    for path, data in marks.items():
        write_file(path, data)
        path.chmod(0o644)
    if as_json:
        print(json.dumps({"signatures": [str(path) for path in marks]}))
    else:
        print("\n".join(f"signed: {path}" for path in marks))
        print("commit the signatures; they count where the base's .github/allowed_signers names the key")


def _beside(path: Path, data: bytes) -> None:
    """UserError where a verdict of the ladder does not follow from the records in the directory of its name."""
    verdict, folder = ladder_evidence.read(data), path.with_suffix("")
    if verdict is None:
        return
    try:
        beside = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()} if folder.is_dir() else {}
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror}", "see to it that its records can be read") from error
    if why := ladder_evidence.wrong(verdict, beside):
        raise UserError(f"{path}: {why}", f"put run.json and all records that it follows from into {folder}, and nothing else")


def verify(repo: Path, base: str, head: str, model: str, *, as_json: bool) -> NoReturn:
    """Prints the grade of each file of evidence at `head`."""
    from .gate_evidence import read_statements

    directory = model_directory(model)
    repository = Repository.open(repo)
    base, head = repository.resolve(base), repository.resolve(head)
    with repository.quarantine() as objects:
        files, before = objects.files(head, directory), objects.files(base, directory)
        allowed = attestation.allowed_signers(objects, base)
        workflows = attestation.trusted_workflows(objects, base, files)
    found, reasons = read_statements(files, directory)
    if any(name.endswith(signatures.SUFFIX) for name in files) and allowed is not None:
        signatures.require()
    attested = attestation.attest(files, before, found, allowed, workflows)
    faults = [*reasons, *attestation.stage(attested, files, directory, before).reasons]
    open_ = any(one.grade is attestation.Grade.SELF_REPORTED for one in attested)
    code = 1 if faults else 4 if not attested else 3 if open_ else 0
    if as_json:
        told = {"files": [one.model_dump(mode="json") for one in attested], "exit_code": code,
                "reasons": [reason.model_dump(mode="json") for reason in faults]}  # fmt: skip
        print(json.dumps(told, indent=2))
    else:
        for one in attested:
            print(f"{one.grade:13} {directory}/{display(one.path)}: {one.message}{f' [{one.fault}]' if one.fault else ''}")
        for reason in faults:
            if not any(reason.id == one.fault for one in attested):
                print(f"FAIL          {reason.message} [{reason.id}]\n              {reason.remedy}")
        if not attested:
            print(f"{directory} has no statement, no record of the grid and no verdict of the ladder: `fasttrack propose` writes evidence")
    raise typer.Exit(code)
