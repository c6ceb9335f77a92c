"""What a sealed file holds, checked against the sources here, and filed as evidence of the model directory."""

import json
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeVar

from pydantic import ValidationError

from fasttrack_validation.accuracy.campaign import Outcome
from fasttrack_validation.claims.claim import Claim
from fasttrack_validation.errors import UserError
from fasttrack_validation.load import claim as claiming
from fasttrack_validation.load.figures import misfit
from fasttrack_validation.load.records import Measured, Record
from fasttrack_validation.numerics.servers.compare import ServersVerdict
from fasttrack_validation.performance.records import Record as RankRecord
from fasttrack_validation.performance.serving_grid import ServingGrid, serving_grid
from fasttrack_validation.records import Frozen

from .. import grid, model_dir, signatures, storage, strict_json
from ..confinement.names import check_name, tool_configuration
from ..git import display
from ..grid import DIRECTORY
from ..server_grid import FOLDER
from . import origin, plan, ranks
from .plan import Kit
from .sealing import MARK, SEAL, Seal, Sealed

MAX_BYTES = 4 << 20
"""Of one file of evidence in a repository, as confinement has it"""
_SUFFIXES = (".json", ".jsonl", ".csv", ".md", ".txt", ".jsonl.gz", ".json.gz")
SERVERS, RANK = "results/grid/", "results/rank/"
"""Where a kit keeps records: of servers, of one rank's share"""
T = TypeVar("T", bound=Frozen)
_PARTS = ("pairs", "end_to_end")
_NUMERICS, _ACCURACY = "results/numerics/", "results/accuracy/"
_VERDICT = f"{_NUMERICS}verdict.json"
_RECORD, _SECTION = f"{_ACCURACY}accuracy.json", f"{_ACCURACY}accuracy.md"


class Filed(Frozen):
    """What was found in a sealed file. `faults` say why nothing was filed."""

    model: str
    hardware: str
    rehearsal: bool
    signer: str | None
    measured: tuple[str, ...]
    failed: tuple[str, ...]
    faults: tuple[str, ...]
    notes: tuple[str, ...]
    files: dict[str, str]
    """Path in the model directory -> path in the sealed file"""


def check(sealed: Sealed, signer: Path | None) -> Filed:
    """Holds a sealed file against the model directory here. Nothing is written.

    `signer`: the public key of who sent it. Raises UserError without the model.
    """
    kit, faults, notes = sealed.kit, [], []
    who = _signer(sealed, signer, faults, notes)
    directory = model_dir.load(kit.model)
    contract = directory.manifest.model.contract
    records = _records(sealed.files, SERVERS, Record, lambda one: one.cell.key, faults)
    shares = _records(sealed.files, RANK, RankRecord, lambda one: one.spec.key, faults)
    published = serving_grid(contract)
    claimed = {claim.hardware for claim in directory.manifest.envelope}
    with origin.of(kit, directory) as source:
        faults += [source.fault] if source.fault else []
        notes += [source.note] if source.note else []
        if kit.hardware in claimed:
            faults += ranks.faults(kit, source, shares)
        elif shares:
            faults.append(f"{kit.model} claims nothing for {kit.hardware}, and there are cells of one rank's grid")
    notes += ranks.notes(kit, shares)
    if not kit.rehearsal:
        _kit(kit, published, claimed, faults)
    _grid(kit, records, faults)
    _machine(sealed, kit.hardware if kit.hardware in claimed else published.hardware, faults)
    # What derives claims may have changed since the kit's commit as well; no claim that was sent is filed.
    _claims(sealed, records, notes if source.note else faults)
    _rank_claims(sealed, contract, shares, notes if source.note else faults)
    codes = _codes(sealed.files)
    _numerics(sealed, faults)
    _exams(sealed, faults)
    for step in kit.steps:
        code = codes.get(step.id)
        if code != 0:
            notes.append(f"step {step.id}: {'not run' if code is None else f'exit code {code}'}")
    targets = {f"{DIRECTORY}/{kit.hardware}/{FOLDER}/{key}.json": f"{SERVERS}{key}.json" for key in records}
    targets |= {f"{DIRECTORY}/{kit.hardware}/{key}.json": f"{RANK}{key}.json" for key in shares}
    place = f"evidence/kits/{kit.hardware}-{_short(kit.commit)}"
    files = {**targets, f"{place}/kit.json": "kit.json", f"{place}/machine.json": "results/machine.json"}
    for name in (*sealed.files, *sealed.long):
        if name.startswith(_NUMERICS) or name in (_RECORD, _SECTION):
            files[f"{place}/{PurePosixPath(name).relative_to('results').as_posix()}"] = name
    if _RECORD in sealed.files:
        files[f"evidence/accuracy/{kit.hardware}-{_short(kit.commit)}.json"] = _RECORD  # where reports look
        notes.append("answers to exams are not filed, for they may quote items that belong to nobody's repository")
    for target, name in list(files.items()):
        data = sealed.files.get(name)
        if data is None and name not in sealed.long:
            faults.append(f"{name} is missing")
        elif data is None or not name.endswith(_SUFFIXES) or len(data) > MAX_BYTES:
            del files[target]
            notes.append(f"{name} is not filed: of a kind or a size that evidence in a repository may not have")
        elif bad := next(check_name(target), None) or tool_configuration(target):
            del files[target]
            notes.append(f"{display(name)} is not filed: {bad if isinstance(bad, str) else bad[1]}")
    both = (*records.items(), *shares.items())
    return Filed(
        model=kit.model, hardware=kit.hardware, rehearsal=kit.rehearsal, signer=who,
        measured=tuple(key for key, one in both if one.outcome.kind == "measured"),
        failed=tuple(key for key, one in both if one.outcome.kind == "failed"),
        faults=tuple(faults), notes=tuple(notes), files=files,
    )  # fmt: skip


def file(sealed: Sealed, found: Filed, *, replace: bool = False) -> list[Path]:
    """Writes what `check` found in order, each file in full or not at all. Returns the paths.

    Raises UserError for a rehearsal, where there are faults, or where other evidence lies in a file's place (with
    `replace` it gives way); then nothing was written.
    """
    if found.rehearsal or found.faults:
        raise UserError("this is not to be filed", "; ".join(found.faults) or "a rehearsal is evidence of nothing")
    root = model_dir.load(found.model).path
    place = f"evidence/kits/{found.hardware}-{_short(sealed.kit.commit)}"
    contents = {target: sealed.files[name] for target, name in found.files.items()}
    contents[f"{place}/{SEAL}"] = sealed.seal
    if sealed.signature is not None:
        contents[f"{place}/{MARK}"] = sealed.signature
    other = [target for target, data in contents.items() if _differs(root / target, data)]
    if other and not replace:
        more = f", and {len(other) - 1} more" if len(other) > 1 else ""
        raise UserError(f"other evidence lies there already: {other[0]}{more}; nothing was filed",
                        "if what came now is to take its place, add --replace")  # fmt: skip
    # The seal goes first: cut off at any moment, no record is there that nobody vouches for.
    order = sorted(contents, key=lambda target: target.rpartition("/")[2] not in (SEAL, MARK))
    return [storage.write_inside(root, target, contents[target]) for target in order]


def _differs(path: Path, data: bytes) -> bool:
    try:
        return path.read_bytes() != data
    except FileNotFoundError:
        return False
    except OSError:  # whatever is in the place of a file is something else than what is to be filed
        return True


def _signer(sealed: Sealed, key: Path | None, faults: list[str], notes: list[str]) -> str | None:
    """Who signed it, held against the key that was given; nobody where no key was."""
    if key is None:
        notes.append("self-reported: no key was given to check its signature with (--from KEY.pub)")
        return None
    if sealed.signature is None:
        faults.append("nobody signed it, and a key was given")
        return None
    try:
        text = key.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or "it is no text"
        raise UserError(f"{key}: {said}", "name the sender's public key") from error
    allowed = f'sender namespaces="{signatures.NAMESPACE}" {text}\n'.encode()
    answer = signatures.verify(sealed.seal, sealed.signature, allowed)
    if isinstance(answer, signatures.Signed):
        return key.name
    faults.append(f"its signature does not count: {answer.message}")
    return None


def _records(
    files: Mapping[str, bytes], folder: str, shape: type[T], key: Callable[[T], str], faults: list[str]
) -> dict[str, T]:  # fmt: skip
    """Cell -> record, of the JSON files in `folder`."""
    found = {}
    for name, data in files.items():
        if not (name.startswith(folder) and name.endswith(".json")):
            continue
        try:
            record = shape.model_validate(strict_json.loads(data))
        except ValidationError as error:
            faults.append(f"{name}: {'.'.join(map(str, error.errors()[0]['loc']))}: {error.errors()[0]['msg']}")
            continue
        except ValueError as error:
            faults.append(f"{name}: {error}")
            continue
        if name != f"{folder}{key(record)}.json":
            faults.append(f"{name} is about {key(record)}")
        found[key(record)] = record
    return found


def _kit(kit: Kit, published: ServingGrid, claimed: Collection[str], faults: list[str]) -> None:
    """What the kit says of itself was in its owner's hands: what decides is taken from here."""
    if kit.hardware != published.hardware and (kit.pairs or kit.hardware not in claimed):
        faults.append(f"the kit is for {kit.hardware}, the grid of servers of {kit.model} is about {published.hardware}")
    known, _ = plan.pairs(published, 1 << 30)
    if other := [pair.name for pair in kit.pairs if pair not in known]:
        faults.append(f"the kit names {other[0]}, which is no pair of servers of the grid of {kit.model}")
    cells = {step.id for step in kit.steps if step.id.startswith("grid-")}
    if other := cells - {f"grid-{pair.name}" for pair in known}:
        faults.append(f"the kit has a step {sorted(other)[0]}, which no kit of {kit.model} has")


def _grid(kit, records: Mapping[str, Record], faults: list[str]) -> None:
    asked = {(pair.tp, pair.speculation) for pair in kit.pairs}
    for key, record in records.items():
        if record.hardware != kit.hardware:
            faults.append(f"{key} is about {record.hardware}, the kit about {kit.hardware}")
        if record.subject != kit.subject:
            faults.append(f"{key} is about other sources than the kit")
        if (record.cell.tp, record.cell.speculation) not in asked:
            faults.append(f"{key} is no cell of this kit")
        if isinstance(record.outcome, Measured):
            faults.extend(_edited(key, record, record.outcome))
            commit = record.outcome.specialised.conditions.get("identity", {}).get("commit")
            if commit != kit.commit:
                faults.append(f"{key} was measured with commit {commit}, the kit is of {kit.commit[:12]}")


def _edited(key: str, record: Record, outcome: Measured) -> Iterator[str]:
    """Figures of a record that its own requests do not give."""
    for side in (outcome.stock, outcome.specialised):
        for number, one in enumerate(side.rounds):
            try:
                wrong = misfit(one, decode_only=record.asking.decode_only)
            except ZeroDivisionError:
                wrong = "it took no time"
            if wrong:
                yield f"{key}: {side.arm}, round {number}: {wrong}"
                break


def _machine(sealed: Sealed, hardware: str, faults: list[str]) -> None:
    try:
        gpu = str(strict_json.loads(sealed.files["results/machine.json"])["facts"].get("gpu"))
    except (KeyError, ValueError, TypeError, AttributeError):
        faults.append("results/machine.json is missing, or no record of a machine")
        return
    if sealed.kit.rehearsal:
        return
    wanted = plan.gpu_name(hardware)
    if wanted not in gpu:
        faults.append(f"it was taken on {gpu[:80]}, the kit is for {wanted}")


def _claims(sealed: Sealed, records: Mapping[str, Record], faults: list[str]) -> None:
    """Claims about servers."""
    kit = sealed.kit
    measured = [record for record in records.values() if isinstance(record.outcome, Measured)]
    title, name = f"Specialised decode of {kit.model} on {kit.hardware}", f"{kit.model}-{kit.hardware}-server"
    if measured:
        _derived(sealed, "claims.json", lambda: claiming.claims(name.replace("_", "-"), title, measured), faults)


def _rank_claims(sealed: Sealed, contract: str, shares: Mapping[str, RankRecord], faults: list[str]) -> None:
    """The claim about one rank's share, with what its owner stated beside the records."""
    kit = sealed.kit
    measured = [record for record in shares.values() if record.outcome.kind == "measured"]

    def made() -> list[Claim]:
        stated = tomllib.loads(sealed.files.get("conditions.toml", b"").decode())
        return [grid.claim(kit.model, kit.hardware, contract, measured, stated)]

    if measured:
        _derived(sealed, "rank-claims.json", made, faults)


def _derived(sealed: Sealed, name: str, derive: Callable[[], Sequence[Claim]], faults: list[str]) -> None:
    """Claims are derived again: what was sent has to be what the records give."""
    if (sent := sealed.files.get(f"results/{name}")) is None:
        return
    try:
        made = derive()
        given = {one["id"]: {part: _by_cell(one.get(part, ())) for part in _PARTS} for one in strict_json.loads(sent)}
    except (UserError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
        faults.append(f"results/{name} cannot be held against the records: {error}")
        return
    for one in made:
        mine = json.loads(one.model_dump_json(exclude_none=True))
        if given.get(one.id) != {part: _by_cell(mine.get(part, ())) for part in _PARTS}:
            faults.append(f"claim {one.id} is not what the records give")


def _numerics(sealed: Sealed, faults: list[str]) -> None:
    """What reports show of servers that were compared token by token is a verdict of that stage."""
    if (text := sealed.files.get(_VERDICT)) is None:
        return
    try:
        ServersVerdict.model_validate(strict_json.loads(text))
    except ValueError as error:
        faults.append(f"{_VERDICT} is no verdict about two servers: {str(error).splitlines()[0]}")


def _exams(sealed: Sealed, faults: list[str]) -> None:
    """The record of stage accuracy is about this model, and about the answers that came with it."""
    if (text := sealed.files.get(_RECORD)) is None:
        return
    given = Seal.model_validate_json(sealed.seal).files
    try:
        record = strict_json.loads(text)
        model, outcome = record["model"], Outcome.model_validate_json(json.dumps(record["outcome"]))
    except (ValueError, TypeError, KeyError) as error:
        faults.append(f"{_RECORD} is no record of stage accuracy: {str(error).splitlines()[0]}")
        return
    if model != sealed.kit.model:
        faults.append(f"{_RECORD} is about {model}, the kit about {sealed.kit.model}")
    for exam in outcome.exams:
        for arm in (exam.baseline, exam.candidate):
            answers = given.get(f"{_ACCURACY}{arm.file}")
            if answers is None or answers.sha256 != arm.sha256:
                faults.append(f"{_RECORD} is not about the answers in {_ACCURACY}{arm.file}")


def _by_cell(pairs: Iterable[Mapping[str, object]]) -> dict[str, object]:
    return {pair["cell"]: pair for pair in pairs}


def _codes(files: Mapping[str, bytes]) -> dict[str, int]:
    """Step -> the exit code of its last run."""
    found = {}
    for line in files.get("results/steps.csv", b"").decode("utf-8", "replace").splitlines():
        parts = line.split(",")
        if len(parts) == 3 and re.fullmatch("[0-9]{1,3}", parts[1]):
            found[parts[0]] = int(parts[1])
    return found


def _short(commit: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in commit)[:12]
