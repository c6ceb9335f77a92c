"""`fasttrack validate MODEL --stage accuracy` and `fasttrack exam sit`: arms behind servers, progress, exit codes."""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import typer

from fasttrack_validation import strict
from fasttrack_validation.accuracy import campaign, verify
from fasttrack_validation.accuracy.asking import Pace
from fasttrack_validation.accuracy.campaign import Arms, Told
from fasttrack_validation.accuracy.engine import sit as sit_exam
from fasttrack_validation.accuracy.exams import Exam as AskedExam
from fasttrack_validation.accuracy.frozen import MANIFEST, Exam
from fasttrack_validation.accuracy.plan import Plan
from fasttrack_validation.accuracy.server import Server
from fasttrack_validation.coverage import load_plan
from fasttrack_validation.errors import UserError
from fasttrack_validation.records import sha256

from . import model_dir, storage, validate_exams_text
from .exam_commands import CODES
from .storage import write_file
from .validate_options import Form, check

KEY = "OPENAI_API_KEY"
RECORD, REPORT = "accuracy.json", "accuracy.md"
EVERY = 30.0
"""Seconds between lines of progress in a log"""


def run(model: str, options: Mapping[str, Any]) -> NoReturn:
    """Both arms sit the planned exams; verdict, records and a report section are kept in --out."""
    check(Form.ACCURACY, options["given"])
    manifest = model_dir.load(model).manifest
    asked = {exam.exam: exam for exam in load_plan(manifest.model.contract).accuracy}
    plans, exams, baseline, candidate = (options[name] for name in ("plan", "exams", "stock_url", "candidate_url"))
    if not plans:
        raise UserError("no exam is planned", "give --plan FILE for each; `fasttrack exam plan` writes one")
    if exams is None:
        raise UserError("no frozen exam is named", "give --exams DIR; `fasttrack exam build` freezes one")
    if baseline is None or candidate is None:
        raise UserError("stage accuracy holds two servers against each other", "give --stock-url and --candidate-url")
    sittings = [_sitting(path, exams) for path in plans]
    for _, plan in sittings:
        if plan.exam in asked:
            _as_asked(plan, asked[plan.exam])
    prices, as_json = _prices(options["price"]), options["as_json"]
    out = options["out"] or storage.home() / "validate" / model / f"accuracy-{_folder(sittings)}"
    with _kept(out), _told(quiet=as_json) as told:
        arms = Arms(
            _server(baseline, options["stock_model"], options["silence"]),
            _server(candidate, options["candidate_model"], options["silence"]), Pace(workers=options["workers"]), told,
        )  # fmt: skip
        found = campaign.run(sittings, arms, out)
    missing = {name: exam.title for name, exam in asked.items() if name not in {plan.exam for _, plan in sittings}}
    record = {
        "format": "fasttrack.accuracy/1", "model": model, "outcome": json.loads(found.model_dump_json()),
        "not_run": sorted(missing),
    }  # fmt: skip
    write_file(out / RECORD, (json.dumps(record, indent=2, sort_keys=True) + "\n").encode())
    write_file(out / REPORT, validate_exams_text.section(found, missing, prices).encode())
    print(json.dumps(record, indent=2) if as_json else "\n".join(validate_exams_text.lines(found, missing, prices)))
    raise typer.Exit(CODES[found.verdict])


def _folder(sittings: Sequence[tuple[Exam, Plan]]) -> str:
    return sha256("".join(sorted(plan.digest() for _, plan in sittings)).encode())[:12]


def sit(
    place: Path, plan_file: Path, server: str, arm: str, *, model: str | None, out: Path, run: str, repeats: int | None,
    workers: int, silence: float, as_json: bool,
) -> None:  # fmt: skip
    """One arm sits one exam, up to a planned look; its recorded answers are written to `out`/`arm`.jsonl."""
    if arm not in ("baseline", "candidate"):
        raise UserError(f"--arm {arm}", "name baseline or candidate")
    plan = strict.read(plan_file, Plan)
    exam = verify.load(place, plan.exam_sha256)
    look = plan.rule.looks[-1] if repeats is None else repeats
    if look not in plan.rule.looks:
        raise UserError(f"--repeats {look} is no planned look", f"planned: {', '.join(map(str, plan.rule.looks))}")
    with _kept(out), _told(quiet=as_json) as told:
        answers = sit_exam(
            exam, plan, _server(server, model, silence), arm, out / "journal", repeats=look, run=run,
            pace=Pace(workers=workers), progress=lambda done, of: told(plan.exam, arm, done, of),
        )  # fmt: skip
    path = out / f"{arm}.jsonl"
    write_file(path, answers.dump().encode())
    cost = campaign.cost(answers.answers)
    if as_json:
        print(json.dumps({"answers": str(path), "cost": cost.model_dump()}, indent=2))
    else:
        print(f"{path}: {validate_exams_text.took(cost, None)}")


def _sitting(path: Path, exams: Path) -> tuple[Exam, Plan]:
    plan = strict.read(path, Plan)
    for place in sorted({exams, *(one.parent for one in exams.glob(f"*/{MANIFEST}"))}):
        if (place / MANIFEST).exists():
            exam, findings = verify.verify(place, plan.exam_sha256)
            if exam is not None and exam.digest == plan.exam_sha256:
                return verify.load(place, plan.exam_sha256), plan
    raise UserError(f"{exams} holds no exam {plan.exam} {plan.exam_sha256}", "freeze it there: `fasttrack exam build`")


def _as_asked(plan: Plan, asked: AskedExam) -> None:
    """Holds a plan to what the model's contract asks for that exam."""
    if plan.rule.margin_points > asked.margin_points:
        raise UserError(
            f"{plan.exam}: a margin of {plan.rule.margin_points:g} points is planned, the contract allows "
            f"{asked.margin_points:g}", "correct rule.margin_points",
        )  # fmt: skip
    if asked.items not in (None, plan.items):
        raise UserError(f"{plan.exam}: {plan.items} items are planned, the contract pins {asked.items}", "correct items")


def _server(url: str, model: str | None, silence: float) -> Server:
    return Server(url if urlsplit(url).path.strip("/") else url.rstrip("/") + "/v1", model, key=os.environ.get(KEY), silence=silence)


def _prices(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        into, out = (float(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"--price {text}", "write it as --price 1.25,10: USD per million tokens in and out") from None
    return into, out


@contextmanager
def _kept(out: Path) -> Iterator[None]:
    """Says where a run that is stopped goes on."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"every answer that came is kept in {out}: the same command goes on there", file=sys.stderr)
        raise


@contextmanager
def _told(*, quiet: bool) -> Iterator[Told]:
    """Progress on standard error: on a terminal a bar for each arm of each exam, elsewhere a line now and then."""
    if quiet:
        yield lambda exam, arm, done, of: None
        return
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[tuple[str, str], object] = {}

        def told(exam: str, arm: str, done: int, of: int) -> None:
            if (exam, arm) not in tasks:
                tasks[exam, arm] = bar.add_task(f"{exam}, {arm}", total=of)
            bar.update(tasks[exam, arm], completed=done, total=of)

        yield told


def _lines() -> Told:
    """A line at an arm's first and last answer, and every `EVERY` seconds between, whether answers come or not."""
    last: dict[tuple[str, str], tuple[int, float]] = {}

    def told(exam: str, arm: str, done: int, of: int) -> None:
        now = time.monotonic()
        before, when = last.get((exam, arm), (-1, -EVERY))
        if now - when >= EVERY or (done == of and before < of):
            print(f"{exam}, {arm}: {done} of {of} answers", file=sys.stderr, flush=True)
            last[exam, arm] = done, now

    return told
