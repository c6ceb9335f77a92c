"""What machine code may not be: the rules that an audit of every kernel is held against before anything is launched."""

from collections.abc import Collection, Iterable, Mapping

from .answers import text_of
from .device_code import sass
from .device_code.records import TARGETS, DeviceCode, target_name
from .device_code.refills import unfenced_refills
from .inspect_trial import Finding
from .pack import KernelPack, Role, variant_key
from .plan_terms import MAX_SHARED_BYTES
from .ruling import Ruling
from .verdict import KernelAudit

Audits = Mapping[tuple[str, str], KernelAudit]
"""(variant key, target) -> audit."""


def settle_audits(
    audits: tuple[KernelAudit, ...], codes: Collection[DeviceCode], packs: Mapping[str, KernelPack], ruling: Ruling
) -> Audits | None:
    """Takes what the machine code says into the verdict; None with the finding recorded when it must not be launched."""
    ruling.audits = audits
    found = {(audit.kernel, audit.target): audit for audit in audits}
    if problem := _too_much_shared(packs, found):
        ruling.fail(Finding(check="compile", reason="compile.out_of_resources", message=text_of(problem)))
        return None
    if problem := next((_holds_globals(audit) for audit in audits if audit.writable_globals), None):
        ruling.fail(Finding(check="compile", reason="compile.writable_global", message=text_of(problem)))
        return None
    if problem := _never_waits(packs, codes):
        ruling.fail(Finding(check="compile", reason="compile.never_waits", message=text_of(problem)))
        return None
    if problem := _refills_too_early(codes):
        ruling.fail(Finding(check="compile", reason="compile.unfenced_refill", message=text_of(problem)))
        return None
    kernels = {key for key, _ in found}
    ruling.pass_stage("compile", figures={"kernels": len(kernels), "targets": len(TARGETS)})
    return found


def _too_much_shared(packs: Mapping[str, KernelPack], audits: Audits) -> str | None:
    """The first launch whose static and dynamic shared memory together are more than a block has."""
    for pack in packs.values():
        for launch in pack.launches:
            for target in map(target_name, TARGETS) if launch.shared_bytes else ():
                need = audits[variant_key(pack.kernels[launch.kernel]), target].shared_bytes + launch.shared_bytes
                if need > MAX_SHARED_BYTES:
                    what = f"{need} bytes of shared memory, a block has {MAX_SHARED_BYTES}"
                    return f"{launch.kernel} for {target} needs {what}"
    return None


def _holds_globals(audit: KernelAudit) -> str:
    return (
        f"{audit.kernel} for {audit.target} has {audit.writable_globals} bytes of global variables that it may write, "
        "which outlive a launch where the judge does not look: declare persistent scratch; a table may be __constant__"
    )


def _never_waits(packs: Mapping[str, KernelPack], codes: Iterable[DeviceCode]) -> str | None:
    """The first compute kernel that is launched programmatically (it starts early) and never waits for the one before.

    What the one before wrote is visible only after griddepcontrol.wait, ACQBULK in machine code. That such a race is
    won in every run proves nothing, so it is read from the code. A prefetch may read what nobody writes.
    """
    compute = {
        variant_key(pack.kernels[launch.kernel])
        for pack in packs.values() for launch in pack.launches if launch.role is Role.COMPUTE
    }  # fmt: skip
    for code in codes:
        if code.launch_pdl and code.kernel in compute and not any(
            name.partition(".")[0] == "ACQBULK" for name in sass.instructions(code.sass)
        ):
            return (
                f"{code.kernel} for {code.target} is launched with launch_pdl and never waits for the kernel before it: "
                "call tl.extra.cuda.gdc_wait() before reading what that wrote, or launch it without"
            )
    return None


def _refills_too_early(codes: Iterable[DeviceCode]) -> str | None:
    """The first kernel in which a bulk copy may fill shared memory again that is still being read.

    Once in some ten thousand launches, beside another process on the GPU, such a read brings what the copy wrote: no
    number of trials shows that, so it is read from the code.
    """
    for code in codes:
        if found := unfenced_refills(code.ptx):
            more = f" (and {len(found) - 1} more reads)" if len(found) > 1 else ""
            return (
                f"{code.kernel} for {code.target}: {found[0]}{more}. Barriers do not order reads before a bulk copy's "
                "writes: run fence.proxy.async.shared::cta behind the reads, before the arrival or the copy. A Triton loop "
                "that reads such tiles other than by tl.dot must not be warp-specialised"
            )
    return None
