"""The prompt of a round, within a token budget: contract first, then what is known, then sources as far as they fit."""

from collections.abc import Sequence

from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.judge.verdict import Status

from . import bench as benches
from . import briefing, lineage
from .metered import estimate
from .protocol import Evaluation
from .tools import TOOLS, description

# Attempts that are listed, and the share of what is left that sources may take, from generous to bare.
_LEVELS = ((24, 1.0), (12, 1.0), (6, 0.8), (3, 0.6), (1, 0.3), (0, 0.1))


def build(
    bench: "benches.Workbench", history: Sequence[Evaluation], draw: lineage.Draw, *, tools: bool, left: str,
    rounds_left: int, budget: int,
) -> list[dict[str, str]]:  # fmt: skip
    """System and user message of at most `budget` tokens (estimated).

    Where even the barest form is larger than that, the barest form is what comes back: a contract is not shortened.
    """
    listed = [f"`{name}`({', '.join(tool.model_fields)}): {description(tool)}" for name, tool in TOOLS.items()]
    system = _render("prompt_system", tools=tools, entry=bench.directory.manifest.op(bench.op).kernels[0],
                     listed=listed, interface=briefing.interface())  # fmt: skip
    messages: list[dict[str, str]] = []
    for attempts, share in _LEVELS:
        fixed = _user(bench, history, draw, left, rounds_left, attempts, 0)
        room = budget - estimate([_system(system), {"role": "user", "content": fixed}])
        # Three bytes a token, as estimated; both sources share the room, and fences take some of it.
        characters = int(max(0, room) * 3 * share) - 400
        messages = [
            _system(system),
            {"role": "user", "content": _user(bench, history, draw, left, rounds_left, attempts, max(0, characters))},
        ]
        if estimate(messages) <= budget and characters > 2000:
            break
    return messages


def _user(
    bench: "benches.Workbench", history: Sequence[Evaluation], draw: lineage.Draw, left: str, rounds_left: int,
    attempts: int, characters: int,
) -> str:  # fmt: skip
    parent = draw.parent.proposal.candidate if draw.parent else bench.tree
    failed = draw.failed.proposal.candidate if draw.failed else None
    share = characters // (2 if failed else 1)
    own = lineage.originals(history)
    best = min((e for e in own if e.objective is not None), key=lambda e: e.objective, default=None)
    bucket = draw.bucket
    return _render(
        "prompt_round", contract=briefing.contract(bench), judged=len(history), shown=min(attempts, len(history)),
        accepted=sum(e.verdict.status is Status.ACCEPTED for e in history), left=left, rounds_left=rounds_left,
        # Notes, names of kernels, and messages that repeat what a candidate has printed are others' text: quoted.
        attempts=briefing.quoted(bench.told(attempts)) if attempts and history else "",
        best=best and briefing.quoted(benches.attempt_line(list(history).index(best), best)),
        parent_times=briefing.quoted(benches.times_table(draw.parent.verdict, bench.floors)) if draw.parent and attempts else "",
        launches=briefing.quoted(benches.profile(draw.parent.verdict, bench)) if draw.parent and attempts > 3 else "",
        failed=failed and _sources(failed, share, bench.tree if failed.files.keys() == bench.tree.files.keys() else None),
        failed_ruling=draw.failed and briefing.quoted(benches.ruling(draw.failed.verdict)[:4000]),
        parent_name="What the tree has" if draw.parent is None else f"Candidate {parent.digest()[:12]}",
        parent_config=briefing.quoted(briefing.config(parent)), parent=_sources(parent, share, None),
        bucket=bucket and f"{bucket.rows[0]} to {bucket.rows[1]} rows at TP {bucket.tp} on {bucket.hardware}",
    )  # fmt: skip


def _sources(candidate: Candidate, characters: int, known: Candidate | None) -> str:
    """The files, the entry first, as far as they fit; files equal to those of `known` are only named."""
    names = sorted(candidate.files, key=lambda name: (name != candidate.entry, name))
    parts, room = [], characters
    for name in names:
        text = candidate.files[name]
        if known is not None and name != candidate.entry and known.files.get(name) == text:
            parts.append(f"`{name}`: as in the tree")
            continue
        shown = text
        while shown and len(shown.encode()) > max(0, room):
            shown = shown[: max(0, min(len(shown) - 1, len(shown) * max(0, room) // len(shown.encode())))]
        room -= len(shown.encode())
        cut = (
            ""
            if shown == text
            else f"\n({len(text) - len(shown)} of {len(text)} characters left out; `read_candidate` shows all)"
        )
        parts.append(f"`{name}`:\n\n{briefing.quoted(shown)}{cut}" if shown or not text else f"`{name}`: {cut.strip()}")
    return "\n\n".join(parts)


def _system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


def _render(name: str, **values: object) -> str:
    from ..report.render import environment

    return environment().get_template(f"{name}.md.j2").render(**values).strip() + "\n"
