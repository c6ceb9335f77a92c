"""Reading a frozen exam back, and saying everything that is wrong with it. No message quotes an answer."""

from collections import Counter
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from ..errors import UserError
from ..records import Frozen, sha256
from . import build, synthetic_mrcr
from .frozen import ITEMS, KEY, MANIFEST, Exam, Item, Key, Manifest, Scorer

Record = TypeVar("Record", bound=Frozen)


class Finding(Frozen):
    """One thing that is wrong, with its id."""

    reason: str
    message: str


def load(place: Path, digest: str | None = None) -> Exam:
    """The exam frozen in `place`. UserError names the first thing that is wrong with it."""
    exam, findings = verify(place, digest)
    if findings or exam is None:
        raise UserError(f"{place}: {findings[0].reason}: {findings[0].message}", "`fasttrack exam verify` lists it all")
    return exam


def verify(place: Path, digest: str | None = None) -> tuple[Exam | None, tuple[Finding, ...]]:
    """The exam in `place`, None where it cannot be read, and what is wrong with it.

    `digest` is that of the exam one means to sit. An exam of an offline kind is built again and compared byte for byte:
    whoever edits an item, its answer and all digests is found as well.
    """
    try:
        names = {path.name for path in place.iterdir()}
        data = {name: (place / name).read_bytes() for name in (MANIFEST, ITEMS, KEY) if name in names}
    except OSError as error:
        raise UserError(f"{place}: cannot be read: {error}", "give the directory of a frozen exam") from error
    missing = [Finding(reason="file_missing", message=name) for name in (MANIFEST, ITEMS, KEY) if name not in data]
    extra = [Finding(reason="file_unknown", message=name) for name in sorted(names - {MANIFEST, ITEMS, KEY})]
    if missing:
        return None, (*missing, *extra)
    try:
        manifest = Manifest.model_validate_json(data[MANIFEST])
    except ValidationError as error:
        return None, (Finding(reason="manifest", message=_first(error)), *extra)
    findings = extra
    if digest is not None and manifest.digest() != digest:
        findings.append(Finding(reason="other_exam", message=f"its digest is {manifest.digest()}"))
    if manifest.files.keys() != {ITEMS, KEY}:
        findings.append(Finding(reason="manifest", message=f"files: has to name {ITEMS} and {KEY}, and no other"))
    for name in (ITEMS, KEY):
        if manifest.files.get(name) != sha256(data[name]):
            findings.append(Finding(reason="file_changed", message=f"{name} is not the one that the manifest names"))
    try:
        items, keys = _records(ITEMS, data[ITEMS], Item), _records(KEY, data[KEY], Key)
    except ValueError as error:
        return None, (*findings, Finding(reason="unreadable", message=str(error)))
    exam = Exam(manifest=manifest, items=items, keys={key.item: key for key in keys})
    findings += _contents(exam, keys) or _rebuilt(exam, data, pinned=digest is not None)
    return exam, tuple(findings)


def _contents(exam: Exam, keys: tuple[Key, ...]) -> list[Finding]:
    found = []
    counts = Counter(item.id for item in exam.items)
    if len(exam.items) != exam.manifest.items:
        found.append(Finding(reason="item_count", message=f"{len(exam.items)} items, pinned: {exam.manifest.items}"))
    found += [Finding(reason="item_twice", message=name) for name, count in counts.items() if count > 1]
    prompts = Counter(item.prompt_sha256 for item in exam.items)
    found += [Finding(reason="prompt_twice", message=i.id) for i in exam.items if prompts[i.prompt_sha256] > 1]
    if Counter(key.item for key in keys) != counts:
        found.append(Finding(reason="key_items", message="items and key do not name the same items, once each"))
        return found
    for item in exam.items:
        if item.prompt_sha256 != Item.prompt_digest(item.messages, item.options):
            found.append(Finding(reason="prompt_changed", message=f"{item.id}: prompt or order of options"))
        problem = _misfit(exam.manifest.scorer, item, exam.keys[item.id])
        if problem:
            found.append(Finding(reason="item", message=f"{item.id}: {problem}"))
    return found


def _misfit(scorer: Scorer, item: Item, key: Key) -> str | None:
    """Why `item` cannot be scored as its exam is."""
    if scorer is Scorer.MRCR:
        if not item.prefix or not key.answer.startswith(item.prefix):
            return "the answer has to start with the prefix"
        return synthetic_mrcr.problem(item, key) if item.id.startswith("mrcr-") else None
    if scorer is Scorer.LAST_LINE:
        line = key.answer.strip()
        return None if line == key.answer and line and "\n" not in line else "its answer is no line"
    if scorer is Scorer.INTEGER:
        digits = key.answer.removeprefix("-")
        return None if digits.isascii() and digits.isdigit() and not item.options else "its answer is no integer"
    letters = [chr(ord("A") + place) for place in range(len(item.options))]
    if len(letters) < 2 or len(set(item.options)) < len(letters) or key.answer not in letters:
        return "two options or more are needed, all different, one of them the answer"
    listed = "\n".join(f"{letter}) {option}" for letter, option in zip(letters, item.options, strict=True))
    return None if listed in item.messages[-1].content else "its prompt does not list its options in their order"


def _rebuilt(exam: Exam, data: dict[str, bytes], *, pinned: bool) -> list[Finding]:
    """Whether an exam of an offline kind is what its source gives; of another kind its digest has to be pinned."""
    source = exam.manifest.source
    if build.offline(source.kind) is None:
        message = f"exams of kind {source.kind!r} cannot be built again here: give the digest that is meant"
        return [] if pinned else [Finding(reason="unpinned", message=message)]
    try:
        again = build.plan(
            source.kind, seed=source.seed, needles=source.needles, words=source.words, items_each=source.items_each or 1
        )
    except UserError as error:
        return [Finding(reason="not_rebuilt", message=error.what)]
    files = build.build(again).files()
    return [
        Finding(reason="not_rebuilt", message=f"{name} is not what {source.kind} with seed {source.seed} gives")
        for name in (ITEMS, KEY, MANIFEST)
        if data[name] != files[name]
    ]


def _records(name: str, data: bytes, record: type[Record]) -> tuple[Record, ...]:
    """One record a line. ValueError names file and line."""
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8") from error
    if lines.pop() != "":
        raise ValueError(f"{name}: the last line is cut off")
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(record.model_validate_json(line))
        except ValidationError as error:
            raise ValueError(f"{name}:{number}: {_first(error)}") from error
    return tuple(found)


def _first(error: ValidationError) -> str:
    """Where the first misfit is and of what kind, without the value that was found."""
    first = error.errors(include_input=False, include_url=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or '(the whole line)'}: {first['msg']}"
