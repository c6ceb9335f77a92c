"""`fasttrack validate MODEL --stage numerics`: token by token in process, on the nano checkpoint."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import typer
from fasttrack_validation.contracts.kimi_k3.numerics.faults import FAULTS
from fasttrack_validation.contracts.kimi_k3.numerics.weights import WeightsOf
from fasttrack_validation.errors import UserError
from fasttrack_validation.numerics.whole_model import faulted
from fasttrack_validation.numerics.whole_model import stage as ladder
from fasttrack_validation.numerics.whole_model import verdict as kept
from fasttrack_validation.numerics.whole_model.checks import Result
from fasttrack_validation.numerics.whole_model.long_steps import BLOCK
from fasttrack_validation.numerics.whole_model.pieces import Job, Say
from fasttrack_validation.numerics.whole_model.plan import Settings
from fasttrack_validation.numerics.whole_model.scenario import RungName

from . import model_dir, storage, validate_plot, validate_servers, validate_text
from .run_directory import alone, own
from .validate_options import Form, check

CODES = {Result.PASS: 0, Result.FAIL: 1, Result.INCONCLUSIVE: 3}


def run(model: str, options: Mapping[str, Any]) -> NoReturn:
    """Runs what is not kept yet, shows what follows, and ends with the verdict's exit code."""
    if validate_servers.meant(options):
        validate_servers.run(model, options)
    form = Form.LADDER_AGAIN if options["recompute"] else Form.FAULTS if options["faults"] else Form.LADDER
    check(form, options["given"])
    out = options["out"] or storage.home() / "validate" / model / _folder(options)
    if options["plot"] is not None:
        validate_plot.ready(options["plot"])
    if options["recompute"]:
        verdict = kept.judge(out)
        _compared(verdict, out)
        _show(verdict, out, options)
    directory = model_dir.load(model)
    settings = _settings(options)
    weights = _weights(options, settings)
    with storage.writing(out):
        _own(out, fresh=options["fresh"])
        out.mkdir(parents=True, exist_ok=True)
    if options["faults"]:
        _faults(settings, weights.checkpoint, out, options)
    job = Job(
        subject=_subject(model, directory, settings, weights), out=out.resolve(), weights=weights, threads=options["jobs"],
        device="cpu" if weights.checkpoint else settings.device, contract=directory.manifest.model.contract,
        directory=directory.path.resolve(),
    )  # fmt: skip
    stage = ladder.Stage(job, jobs=options["jobs"])
    with storage.writing(out), _progress(options["as_json"]) as say:
        verdict = stage.run(say)
    _show(verdict, out, options)


def _folder(options: Mapping[str, Any]) -> str:
    if options["faults"]:
        return "numerics-faults"
    return "numerics-" + options["candidate"].replace(":", "-") + ("-layers" if options["layers"] else "")


def _settings(options: Mapping[str, Any]) -> Settings:
    known = [rung.value for rung in RungName]
    rungs = tuple(options["rung"] or known)
    if odd := [rung for rung in rungs if rung not in known]:
        raise UserError(f"there is no rung {odd[0]!r}", f"the rungs are {', '.join(known)}")
    try:
        tps = tuple(int(part) for part in options["tp"].split(","))
    except ValueError as error:
        raise UserError(f"--tp {options['tp']} is no list of numbers", "write --tp 1,8,16") from error
    if odd_tps := [tp for tp in tps if tp not in (1, 2, 4, 8, 16)]:
        raise UserError(f"the nano model cannot be split over {odd_tps[0]} ranks", "use 1, 2, 4, 8, 16")
    candidate = options["candidate"]
    plain = [f"plain:{name}" for name in (faulted.TWIN, *FAULTS)]
    if candidate not in ("specialised", *plain):
        raise UserError(f"there is no candidate {candidate!r}", f"known: specialised, {', '.join(plain)}")
    return Settings(
        candidate=candidate, rungs=tuple(rung for rung in RungName if rung in rungs), tps=tuple(dict.fromkeys(tps)), main_tp=tps[0],
        device=_device(options),
        **{name: options[name] for name in ("replicas", "seed", "steps")}, context=_contexts(options["context"]),
        tokens=_count(options["tokens"]),
    )  # fmt: skip


def _contexts(given: Sequence[int] | None) -> int | tuple[int, ...]:
    several = tuple(dict.fromkeys(given or (4096,)))
    return several if len(several) > 1 else several[0]


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 8 <= int(text) <= 1_000_000):
        raise UserError(f"--tokens {text}", "give a number from 8 to 1000000; a file goes with --stock-url")
    return int(text)


def _device(options: Mapping[str, Any]) -> str:
    named = options["device"]
    if named not in ("auto", "cpu", "cuda"):
        raise UserError(f"--device {named}", "name auto, cpu or cuda")
    if named == "cpu" or options["candidate"] != "specialised" or options["faults"]:
        return "cpu"
    import torch

    found = torch.cuda.is_available()
    if named == "cuda" and not found:
        raise UserError("this process sees no CUDA GPU", "run on a GPU machine, or with --device cpu")
    if found and options["steps"] > BLOCK and options["steps"] % BLOCK:
        raise UserError(f"--steps {options['steps']}", f"on a GPU steps are replayed in blocks: name a multiple of {BLOCK}")
    return "cuda" if found else "cpu"


def _weights(options: Mapping[str, Any], settings: Settings) -> WeightsOf:
    from fasttrack_validation.contracts.kimi_k3.numerics import material

    if options["layers"] is None:
        return WeightsOf(checkpoint=material.checkpoint(options["checkpoint"]))
    if options["checkpoint"]:
        raise UserError("--layers draws weights", "leave out --checkpoint")
    from fasttrack_validation.contracts.kimi_k3.numerics import published

    if settings.device != "cuda" or settings.tps != (published.TP,):
        raise UserError(
            f"layers of true widths on {settings.device} at TP {', '.join(map(str, settings.tps))}",
            f"they need a GPU, for the specialised path, and --tp {published.TP}",
        )
    return WeightsOf(layers=published.checked(options["layers"]), seed=settings.seed)


def _subject(model: str, directory: model_dir.ModelDirectory, settings: Settings, weights: WeightsOf) -> kept.Subject:
    from fasttrack_validation.contracts.kimi_k3.numerics import material

    specialised = settings.candidate == "specialised"
    harness = kept.harness_digest()
    return kept.Subject(
        model=model, checkpoint=material.digest(weights.checkpoint) if weights.checkpoint else weights.canonical_json(),
        settings=settings, harness=harness, machine=_machine(settings),
        candidate=kept.directory_digest(directory.path) if specialised else harness,
    )  # fmt: skip


def _machine(settings: Settings) -> dict[str, str]:
    import torch

    device = torch.cuda.get_device_name() if settings.device == "cuda" else "cpu"
    return {"device": device, "torch": torch.__version__, "triton": version("triton")}


def _own(out: Path, *, fresh: bool) -> None:
    """Sees to it that `out` is a run's own; `fresh` removes the records in it. UserError where it holds anything that no run
    wrote and is to be emptied, or has no records yet; and where another process runs there."""
    if (out / validate_servers.RECORDS).exists():
        raise UserError(f"{out} holds a comparison of servers", "name a directory of its own with --out")
    own(out, kept.WRITTEN, begun=kept.MANIFEST, fresh=fresh)


def _compared(verdict: kept.StageVerdict, out: Path) -> None:
    """Says where the records are not those of the verdict that lies beside them."""
    file = next((file for file in (out / kept.VERDICT, out.with_suffix(".json")) if file.is_file()), None)
    if file is None:
        return
    try:
        before = kept.StageVerdict.model_validate_json(file.read_bytes()).evidence
    except ValueError:
        return
    names = sorted({**before, **verdict.evidence})
    odd = [name for name in names if before.get(name) != verdict.evidence.get(name)]
    if odd:
        print(f"note: {file} is about other records: {', '.join(odd)} {'is' if len(odd) == 1 else 'are'} not what it names",
              file=sys.stderr)  # fmt: skip


def _faults(settings: Settings, checkpoint: Path, out: Path, options: Mapping[str, Any]) -> NoReturn:
    with storage.writing(out), alone(out), _progress(options["as_json"]) as say:
        table = faulted.table(settings, checkpoint, out, say=say)
        (out / "faults.json").write_text(table.canonical_json() + "\n", "utf-8")
    if options["as_json"]:
        print(json.dumps({"holds": table.holds, **table.model_dump(mode="json")}))
    else:
        validate_text.faults(table)
    raise typer.Exit(0 if table.holds else 1)


def _show(verdict: kept.StageVerdict, out: Path, options: Mapping[str, Any]) -> NoReturn:
    drawn = validate_plot.draw(out, options["plot"]) if options["plot"] is not None else []
    if options["plot"] is not None and not drawn:
        print(f"note: nothing is drawn: {out} holds no records of tokens, nor of the long rung", file=sys.stderr)
    rules = kept.harness_digest()
    if verdict.subject.harness != rules:
        print(
            f"note: {out} was recorded by another version of the ladder ({verdict.subject.harness[:12]}); "
            f"what follows is judged by this one ({rules[:12]})", file=sys.stderr,
        )  # fmt: skip
    worst = kept.worst(out)
    if options["as_json"]:
        shown = {
            "out": str(out), "digest": verdict.digest(), "judged_by": rules, "figures": [str(path) for path in drawn],
            "worst": [one.model_dump(mode="json") for one in worst],
        }  # fmt: skip
        print(json.dumps({**shown, "verdict": verdict.model_dump(mode="json")}))
    else:
        validate_text.verdict(verdict, worst, out, drawn)
    raise typer.Exit(CODES[verdict.result])


@contextmanager
def _progress(quiet: bool) -> Iterator[Say]:
    """A line for each unit that runs, on standard error, where that is a terminal; else a line for each that is done."""
    if quiet:
        yield lambda unit, done, of: None
        return
    if not sys.stderr.isatty():
        def line(unit: str, done: int, of: int) -> None:
            if of:
                print(f"done: {unit}", file=sys.stderr, flush=True)

        yield line
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TextColumn("{task.completed} done"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def step(unit: str, done: int, of: int) -> None:
            if unit not in tasks:
                tasks[unit] = bar.add_task(unit, total=None)
            bar.update(tasks[unit], completed=done, visible=not of)

        yield step
