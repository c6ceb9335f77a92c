"""The commands under `fasttrack exam`: output and exit codes."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import typer
from pydantic import Field

from fasttrack_validation import strict
from fasttrack_validation.accuracy import answers, frozen, plans, published, result, twins
from fasttrack_validation.accuracy import build as building
from fasttrack_validation.accuracy import power as powers
from fasttrack_validation.accuracy import verify as verifying
from fasttrack_validation.accuracy.answers import Sampling
from fasttrack_validation.accuracy.family import Family
from fasttrack_validation.accuracy.plan import Plan
from fasttrack_validation.accuracy.rule import Verdict
from fasttrack_validation.accuracy.sitting import Sat
from fasttrack_validation.errors import UserError
from fasttrack_validation.records import Frozen

CODES = {Verdict.PASS: 0, Verdict.FAIL: 1, Verdict.INVALID: 1, Verdict.INCONCLUSIVE: 3}


def build(
    kind: str, out: Path, *, seed: int, needles: str, words: str, items_each: int, max_tokens: int | None,
    revision: str | None, as_json: bool,
) -> None:  # fmt: skip
    """An exam, frozen into a new directory."""
    source = building.plan(
        kind, seed=seed, needles=_numbers("--needles", needles), words=_numbers("--words", words),
        items_each=items_each, max_tokens=max_tokens, revision=revision,
    )  # fmt: skip
    draft = building.build(source)
    with _writing(out):
        frozen.write(draft, out)
    exam = verifying.load(out, draft.manifest().digest())
    told = exam.manifest.source
    if as_json:
        found = {"exam": exam.manifest.exam, "items": len(exam.items), "sha256": exam.digest}
        print(json.dumps(found | ({"revision": told.revision} if told.revision else {}), indent=2))
        return
    print(f"{out}: {exam.manifest.exam}, {len(exam.items)} items, sha256 {exam.digest}")
    if told.revision:
        print(f"  from {told.repository} at {told.revision}; {exam.manifest.licence}")
    counts = Counter(published.bin_of(tokens) for tokens in sorted(i.tokens for i in exam.items if i.tokens is not None))
    for name, count in counts.items():
        print(f"  {name} tokens: {count} items")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror or error}", "free space or correct the permissions, then try again"
        ) from error


def verify(place: Path, digest: str | None, *, as_json: bool) -> NoReturn:
    """Everything that is wrong with a frozen exam."""
    exam, findings = verifying.verify(place, digest)
    if as_json:
        told = {"sha256": exam.digest if exam else None, "findings": [one.model_dump() for one in findings]}
        print(json.dumps(told, indent=2))
    elif findings:
        print("\n".join(f"FAIL {place}: {one.reason}: {one.message}" for one in findings))
    else:
        print(f"ok   {place}: {exam.manifest.exam}, {len(exam.items)} items, sha256 {exam.digest}")
    raise typer.Exit(1 if findings else 0)


def power(path: Path, *, within: float, between: float, as_json: bool) -> None:
    """What a plan can show."""
    plan = strict.read(path, Plan)
    sizes = {"items": plan.items, "within": within, "between": between}
    looks = {
        str(look): powers.power(plan.rule.model_copy(update={"looks": (look,)}), repeats=look, **sizes)
        for look in plan.rule.looks
    }
    needed = powers.repeats_needed(plan.rule, **sizes)
    if as_json:
        print(json.dumps({"power": looks, "repeats_needed": needed}, indent=2))
        return
    print(f"{plan.exam}: {plan.items} items, margin {plan.rule.margin_points:g} points, identical arms")
    for look, value in looks.items():
        print(f"  {look} repeats, as the only look: passes {value:.0%} of the time")
    enough = f"{needed} repeats an arm" if needed else "no number of repeats gives it: it takes more items"
    print(f"  for {plan.rule.power:.0%}: {enough}")


def calibrate(place: Path, plan_file: Path, first: Path, second: Path, *, as_json: bool) -> NoReturn:
    """The noise of an exam, and the rule's errors on it."""
    plan = strict.read(plan_file, Plan)
    exam = verifying.load(place, plan.exam_sha256)
    found = twins.judge_twins(exam, plan, answers.read(first), answers.read(second))
    if as_json:
        print(found.model_dump_json(indent=2))
    else:
        print("\n".join(twins.lines(found, plan)))
    raise typer.Exit(0 if found.calibration and twins.as_stated(found.calibration, plan.rule) else 1)


def plan(
    place: Path, out: Path, *, digest: str | None, margin: float, looks: str, temperature: float, top_p: float,
    max_tokens: int, stop: tuple[str, ...], together: str | None, pooled: bool,
) -> None:  # fmt: skip
    """A plan for a frozen exam, written into a new file."""
    exam, _ = verifying.verify(place, digest)
    if exam is None:
        raise UserError(f"{place} is no frozen exam", "`fasttrack exam verify` says why")
    exam = verifying.load(place, digest or exam.digest)
    if out.exists():
        raise UserError(f"{out} exists", "a plan is not written over: choose another file")
    family = Family(rule="pooled" if pooled else "each", exams=tuple(together.split(","))) if together else None
    made = plans.text(
        exam, margin=margin, looks=_numbers("--looks", looks), family=family,
        sampling=Sampling(temperature=temperature, top_p=top_p, max_tokens=max_tokens, stop=stop),
    )  # fmt: skip
    found = strict.parse(made, Plan, out)
    with _writing(out):
        out.write_text(made, "utf-8")
    print(f"{out}: {found.exam}, {found.items} items, plan {found.digest()}")


def plan_digest(path: Path) -> None:
    """The digest of a plan."""
    print(strict.read(path, Plan).digest())


class _Paths(Frozen):
    """Where one exam's files are, relative to the file that says so."""

    exam: Path
    plan: Path
    baseline: Path
    candidate: Path

    def read(self, root: Path) -> Sat:
        """The exam that both arms sat."""
        plan = strict.read(root / self.plan, Plan)
        exam = verifying.load(root / self.exam, plan.exam_sha256)
        return Sat(exam, plan, answers.read(root / self.baseline), answers.read(root / self.candidate))


class _FamilyFile(Frozen):
    sat: tuple[_Paths, ...] = Field(min_length=1)


def decide(place: Path, plan_file: Path, baseline: Path, candidate: Path, *, as_json: bool) -> NoReturn:
    """Two arms' recorded answers as a verdict."""
    sat = _Paths(exam=place, plan=plan_file, baseline=baseline, candidate=candidate).read(Path())
    found = result.judge(sat.exam, sat.plan, sat.baseline, sat.candidate)
    # Infinite bounds have no JSON: there they are null.
    print(found.model_dump_json(indent=2) if as_json else "\n".join(result.lines(found, sat.plan)))
    raise typer.Exit(CODES[found.verdict])


def decide_family(path: Path, *, as_json: bool) -> NoReturn:
    """Several exams' recorded answers as one verdict."""
    sat = [paths.read(path.parent) for paths in strict.read(path, _FamilyFile).sat]
    try:
        found = result.judge_family(sat)
    except ValueError as error:
        raise UserError(f"{path}: {error}", "list every exam of the family that the plans name, once") from error
    if as_json:
        print(found.model_dump_json(indent=2))
    else:
        for one, exam in zip(found.results, sat, strict=True):
            print("\n".join(result.lines(one, exam.plan)))
        print(f"together ({sat[0].plan.family.rule}): {found.verdict}")
    raise typer.Exit(CODES[found.verdict])


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UserError(f"{option} {text}: not a list of whole numbers", f"write it as {option} 2,4,8") from error
