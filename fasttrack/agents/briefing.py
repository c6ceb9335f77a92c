"""What an agent is told: contract, interface, budgets, attempts; text of others is quoted, and marked as data."""

import inspect
import re
from typing import TYPE_CHECKING

from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.records import canonical_json

if TYPE_CHECKING:
    from .bench import Workbench


def plain(text: str) -> str:
    """Text with every invisible or reordering character escaped."""
    from ..report.render import visible

    return visible(text)


def line(text: str, most: int = 300) -> str:
    """Text on one line of bounded length."""
    flat = " ".join(plain(text).split())
    return flat if len(flat) <= most else flat[:most] + " ..."


def quoted(text: str) -> str:
    """A fenced block that nothing in `text` can end."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{plain(text.rstrip())}\n{fence}"


def config(candidate: Candidate) -> str:
    """A configuration as JSON."""
    return canonical_json(candidate.config)


def interface() -> str:
    """How a candidate is written."""
    from ..report.render import environment

    return environment().get_template("interface.md.j2").render()


def contract(bench: "Workbench") -> str:
    """The exam as far as it is public: what the op computes, its tensors, workloads, tolerances, bytes and floors.

    Oracle, seeds and held-out workloads are not part of it.
    """
    op = bench.contract
    lines = [f"Op {op.op} of {bench.directory.manifest.model.title}.", "", inspect.getdoc(type(op)) or "", ""]
    workloads = op.workloads()
    if hasattr(op, "tensors"):
        first = workloads[0]
        lines.append(f"Tensors at workload {first.name} (axes {first.axes}); strides in elements:")
        for spec in op.tensors(first):
            lines.append(
                f"  {spec.name}: {spec.role}, {spec.dtype}, shape {list(spec.shape)}, strides {list(spec.strides)}"
            )
        lines.append("")
    if hasattr(op, "comparisons"):
        lines.append("Tolerances, against a float64 oracle:")
        for one in op.comparisons:
            limit = (
                "bit for bit"
                if one.kind == "exact"
                else f"error at most {one.ratio:g} times the plain path's own (largest: {one.max_ratio:g})"
            )
            lines.append(f"  {one.tensor}: {limit}")
        lines.append("")
    if hasattr(op, "distributions"):
        lines.append("Values are drawn as: " + "; ".join(f"{name} ({what})" for name, what in op.distributions.items()))
        lines.append("")
    lines.append("Workloads, the bytes that must move, and the floor at datasheet bandwidth:")
    for workload in workloads:
        cost = op.cost(workload)
        floors = [
            f"{hardware} {floor:.3g} us"
            for (hardware, name), floor in bench.floors.items()
            if name == workload.name and floor
        ]
        lines.append(
            f"  {workload.name}: axes {workload.axes}; {cost.bytes} bytes, {cost.flops} flops; {', '.join(floors) or 'no floor'}"
        )
    return "\n".join(lines)
