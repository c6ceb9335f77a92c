"""What the commands do: fetch the parts, call them, print text or data, and exit with the right code."""

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from fasttrack_validation.errors import UserError
from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.judge.verdict import Outcome, Status, TimedCell, Verdict
from fasttrack_validation.records import canonical_json

from . import lane, model_dir, services, storage, verdict_cache
from .voice import Voice

if TYPE_CHECKING:
    from fasttrack_validation.contracts import ModelContract

    from .dispatch import Config

STATUS_CODE = {Status.ACCEPTED: 0, Status.REJECTED: 1, Status.INCONCLUSIVE: 3, Status.INVALID: 3, Status.NOT_RUN: 3}


def propose(model: str, op: str | None, *, as_json: bool, chat: dict[str, object], **options: object) -> NoReturn:
    """Runs the lane with an agent."""
    from .agents.settings import ChatOptions

    options["hardware"], options["chat"] = tuple(options["hardware"]), ChatOptions(**chat)
    options["workloads"], options["packs"] = tuple(options["workloads"]), pack_files(options["packs"])
    op = op or _only_op(model)
    if options["agent"] == "external":
        from . import run_commands

        for name in ("agent", "transcript", "chat", "dry_run", "packs", "workloads"):
            options.pop(name)
        run_commands.mcp(model, op, http=True, port=0, resume=False, run=None, as_json=as_json, **options)
    parts = services.default(records=not options["packs"])
    end(lane.propose(lane.Options(model=model, op=op, **options), parts, Voice(quiet=as_json)), as_json)


def submit(
    model: str, op: str, path: Path | None, config: str | None, *, as_json: bool, **options: object
) -> NoReturn:
    """Runs the lane with one candidate, or with packs of several."""
    options["hardware"], options["packs"] = tuple(options["hardware"]), pack_files(options["packs"])
    if path is not None:
        candidate = Candidate.from_path(path, op, parsed_config(config))
        options["submitted"] = with_defaults(candidate, model_dir.load(model), op)
    chosen = lane.Options(model=model, op=op, agent="single", **options)
    parts = services.default(records=not chosen.packs)
    end(lane.propose(chosen, parts, Voice(quiet=as_json)), as_json)


def resume(model: str, op: str | None, run: str | None, *, as_json: bool) -> NoReturn:
    """Goes on with a run."""
    # A run on packs records nothing; where one does, the recorder itself refuses a Triton that it does not know.
    end(lane.resume(model, op, run, None, services.default(records=False), Voice(quiet=as_json)), as_json)


def evaluate(
    model: str, op: str, path: Path, config: str | None, *, device: str, fresh: bool, unsafe_no_sandbox: bool,
    as_json: bool,
) -> NoReturn:  # fmt: skip
    """Judges one candidate, or says what was said of it before."""
    parts = services.default()
    contract, candidate = _candidate(parts, model, op, path, config)
    with parts.judge(contract, unsafe_no_sandbox, device) as judge:
        judged = {"candidate": candidate.model_dump(mode="json"), "asked": "screen"}
        _answer(judged, judge.identity(op), lambda: judge.screen(candidate), fresh=fresh, as_json=as_json)


def evaluate_pack(
    model: str, path: Path, *, device: str, fresh: bool, unsafe_no_sandbox: bool, as_json: bool
) -> NoReturn:
    """Judges a candidate that was recorded before, here or elsewhere, or says what was said of the record before."""
    from fasttrack_validation.judge import pack_file
    from fasttrack_validation.judge.recorded import require_whole

    contract = services.contract(model_dir.load(model).manifest.model.contract)
    recorded = pack_file.read(path)
    require_whole(recorded, contract.op(recorded.candidate.op))
    with services.judge(contract, unsafe_no_sandbox, device) as judge:
        judged = {"record": recorded.digest(), "asked": "rule"}
        identity = judge.identity(recorded.candidate.op)
        _answer(judged, identity, lambda: judge.rule(recorded), fresh=fresh, as_json=as_json)


def record(
    model: str, op: str, path: Path, config: str | None, out: Path, *, unseen: int, unsafe_no_sandbox: bool,
    as_json: bool,
) -> NoReturn:  # fmt: skip
    """Records one candidate into a file. A candidate that cannot be recorded or compiled gives none."""
    from fasttrack_validation.judge import pack_file

    if not out.absolute().parent.is_dir():
        raise UserError(f"{out.parent} is no directory", "make it, or name another file")
    parts = services.default()
    contract, candidate = _candidate(parts, model, op, path, config)
    with parts.judge(contract, unsafe_no_sandbox, "cpu") as judge:
        recorded = judge.record(candidate, unseen=unseen)
        if recorded.stopped:
            _rule(judge.rule(recorded), as_json)
    size = pack_file.write(recorded, out)
    facts = {
        "file": str(out), "bytes": size, "candidate_digest": candidate.digest(), "record_digest": recorded.digest(),
        "workloads": len(recorded.packs), "kernels": len(recorded.codes), "seconds": recorded.seconds,
    }  # fmt: skip
    text = f"{out}: {op}, candidate {candidate.digest()[:12]}, {len(recorded.packs)} plans, {len(recorded.codes)} cubins"
    print(json.dumps(facts, indent=2) if as_json else f"{text}\n  judge it: `fasttrack evaluate {model} --pack {out}`")
    raise typer.Exit(0)


def record_space(
    model: str, op: str, out: Path, workloads: Sequence[str], *, unseen: int, unsafe_no_sandbox: bool, as_json: bool
) -> NoReturn:
    """Records the tree's kernel with every configuration of its design space. What does not compile is told, not kept."""
    from fasttrack_validation.judge import pack_file

    parts = services.default()
    directory = model_dir.load(model)
    contract, space = parts.contract(directory.manifest.model.contract), directory.space(op)
    if space is None:
        raise UserError(f"op {op!r} of {model} declares no design space", "record one candidate with --candidate")
    out.mkdir(parents=True, exist_ok=True)
    table = [entry.config for entry in directory.table(op).entry]
    configs = [*(c for c in space.configurations() if c not in table), *(dict(c) for c in _distinct(table))]
    facts = []
    with parts.judge(contract, unsafe_no_sandbox, "cpu") as judge:
        for config in configs:
            whole = not workloads or config in table
            recorded = judge.record(directory.candidate(op, config), None if whole else workloads, unseen)
            path = out / f"{recorded.candidate.digest()[:16]}.pack"
            why = recorded.stopped[0].message if recorded.stopped else None
            size = 0 if why else pack_file.write(recorded, path)
            facts.append({"file": str(path), "bytes": size, "config": config, "not_kept": why})
            if not as_json:
                print(f"not kept: {canonical_json(config)}: {why}" if why else f"{path}: {canonical_json(config)}", flush=True)
    if as_json:
        print(json.dumps(facts, indent=2))
    raise typer.Exit(0)


def _distinct(configs: "Sequence[Config]") -> "list[Config]":
    return [config for number, config in enumerate(configs) if config not in configs[:number]]


def pack_files(paths: Sequence[Path]) -> tuple[Path, ...]:
    """The files that `paths` name, those of directories among them."""
    return tuple(file for path in paths for file in (sorted(path.glob("*.pack")) if path.is_dir() else [path]))


def _candidate(
    parts: lane.Services, model: str, op: str, path: Path, config: str | None
) -> "tuple[ModelContract, Candidate]":
    """The model's contract, and a candidate for one of its ops with the design space's defaults."""
    directory = model_dir.load(model)
    contract = parts.contract(directory.manifest.model.contract)
    contract.op(op)
    candidate = with_defaults(Candidate.from_path(path, op, parsed_config(config)), directory, op)
    if path.is_file() and op in directory.manifest.ops:
        # A file alone stands for the op's entry file: what that imports of the op's other files comes along.
        candidate = directory.place(candidate)
    return contract, candidate


def _answer(
    judged: dict[str, object], identity: dict[str, object], rule: Callable[[], Verdict], *, fresh: bool, as_json: bool
) -> NoReturn:
    """The verdict that is kept, or that of `rule`, which is kept the moment it is known."""
    folder, name = storage.verdict_cache(), verdict_cache.key(judged, identity)
    if not fresh and (kept := verdict_cache.read(folder, name)) is not None:
        _rule(kept, as_json, cached=True)
    verdict = rule()
    if verdict_cache.keeps(verdict, identity["timed_on"]):
        try:
            verdict_cache.write(folder, name, verdict)
        except UserError as error:  # the verdict stands without it
            print(f"the verdict is not kept: {error.what}", file=sys.stderr)
    _rule(verdict, as_json)


def _rule(verdict: Verdict, as_json: bool, *, cached: bool = False) -> NoReturn:
    if as_json:
        print(json.dumps({"cached": cached, **verdict.model_dump(mode="json")}, indent=2))
    else:
        again = ["  from the cache of verdicts; `--fresh` judges again"] if cached else []
        print("\n".join([*verdict_lines(verdict), *again]))
    raise typer.Exit(STATUS_CODE[verdict.status])


def doctor(pins: Path | None, *, as_json: bool) -> NoReturn:
    """Prints every check, or those of versions alone."""
    from . import doctor as checks

    lines = checks.examine() if pins is None else checks.versions(pins)
    if as_json:
        print(json.dumps([asdict(line) for line in lines], indent=2))
    else:
        for line in lines:
            print(f"{line.state:4} {line.name}: {line.what}")
            if line.state != "ok":
                print(f"     {line.how}")
    raise typer.Exit(checks.exit_code(lines))


def models(*, as_json: bool) -> None:
    """Prints the models of the checkout, or of the installed package."""
    checkout = model_dir.find_checkout(Path.cwd())
    names = model_dir.model_names(checkout / "models" if checkout else model_dir.installed_models())
    manifests = [model_dir.load(name).manifest.model for name in names]
    if as_json:
        print(json.dumps([manifest.model_dump(mode="json") for manifest in manifests], indent=2))
        return
    for manifest in manifests:
        print(f"{manifest.name}: {manifest.title} (owner {manifest.owner}, review by {manifest.review_by})")


def ops(model: str, *, as_json: bool) -> None:
    """Prints the ops of a model with kernels and workloads."""
    directory = model_dir.load(model)
    contract = services.contract(directory.manifest.model.contract)
    found = {
        name: {"kernels": list(op.kernels), "workloads": [workload.name for workload in contract.op(name).workloads()]}
        for name, op in directory.manifest.ops.items()
    }
    if as_json:
        print(json.dumps(found, indent=2))
        return
    for name, op in found.items():
        print(f"{name}: {', '.join(op['kernels'])}\n  workloads: {', '.join(op['workloads'])}")


def _only_op(model: str) -> str:
    names = sorted(model_dir.load(model).manifest.ops)
    if len(names) > 1:
        raise UserError(f"{model} has several ops: {', '.join(names)}", "choose one with --op")
    return names[0]


def with_defaults(candidate: Candidate, directory: model_dir.ModelDirectory, op: str) -> Candidate:
    """The candidate with the design space's default for every parameter that its configuration leaves open.

    A contract judges ops, and parts of its graph, that the model directory has no kernels for yet.
    """
    space = directory.space(op) if op in directory.manifest.ops else None
    if space is None:
        return candidate
    return candidate.model_copy(update={"config": {**space.default, **candidate.config}})


def parsed_config(text: str | None) -> "Config | None":
    """The value of `--config`. Raises UserError for anything but a flat JSON object of plain values."""
    if text is None:
        return None
    how = """give a flat JSON object, such as --config '{"num_warps": 4}'"""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"--config is not JSON: {error}", how) from error
    plain = isinstance(value, dict) and all(isinstance(item, bool | int | float | str) for item in value.values())
    if not plain or not json.dumps(value, ensure_ascii=False).isprintable() or any(
        isinstance(item, float) and not math.isfinite(item) for item in value.values()
    ):
        raise UserError("--config is not an object of booleans, finite numbers and printable strings", how)
    return value


def end(outcome: lane.Outcome, as_json: bool) -> NoReturn:
    if as_json:
        print(outcome.model_dump_json(indent=2))
    else:
        out = sys.stdout if outcome.exit_code == 0 else sys.stderr
        print(outcome.message, file=out)
        for note in outcome.notes:
            print(f"  {note}", file=out)
        for name in ("branch", "report", "body"):
            if getattr(outcome, name):
                print(f"{name}: {getattr(outcome, name)}", file=out)
    raise typer.Exit(outcome.exit_code)


def verdict_lines(verdict: Verdict) -> list[str]:
    """A verdict as text: status and reason, then what was and was not checked."""
    reason = f" ({verdict.reason})" if verdict.reason else ""
    lines = [f"{verdict.status}{reason}: {verdict.op}, candidate {verdict.candidate_digest[:12]}"]
    if verdict.message:
        lines.append(verdict.message)
    lines += [
        f"  {check.check} {check.title}: {check.outcome}{f': {check.message}' if check.message else ''}"
        for check in verdict.checks
        if check.outcome is not Outcome.PASS
    ]
    passed = sum(check.outcome is Outcome.PASS for check in verdict.checks)
    lines.append(f"  {passed} of {len(verdict.checks)} checks passed; {verdict.executor}; {verdict.sandbox}")
    ran = sorted({result.axes["rows"] for result in verdict.workloads if "rows" in result.axes})
    if verdict.status is Status.ACCEPTED:
        lines.append(f"  screened with {', '.join(map(str, ran))} rows; `submit` confirms every batch bucket and runs the gate")
    if verdict.notes:
        lines.append("  notes for a reader of the files; they decide nothing:")
        lines += [f"    {note.file}:{note.line} {note.what}: {note.text!r}" for note in verdict.notes]
    for reason, cells in _by_reason(verdict).items():
        lines.append(f"  {len(cells)} cells {reason}")
        lines += [f"    {name}: {time}" for name, time in cells if time]
    return lines


def _measured(timed: TimedCell) -> str:
    """A measured cell in a line: time with its interval, the stock path's beside it, and both floors."""
    cell, timing = timed.cell, timed.timing
    text = f"{cell.microseconds:.2f} us [{cell.low:.2f}, {cell.high:.2f}]"
    if timing is None:
        return text
    found = timing.comparison
    return (
        f"{text}, {timing.launches} launches; stock {timing.stock.microseconds:.2f} us, {timing.stock_launches}; ratio "
        f"{found.ratio:.2f} [{found.low:.2f}, {found.high:.2f}], {found.standing}; floors: target "
        f"{timing.target_floor_us:.2f}, physical {timing.physical_floor_us:.2f} us"
    )


def _by_reason(verdict: Verdict) -> dict[str, list[tuple[str, str]]]:
    """What the cells say, said once; (place, estimate or measurement) of each."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for timed in verdict.cells:
        cell, place = timed.cell, f"{timed.hardware}/{timed.workload}"
        if cell.kind == "measured":
            groups.setdefault("measured", []).append((place, _measured(timed)))
        else:
            estimate = f"modelled, not measured: {cell.modelled.microseconds:.2f} us" if cell.modelled else ""
            groups.setdefault(f"not measured: {cell.reason}", []).append((place, estimate))
    return groups
