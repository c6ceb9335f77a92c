"""propose(): from a model directory to a branch with a better one, its evidence and its report."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fasttrack_validation.claims.cells import NotMeasured
from fasttrack_validation.errors import UserError
from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.judge.verdict import Status
from fasttrack_validation.records import Frozen

from . import dispatch, model_dir, packed, picks, rounds, workspace
from .agents import choice, floor
from .agents import ledger as request_ledger
from .agents import settings as chat_settings
from .agents.protocol import Proposal
from .agents.scripted import read_transcript, render_transcript
from .archive import Archive, Request, find_run, new_run_id
from .package import Baseline, Bundle, Document, Gate, Packager
from .selection import Judged, select
from .storage import runs_directory, write_file
from .voice import Voice

if TYPE_CHECKING:
    from fasttrack_validation.contracts import ModelContract
    from fasttrack_validation.contracts.base import OpContract

    from .agents.external import External

PASS, FAIL, INCONCLUSIVE, NOTHING = 0, 1, 3, 4


@dataclass(frozen=True)
class Options:
    """What a person asks for. `submitted` makes it a lane of that candidate, agent `single` one of the packs."""

    model: str
    op: str
    checkout: Path | None = None
    agent: str = "auto"
    rounds: int = 12
    budget_minutes: float = 5.0
    seed: int | None = None
    hardware: tuple[str, ...] = ("auto",)
    workloads: tuple[str, ...] = ()
    """Declared workloads to search at; elsewhere the table's entries go on. Empty: all"""
    branch: str | None = None
    transcript: Path | None = None
    submitted: Candidate | None = None
    packs: tuple[Path, ...] = ()
    """Records to rule on in place of recording: those that are submitted, or those that a search may draw from"""
    chat: chat_settings.ChatOptions = chat_settings.ChatOptions()
    external: "External | None" = None
    """What serves the tools to an agent outside, for agent external"""
    device: str = "auto"
    unsafe_no_sandbox: bool = False
    dry_run: bool = False


@dataclass(frozen=True)
class Services:
    """The parts that the lane drives: exams, judge, writers and gate."""

    contract: "Callable[[str], ModelContract]"
    judge: "Callable[..., AbstractContextManager[rounds.Judging]]"
    """(contract, unsafe_no_sandbox, device)"""
    packager: Packager
    gate: Gate
    why_no_timing: Callable[[], str]
    check_policy: Callable[[Path, str, str, str], None]
    """(checkout, base, contract, op): raises UserError where the running judge is not the one of the base."""


class Outcome(Frozen):
    """What became of a run."""

    exit_code: int
    message: str
    run: str | None = None
    directory: str | None = None
    branch: str | None = None
    commit: str | None = None
    report: str | None = None
    body: str | None = None
    rounds: int = 0
    stopped: str | None = None
    notes: tuple[str, ...] = ()
    bill: request_ledger.Bill | None = None


def propose(options: Options, services: Services, voice: Voice) -> Outcome:
    """Runs the whole lane for one op. Raises UserError where the tree or the tools are not in order."""
    agent = "single" if options.submitted else options.agent
    agent, why = choice.choose(agent, options.transcript, options.chat, len(options.packs))
    voice.say(f"agent {agent}: {why}")
    directory = model_dir.load(options.model, options.checkout, need_checkout=True)
    contract = services.contract(directory.manifest.model.contract)
    request = _request(options, directory, contract, services, agent, why)
    recorded = packed.candidates(options.packs, options.op)
    scripted = choice.scripted_proposals(
        directory, options.op, transcript=options.transcript, submitted=options.submitted,
        packed=recorded if agent == "single" else (),
    )  # fmt: skip
    if scripted is None:  # refuses now, not after the worktree is made
        choice.check(agent, directory, options.op, options.external, recorded)
    if recorded:
        op, buckets = contract.op(options.op), directory.buckets(contract.op(options.op))
        table, everywhere = [entry.config for entry in directory.table(options.op).entry], {b.workload for b in buckets}
        asked = {bucket.workload for bucket in _asked(request, buckets)}
        packed.check(options.packs, op, asked, everywhere, table)
    workspace.check_branch(directory.checkout, request.branch)
    if dirty := workspace.changed_paths(directory.checkout, "."):
        shown = ", ".join(dirty[:3]) + (f" and {len(dirty) - 3} more" if len(dirty) > 3 else "")
        voice.say(f"note: the checkout has uncommitted changes ({shown}); they are neither used nor touched: "
                  f"the run starts from the commit {request.base[:12]}")  # fmt: skip
    runs = runs_directory(directory.checkout)
    if options.dry_run:
        count = f"up to {request.rounds if scripted is None else len(scripted)} candidates"
        plan = f"would judge {count} for {options.model}/{options.op}, then commit the picks"
        voice.say(f"{plan} to the new branch {request.branch} from {request.base[:12]}; run directory under {runs}")
        return Outcome(exit_code=PASS, message=plan, branch=request.branch)
    text = None if scripted is None else render_transcript(scripted)
    with Archive.create(runs, request, text) as archive:
        packed.keep(options.packs, archive.directory)
        voice.say(f"run {request.run} in {archive.directory}")
        return _run(archive, directory, services, voice, resumed=False, external=options.external)


def resume(
    model: str, op: str | None, run: str | None, checkout: Path | None, services: Services, voice: Voice,
    external: "External | None" = None,
) -> Outcome:  # fmt: skip
    """Goes on with an unfinished run, by default the latest: no finished evaluation is repeated or lost."""
    directory = model_dir.load(model, checkout, need_checkout=True)
    with Archive(find_run(runs_directory(directory.checkout), run, model=model, op=op)) as archive:
        request = archive.request
        if request.model != model or op not in (None, request.op):
            raise UserError(f"run {request.run} is on {request.model}/{request.op}", "name that model and op")
        voice.say(f"agent {request.agent}: {request.why_agent}")
        if archive.finished:
            return Outcome(
                exit_code=archive.finished.exit_code, message=f"run {request.run} is over: {archive.finished.message}",
                run=request.run, directory=str(archive.directory),
            )  # fmt: skip
        if archive.torn:
            voice.say(f"note: the ledger ended in an unfinished record of {archive.torn} bytes; it was cut off")
        voice.say(f"run {request.run} goes on after {len(archive.screened())} rounds in {archive.directory}")
        if not request.scripted:
            choice.check(request.agent, directory, request.op, external, _recorded(archive))
        return _run(archive, directory, services, voice, resumed=True, external=external)


def _request(
    options: Options, directory: model_dir.ModelDirectory, contract: "ModelContract", services: Services, agent: str,
    why: str,
) -> Request:
    """Step 1: everything that can be refused without running anything is refused here."""
    directory.check_contract(contract)
    directory.table(options.op)
    contract.op(options.op)
    base = workspace.head(directory.checkout)
    services.check_policy(directory.checkout, base, directory.manifest.model.contract, options.op)
    known = sorted({entry.hardware for entry in directory.manifest.envelope})
    hardware = tuple(known) if "auto" in options.hardware else tuple(sorted(set(options.hardware)))
    for name in hardware:
        if name not in known:
            what = f"hardware {name!r} is not in the envelope of {options.model}"
            raise UserError(what, f"it has {', '.join(known)}")
    buckets = directory.buckets(contract.op(options.op))
    known = sorted({bucket.workload for bucket in buckets if bucket.hardware in hardware})
    if missing := [name for name in options.workloads if name not in known]:
        raise UserError(f"no place of {options.op} is judged at {missing[0]!r}", f"it has {', '.join(known)}")
    run = new_run_id()
    seed = secrets.randbits(56) if options.seed is None else options.seed
    return Request(
        run=run, model=options.model, op=options.op, agent=agent, why_agent=why, rounds=options.rounds,
        budget_minutes=options.budget_minutes, seed=seed, hardware=hardware,
        workloads=tuple(dict.fromkeys(options.workloads)),
        branch=options.branch or f"fasttrack/{options.model}/{options.op}/{run}",
        base=base, scripted=agent in ("single", "replay"),
        unsafe_no_sandbox=options.unsafe_no_sandbox, device=options.device, packed=bool(options.packs),
        chat=chat_settings.resolve(options.chat) if agent == "chat" else None,
    )  # fmt: skip


def _run(
    archive: Archive, directory: model_dir.ModelDirectory, services: Services, voice: Voice, *, resumed: bool,
    external: "External | None",
) -> Outcome:  # fmt: skip
    """Steps 2 to 8 between a lock taken and a lock given back."""
    request = archive.request
    tree = workspace.Worktree(
        directory.checkout, archive.directory / "worktree", request.branch, request.base, request.run
    )
    keep_branch = False
    try:
        tree.open(resumed=resumed)
        outcome = _work(archive, tree, services, voice, external)
        if request.chat is not None:
            outcome = outcome.model_copy(update={"bill": request_ledger.bill(request_ledger.read(archive.directory))})
        archive.finish(outcome.exit_code, outcome.message)
        keep_branch = outcome.commit is not None
        return outcome
    except KeyboardInterrupt:
        resume_with = f"fasttrack propose {request.model} --resume {request.run}"
        return Outcome(
            exit_code=INCONCLUSIVE, message=f"stopped; nothing finished is lost. Go on with: {resume_with}",
            run=request.run, directory=str(archive.directory), rounds=len(archive.screened()), stopped="interrupted",
        )  # fmt: skip
    finally:
        tree.remove(branch=not keep_branch)


def _work(
    archive: Archive, tree: workspace.Worktree, services: Services, voice: Voice, external: "External | None"
) -> Outcome:
    request = archive.request
    # From here on the model directory is the one of the base commit, whatever happens in the user's checkout.
    directory = model_dir.load(request.model, tree.directory, need_checkout=True)
    contract = services.contract(directory.manifest.model.contract)
    op = contract.op(request.op)
    buckets = directory.buckets(op)
    table = directory.table(request.op)
    sources = directory.sources_digest(request.op)
    asked = _asked(request, buckets)

    no_timing = services.why_no_timing()
    baselines = tuple(_baseline(op, bucket, no_timing) for bucket in asked)
    floors = {(b.bucket.hardware, b.bucket.workload): b.floor_microseconds for b in baselines}
    for line in _show(baselines):
        voice.say(line)

    scripted = None
    if request.scripted:
        scripted = read_transcript(archive.directory / "proposals.jsonl", request.op)
    around = choice.Surroundings(
        run=archive.directory, buckets=asked, floors=floors, seed=request.seed, rounds=request.rounds,
        hardware=request.hardware, chat=request.chat, external=external, judging_seconds=lambda: archive.seconds,
        say=voice.say, recorded=None if request.scripted else _recorded(archive),
    )  # fmt: skip
    with (
        services.judge(contract, request.unsafe_no_sandbox, request.device) as judge,
        choice.seated(request.agent, directory, op, around, scripted) as proposer,
    ):
        if request.packed:
            judge = packed.Packed(judge, packed.of_run(archive.directory))
        history, stopped = rounds.run(archive, proposer, judge, asked, floors, voice)
        write_file(archive.directory / "transcript.jsonl", render_transcript(e.proposal for e in history).encode())
        voice.say(f"{len(history)} rounds: {stopped}; confirming the picks at every batch bucket")

        judged = [Judged(evaluation.proposal.candidate, evaluation.verdict) for evaluation in history]
        selections = select(judged, buckets, table, sources, request.hardware)
        timed = {bucket.workload for bucket in asked}

        def confirm(candidate: Candidate, workloads: tuple[str, ...]):
            proposal = Proposal(candidate, "confirmation")
            return archive.evaluate(
                "confirm", proposal, workloads, lambda: judge.confirm(candidate, workloads, timed)
            )

        # In the name of a submission nothing but the submission may be proposed.
        refused = request.agent == "single" and history and history[0].verdict.status is not Status.ACCEPTED
        settled = () if refused else picks.settle(selections, buckets, table, sources, confirm)
    common = {"run": request.run, "directory": str(archive.directory), "rounds": len(history), "stopped": stopped}
    if not isinstance(settled, picks.Settled):
        if refused:
            judged = judged[:1]
        return Outcome(**common, **_nothing_picked(judged, selections, settled, stopped))

    bundle = Bundle(
        request=request, directory=directory, contract=contract, baselines=baselines, evaluations=tuple(history),
        stopped=stopped, dropped=settled.dropped, picks=settled.picks, table_before=table, author=tree.author(),
        base_files=frozenset(p.relative_to(directory.path).as_posix() for p in directory.path.rglob("*") if p.is_file()),
        seconds=archive.seconds, bill=_bill(archive), agent_model=_model(archive),
    )  # fmt: skip
    if bundle.author[1]:
        voice.say(f"note: no git identity is configured; the commit is by {bundle.author[0]} and cannot leave draft")
    report, evidence, written = _write(bundle, settled, buckets, services.packager, archive.directory)
    commit = tree.commit(_message(bundle), f"models/{request.model}")
    if commit is None:
        message = "the picks are those of the tree; there is nothing to propose"
        return Outcome(**common, exit_code=NOTHING, message=message)
    gated = services.gate(directory.checkout, request.base, commit, request.model)
    if gated.exit_code:
        return Outcome(**common, exit_code=gated.exit_code, message="the gate refuses the change", notes=gated.reasons)
    draft = services.packager.pull_request(bundle, evidence, written, commit, gated)
    body = archive.directory / "pull_request.md"
    write_file(body, f"{draft.title}\n\n{draft.body}".encode())
    return Outcome(
        **common, exit_code=PASS, message=f"proposed on branch {request.branch}", branch=request.branch, commit=commit,
        report=str(report), body=str(body), notes=settled.dropped,
    )  # fmt: skip


def _write(
    bundle: Bundle, settled: picks.Settled, buckets: Sequence[model_dir.Bucket], packager: Packager, run: Path
) -> tuple[Path, Document, tuple[Document, ...]]:
    """Kernels, evidence, dispatch table and report into the worktree; the report into the run directory as well.

    Returns the page, the evidence, and the files beside the report that differ from the base.
    """
    root, op = bundle.directory.path, bundle.directory.manifest.op(bundle.request.op)
    evidence = packager.evidence(bundle)
    table = picks.new_table(settled, buckets, bundle.table_before, evidence.path)
    dispatch.check_cover(table, bundle.directory.envelope, root / op.dispatch)
    files = [Document(name, text) for name, text in settled.sources.items()]
    files += [Document(op.dispatch, dispatch.render(table)), evidence]
    written = tuple(file for file in files if not _stands(root / file.path, file.text))
    for document in written:
        write_file(root / document.path, document.text.encode())
        write_file(run / document.path, document.text.encode())
    report = packager.report(bundle, evidence, written)
    for document in report:
        write_file(root / document.path, document.text.encode())
        write_file(run / document.path, document.text.encode())
    return run / report[0].path, evidence, written


def _asked(request: Request, buckets: Sequence[model_dir.Bucket]) -> list[model_dir.Bucket]:
    """The places that the run is about."""
    return [
        bucket for bucket in buckets
        if bucket.hardware in request.hardware and (not request.workloads or bucket.workload in request.workloads)
    ]  # fmt: skip


def _recorded(archive: Archive) -> tuple[Candidate, ...] | None:
    """The candidates of the run's packs; None where candidates are recorded as they come."""
    return packed.kept(archive.directory, archive.request.op) if archive.request.packed else None


def _bill(archive: Archive) -> str | None:
    """What a chat run's requests have cost, in words."""
    if archive.request.chat is None:
        return None
    return str(request_ledger.bill(request_ledger.read(archive.directory)))


def _model(archive: Archive) -> str | None:
    """The model that wrote the candidates, as its server calls it."""
    if archive.request.chat is None:
        return None
    events = request_ledger.read(archive.directory)
    named = [event.answer.model for event in events if isinstance(event, request_ledger.Answered) and event.answer.model]
    return named[-1] if named else archive.request.chat.model


def _stands(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode()


def _message(bundle: Bundle) -> str:
    request = bundle.request
    title = f"{request.model}: {request.op} for {', '.join(request.hardware)}"
    candidates = "".join(f"Fasttrack-Candidate: {pick.candidate.digest()}\n" for pick in bundle.picks)
    return (
        f"{title}\n\n{len(bundle.evaluations)} candidates judged by {request.agent}; {bundle.stopped}.\n\n"
        f"Fasttrack-Model: {request.model}\nFasttrack-Op: {request.op}\nFasttrack-Agent: {request.agent}\n"
        f"{workspace.RUN_TRAILER}: {request.run}\n{candidates}"
    )


def _nothing_picked(judged: list[Judged], selections: list, dropped: tuple[str, ...], stopped: str) -> dict:
    if not judged:
        return {"exit_code": NOTHING, "message": f"no candidate accepted: none was written; {stopped}"}
    verdicts = [one.verdict for one in judged]
    if any(verdict.status is Status.ACCEPTED for verdict in verdicts):
        if selections:
            return {"exit_code": FAIL, "message": "no accepted candidate was confirmed", "notes": dropped}
        message = "no accepted candidate may replace an entry of the dispatch table: a measured entry stands"
        return {"exit_code": NOTHING, "message": message}
    if verdicts and all(verdict.status is Status.REJECTED for verdict in verdicts):
        reasons = tuple(sorted({f"{verdict.reason}: {verdict.message}" for verdict in verdicts}))
        return {"exit_code": FAIL, "message": "no candidate accepted: every one was rejected", "notes": reasons}
    reasons = tuple(sorted({f"{verdict.status}: {verdict.message}" for verdict in verdicts}))
    message = "the judge accepted nothing and could not rule on all"
    return {"exit_code": INCONCLUSIVE, "message": message, "notes": reasons}


def _baseline(op: "OpContract", bucket: model_dir.Bucket, no_timing: str) -> Baseline:
    workload = next(workload for workload in op.workloads() if workload.name == bucket.workload)
    total = op.cost(workload).bytes
    bound = floor.floor_microseconds(total, bucket.hardware) if bucket.hardware in floor.CARDS else None
    return Baseline(bucket, total, bound, NotMeasured(reason=no_timing))


def _show(baselines: Sequence[Baseline]) -> Iterator[str]:
    """One line for each card and TP: how far down each batch bucket could go."""
    groups: dict[tuple[str, int], list[Baseline]] = {}
    for baseline in baselines:
        groups.setdefault((baseline.bucket.hardware, baseline.bucket.tp), []).append(baseline)
    for (hardware, tp), members in groups.items():
        if all(one.floor_microseconds is not None for one in members):
            cells = ", ".join(f"{one.bucket.rows[1]}: {one.floor_microseconds:.2f}" for one in members)
            yield f"  {hardware} TP{tp}: floor at datasheet bandwidth, us by rows: {cells}"
    for reason in dict.fromkeys(one.stock.reason for one in baselines):
        yield f"  stock path not measured: {reason}"
