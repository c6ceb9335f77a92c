"""From device code to the figures that a verdict and a reviewer read. Pure."""

from ..pack import Language
from ..verdict import KernelAudit
from . import sass
from .cubin import writable_globals
from .ptx_globals import only_read
from .records import CompileProblem, DeviceCode


def audit(code: DeviceCode) -> KernelAudit | CompileProblem:
    """Registers, spills, memory, matrix and conversion instructions of one kernel.

    What two tools both say must agree (registers and stack: ptxas and cuobjdump; threads: metadata and PTX), or there
    is no audit but a problem.
    """
    report = sass.ptxas_report(code.ptxas_log)
    usage = sass.resource_usage(code.resource_usage).get(code.entry, {})
    if report is None:
        return _problem(code, "ptxas reported no registers")
    pairs = {
        "registers": (report.registers, usage.get("REG")),
        "stack": (report.stack_bytes, usage.get("STACK")),
    }
    if code.language is Language.TRITON:  # a CUDA kernel need not bind itself to a block size; the compile job looked
        pairs["threads"] = (32 * code.warps, sass.required_threads(code.ptx))
    for what, (one, two) in pairs.items():
        if one != two:
            return _problem(code, f"{what}: one tool says {one}, another {two}")
    try:
        held = writable_globals(code.cubin)
    except ValueError as error:
        return _problem(code, f"the cubin cannot be read: {error}")
    if held and only_read(code.ptx):
        held = 0
    counts = sass.instructions(code.sass)
    loads, stores = sass.local_accesses(counts)
    return KernelAudit(
        kernel=code.kernel,
        target=code.target,
        registers=report.registers,
        spill_store_bytes=report.spill_store_bytes,
        spill_load_bytes=report.spill_load_bytes,
        stack_bytes=report.stack_bytes,
        shared_bytes=report.static_shared_bytes + code.shared_bytes,
        threads=32 * code.warps,
        mma_types=sass.matrix_types(counts, code.ptx),
        conversions=sass.conversions(counts),
        local_loads=loads,
        local_stores=stores,
        barriers=sass.barriers(counts),
        uneven_sums=sass.uneven_sums(code.sass),
        writable_globals=held,
        code_bytes=sass.code_bytes(code.sass),
        compiler=code.compiler,
    )


def _problem(code: DeviceCode, message: str) -> CompileProblem:
    return CompileProblem(reason="compile.audit", message=message, kernel=code.kernel, target=code.target)
