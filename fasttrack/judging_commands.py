"""What `record`, `evaluate` and `confirm` do: a candidate, or what stands in the tree, through the judge alone."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from fasttrack_validation.errors import UserError
from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.judge.verdict import Verdict
from fasttrack_validation.records import canonical_json

from . import confirm as standing
from . import lane, model_dir, packed, services, storage, verdict_cache
from .commands import pack_files, parsed_config, with_defaults
from .verdict_text import STATUS_CODE, verdict_lines
from .voice import Voice

if TYPE_CHECKING:
    from fasttrack_validation.contracts import ModelContract
    from fasttrack_validation.judge.judge import Judge

    from .dispatch import Config


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


def record_tables(
    model: str, ops: Sequence[str], hardware: Sequence[str], out: Path, *, unseen: int, unsafe_no_sandbox: bool,
    as_json: bool,
) -> NoReturn:  # fmt: skip
    """Records what dispatch tables name, each at the places where they do. What is recorded already stays."""
    parts = services.default()
    directory = model_dir.load(model)
    contract, ops = parts.contract(directory.manifest.model.contract), tuple(ops) or tuple(directory.manifest.ops)
    standing.require_known(directory, ops, hardware)
    out.mkdir(parents=True, exist_ok=True)
    facts, failed = [], False
    with parts.judge(contract, unsafe_no_sandbox, "cpu") as judge:
        for op in ops:
            for one in standing.standing(directory, op, contract.op(op), hardware):
                path = out / f"{one.candidate.digest()[:16]}.pack"
                why = _record_standing(judge, one, path, unseen)
                failed |= why is not None
                facts.append({"file": str(path), "op": op, "config": one.candidate.config, "workloads": one.workloads, "not_kept": why})
                if not as_json:
                    said = f"{op}, {canonical_json(one.candidate.config)}, {len(one.workloads)} places"
                    print(f"not kept: {said}: {why}" if why else f"{path}: {said}", flush=True)
    print(json.dumps(facts, indent=2) if as_json else f"judge them: `fasttrack confirm {model} --pack {out}`")
    raise typer.Exit(1 if failed else 0)


def _record_standing(judge: "Judge", one: standing.Standing, path: Path, unseen: int) -> str | None:
    """Why there is no record of it; None where there is one, of this contract and judge, now or from before."""
    from fasttrack_validation.judge import pack_file

    identity = judge.identity(one.candidate.op)
    if path.exists():
        try:
            kept = pack_file.read(path)
            if (kept.contract_digest, kept.judge_digest) == (identity["contract"], identity["judge"]):
                return None
        except UserError:  # cut off, or of an older form
            pass
    recorded = judge.record(one.candidate, one.workloads, unseen)
    if recorded.stopped:
        return recorded.stopped[0].message
    pack_file.write(recorded, path)
    return None


def confirm(
    model: str, ops: Sequence[str], hardware: Sequence[str], packs: Sequence[Path], out: Path | None, *, device: str,
    fresh: bool, unsafe_no_sandbox: bool, as_json: bool,
) -> NoReturn:  # fmt: skip
    """Judges what dispatch tables name, and keeps statements as evidence."""
    directory = model_dir.load(model, need_checkout=out is None)
    parts = services.default(records=not packs)
    contract, ops = parts.contract(directory.manifest.model.contract), tuple(ops) or tuple(directory.manifest.ops)
    standing.require_known(directory, ops, hardware)
    voice, done = Voice(quiet=as_json), []
    with parts.judge(contract, unsafe_no_sandbox, device) as judge:
        ruling = packed.Packed(judge, packed.by_candidate(pack_files(packs))) if packs else judge
        for one in standing.confirm(
            directory, contract, ops, hardware, ruling, services.statement, out or directory.path, fresh=fresh, say=voice.say
        ):  # fmt: skip
            done.append(one)
            if not as_json:
                print("\n".join(_confirmed_lines(one)), flush=True)
    if not done:
        raise UserError(f"no dispatch table of {', '.join(ops)} names anything on {', '.join(hardware)}", f"`fasttrack ops {model}` lists the ops")
    if as_json:
        print(json.dumps([asdict(one) for one in done], indent=2))
    raise typer.Exit(max(STATUS_CODE[one.status] for one in done))


def _confirmed_lines(one: standing.Confirmed) -> list[str]:
    times = ", ".join(f"{place} {'not measured' if us is None else f'{us:.2f} us'}" for place, us in one.places.items())
    return [f"{one.status}: {one.op} ({one.seconds:.1f} s): {one.message}", *([f"  {times}"] if times else [])]


def _distinct(configs: "Sequence[Config]") -> "list[Config]":
    return [config for number, config in enumerate(configs) if config not in configs[:number]]


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
