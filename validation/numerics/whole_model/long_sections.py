"""What the long rung consists of: many steps, and attention over each of the long contexts; each is kept as soon as it is there."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ...records import Frozen
from . import long_attention, long_rung
from .cards import CPU, CUDA
from .lines import Lines
from .plan import Settings
from .tokens import CANDIDATE, ORACLE, STOCK
from .verdict import LONG_TP


class Section(Frozen):
    """Points of the long rung that are computed together."""

    name: str
    points: tuple[long_rung.Point, ...]


Sections = dict[str, Callable[[], list[long_rung.Point]]]
"""Name -> what computes its points"""
Say = Callable[[int], None]
"""Steps done"""
STEPS = "steps"


def plain(settings: Settings, fault: Any, say: Say, states: Path | None = None) -> Sections:
    """State and output by decade of steps, context by position; the candidate is the plain path, or its fault.

    `states`: a directory for what steps need to be gone on with.
    """
    from ...contracts.kimi_k3.numerics import long_state
    from ...contracts.kimi_k3.step.precision import PUBLISHED

    def steps(drift: Any, paths: dict[str, Any]) -> Any:
        core = fault.core if fault and fault.core else None
        return paths | {CANDIDATE: drift.path(PUBLISHED, core) if core else drift.again(99)}

    mistake = fault.mistake if fault and fault.op == "mla_core" else None

    def candidate(op: Any, at: Any, inputs: Any) -> Any:
        if mistake:
            return op.hypotheses[mistake](inputs, at)["context"].bfloat16()
        other, values = long_state.reordered(at, inputs, 99)
        return op.plain(values, other)["context"]

    return {
        STEPS: lambda: _stepped(settings, CPU, steps, lambda marks: {}, say, states),
        **_attended(settings, candidate),
    }


def on_a_gpu(settings: Settings, arm: Any, say: Say, states: Path | None = None) -> Sections:
    """The same of the kernels in `arm`: what is given to them is drawn on both sides of the pipe."""

    def own(marks: Sequence[int]) -> Any:
        kept = states / f"{CANDIDATE}.safetensors" if states else None
        return arm.long_state(settings.seed, LONG_TP, settings.steps, marks, kept)

    def candidate(op: Any, at: Any, inputs: Any) -> Any:
        return arm.op("mla_core", at, inputs, true_widths=True)["context"]

    return {
        STEPS: lambda: _stepped(settings, CUDA, lambda drift, paths: paths, own, say, states),
        **_attended(settings, candidate),
    }


def _stepped(
    settings: Settings, device: str, contestants: Callable[[Any, dict[str, Any]], Any], elsewhere: Callable[[Sequence[int]], Any],
    say: Say, states: Path | None,
) -> list[long_rung.Point]:  # fmt: skip
    """Oracle, stock path, its repetitions and whatever `contestants` adds, beside what is stepped `elsewhere`."""
    from ...contracts.kimi_k3.architecture import Architecture
    from ...contracts.kimi_k3.numerics import long_state
    from . import long_steps

    of = Architecture.from_config()
    drift, marks = long_state.Drift(of, LONG_TP, settings.seed, device), long_state.decades(settings.steps)
    again = {f"again-{n}": drift.again(n) for n in range(1, settings.replicas + 1)}
    paths = contestants(drift, {ORACLE: drift.oracle(), STOCK: drift.plain(), **again})
    kept = states / "paths.safetensors" if states else None
    found = long_steps.states(drift, paths, settings.steps, marks, kept, say)
    own = elsewhere(marks)
    return [
        point for step in marks
        for point in long_rung.moved(step, found[step] | ({CANDIDATE: own[step]} if own else {}), of.kda_layers[0])
    ]  # fmt: skip


def _attended(settings: Settings, candidate: Callable[[Any, Any, Any], Any]) -> Sections:
    """Attention over each of the long contexts by all paths."""

    def to(context: int, what: str) -> list[long_rung.Point]:
        from ...contracts.kimi_k3.architecture import Architecture
        from ...contracts.kimi_k3.numerics import long_state
        from ...contracts.kimi_k3.numerics.op_exams import contracts

        of = Architecture.from_config()
        got = long_attention.contexts(LONG_TP, context, settings.seed, settings.replicas)
        at, inputs, positions = long_state.needles(of, LONG_TP, context, settings.seed)
        got[CANDIDATE] = candidate(contracts(of)["mla_core"], at, inputs)
        return long_rung.attended(positions, got.pop(ORACLE), got, what, of.mla_layers[0])

    return {name: partial(to, context, name) for context, name in long_rung.context_names(settings.contexts).items()}


def kept_or_computed(sections: Sections, kept: Lines) -> list[long_rung.Point]:
    """All points in order: of sections that are a line of `kept` from there, of others computed, and another line."""
    there = {section.name for section in map(Section.model_validate_json, kept.lines)}
    for name, compute in sections.items():
        if name not in there:
            kept.append(Section(name=name, points=tuple(compute())).canonical_json())
    found = {section.name: section.points for section in map(Section.model_validate_json, kept.lines)}
    return [point for name in sections for point in found[name]]
