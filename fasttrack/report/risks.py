"""Mechanisms that deserve a reviewer's eye, found by reading sources and plans. Finding none proves nothing."""

import re
from collections.abc import Iterable, Iterator, Mapping

from fasttrack_validation.judge.pack import KernelPack, Role

from .data import Risk

_SOURCE = (
    ("inline assembly", r"inline_asm_elementwise|\basm\s*(volatile)?\s*\(", "what does it assume about the target?"),
    ("atomics", r"\batomic_\w+|\batomic(Add|CAS|Exch|Max|Min)\b", "does the order of arrival change a result?"),
    (
        "cross-block wait",
        r"ld\.acquire|while[^\n]*(atomic|volatile|ld_acquire|load\([^\n]*(flag|lock|sem|ready|count))|__nanosleep"
        r"|grid\.sync|cooperative_groups",
        "are all blocks resident, and what happens when one is not?",
    ),
    ("persistent kernel", r"\bnum_programs\s*\(|gridDim\.x", "what else may run on the device meanwhile?"),
    (
        "early programmatic launch",
        r"gdc_(wait|launch_dependents)|griddepcontrol|cudaGridDependency",
        "is every read of an earlier kernel's output behind the wait?",
    ),
    ("changed reduction order", r"split_?k\b", "is the sum the same at every batch size, bit for bit?"),
    (
        "approximate arithmetic",
        r"\bfast_(exp|div|log)\w*|ex2\.approx|rcp\.approx|__expf|use_fast_math",
        "which error bound covers it?",
    ),
    (
        "narrow scale or accumulator",
        r"float8|fp8|e4m3|e5m2|e2m1|mxfp4|out_dtype=tl\.(bf16|float16|bfloat16)",
        "does the contract allow the cast?",
    ),
)


def risky_mechanisms(files: Mapping[str, bytes], plans: Iterable[KernelPack]) -> tuple[Risk, ...]:
    """Risks by file and line (`files`: path in the model directory -> source), and by launch of each plan."""
    found = []
    for name in sorted(files):
        lines = files[name].decode("utf-8", "replace").split("\n")
        for mechanism, pattern, ask in _SOURCE:
            hits = [
                number
                for number, line in enumerate(lines, 1)
                if re.search(pattern, line, re.IGNORECASE) and not line.lstrip().startswith(("#", "//"))
            ]
            if hits:
                shown = ", ".join(map(str, hits[:6])) + (f" and {len(hits) - 6} more" if len(hits) > 6 else "")
                found.append(Risk(mechanism=mechanism, where=f"{name}, line {shown}", ask=ask))
    return (*found, *(risk for plan in plans for risk in _plan(plan)))


def _plan(plan: KernelPack) -> Iterator[Risk]:
    streams = sorted({launch.stream for launch in plan.launches})
    if len(streams) > 1:
        yield Risk(
            mechanism="several streams",
            where=f"{plan.op}: {', '.join(streams)}",
            ask="which event orders each read after its write?",
        )
    if any(launch.role is Role.PREFETCH for launch in plan.launches):
        yield Risk(mechanism="prefetch launch", where=plan.op, ask="does it write nothing, and is its effect measured?")
    for key, kernel in plan.kernels.items():
        if kernel.options.get("launch_pdl"):
            yield Risk(
                mechanism="early programmatic launch",
                where=f"{plan.op}: {key}",
                ask="is every read of an earlier kernel's output behind the wait?",
            )
        if isinstance(kernel.options.get("num_ctas"), int) and kernel.options["num_ctas"] > 1:
            yield Risk(
                mechanism="thread-block clusters", where=f"{plan.op}: {key}", ask="does the other target have them?"
            )
