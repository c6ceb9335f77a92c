"""The judge's calls into the sandbox, and what it makes of their answers. Nothing an answer says is believed."""

import math
import mmap
import os
import platform
import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch
from pydantic import ValidationError

from ..contracts.base import OpContract, TensorSpec, Workload
from ..performance.hardware import Hardware
from ..sandbox import JobResult, JobStatus, Limits, Sandbox, sealed_memory
from . import plan
from .candidate import Candidate
from .device_code import sass
from .device_code.build import ENTRY as COMPILE_ENTRY
from .device_code.build import Built, build
from .device_code.records import SAYS_NOTHING, TARGETS, DeviceCode, target_name
from .inspect_trial import Finding
from .kernel_source import KernelSource, KernelSourceError, extract
from .pack import KernelPack, Language, Role, variant_key
from .plan_terms import MAX_SHARED_BYTES
from .ruling import Ruling
from .verdict import KernelAudit

RECORD_ENTRY = "fasttrack_validation.judge.recorder.job:run"
PREPARE_ENTRY = "fasttrack_validation.judge.recorder.prepare_job:run"
# Recording touches no tensor, but pools that need 64-bit offsets take address space.
# A slow host repacks weights no slower than this.
PREPARE_BYTES_PER_SECOND = 10e6
RECORD_LIMITS = Limits(wall_seconds=60, memory_bytes=64 << 30)
COMPILE_LIMITS = Limits(wall_seconds=180)
# What compiling one candidate may take in all: variants of every plan, and seconds for each target.
MAX_VARIANTS = 256
COMPILE_SECONDS = 900

Audits = Mapping[tuple[str, str], KernelAudit]
"""(variant key, target) -> audit."""


def extract_source(candidate: Candidate, ruling: Ruling) -> KernelSource | None:
    """The allow-listed kernels of the candidate, or None with the finding recorded."""
    try:
        return extract(candidate.files, candidate.entry)
    except KernelSourceError as error:
        ruling.fail(Finding(check="record", reason=error.reason, message=_text(str(error))))
    except (RecursionError, MemoryError) as error:
        message = f"the sources are nested too deeply to read ({type(error).__name__})"
        ruling.fail(Finding(check="record", reason="source.too_deep", message=message))
    return None


def record(
    sandbox: Sandbox, candidate: Candidate, contract: OpContract, workloads: tuple[Workload, ...], hardware: Hardware,
    ruling: Ruling,
) -> dict[str, KernelPack] | None:  # fmt: skip
    """One plan for each workload, or None with the finding recorded."""
    result = sandbox.run(RECORD_ENTRY, _payload(candidate, contract, workloads, hardware), limits=RECORD_LIMITS)
    rejected = result.value.get("rejected") if result.status is JobStatus.OK else None
    if rejected is not None and not isinstance(rejected, dict):
        ruling.fail(Finding(check="record", reason="record.answer", message="the recorder's answer is malformed"))
        return None
    if rejected is not None:
        where = f"{rejected.get('where')}: " if rejected.get("where") else ""
        ruling.fail(Finding(
            check="record", reason=_reason(rejected.get("reason"), "record."),
            message=_text(f"{where}{rejected.get('message', '')}"),
        ))  # fmt: skip
        return None
    if result.status is not JobStatus.OK:
        ruling.fail(Finding(check="record", reason=f"record.{result.status.value}", message=_last_line(result)))
        return None
    try:
        packs = [KernelPack.model_validate(entry) for entry in result.value["packs"]]
        by_workload = {pack.workload: pack for pack in packs}
        if list(by_workload) != [w.name for w in workloads]:
            raise ValueError(f"plans for {list(by_workload)[:4]}..., asked were {[w.name for w in workloads][:4]}...")
    except (KeyError, TypeError, ValueError, ValidationError) as error:
        ruling.fail(Finding(check="record", reason="record.answer", message=_text(f"the recorder's answer: {error}")))
        return None
    return by_workload


@cache
def toolchain() -> dict[str, str]:
    """The judge's own versions: what the recorder says of them comes from the candidate's process."""
    # Once: importlib.metadata keeps what it finds for each state of a directory, for good.
    return {"python": platform.python_version()} | {name: version(name) for name in ("torch", "triton")}


def validate_plans(
    packs: Mapping[str, KernelPack], candidate: Candidate, contract: OpContract, workloads: Mapping[str, Workload],
    source: KernelSource, ruling: Ruling,
) -> bool:  # fmt: skip
    """Whether every plan is in order; the first problem is recorded otherwise."""
    functions = plan.source_functions(source.files, source.cuda)
    for name, pack in packs.items():
        problems = plan.addressed_to(pack, candidate.op, name, candidate.digest())
        problems += plan.validate(pack, contract.tensors(workloads[name]), functions)
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            finding = Finding(check="plan", reason=problems[0].reason, message=_text(problems[0].message + more))
            ruling.fail(finding)
            return False
    variants = {variant_key(variant) for pack in packs.values() for variant in pack.kernels.values()}
    if len(variants) > MAX_VARIANTS:
        message = (
            f"{len(variants)} kernel variants for {len(packs)} workloads, at most {MAX_VARIANTS}: pass what changes "
            "with the layout as an argument, not as a constant"
        )
        ruling.fail(Finding(check="plan", reason="plan.too_many_variants", message=message))
        return False
    ruling.planned(workloads.values(), packs)
    ruling.pass_stage("plan", figures={"launches": max(len(pack.launches) for pack in packs.values())})
    return True


def compile_kernels(
    sandbox: Sandbox, source: KernelSource, packs: Mapping[str, KernelPack], cache: Path | None, ruling: Ruling
) -> tuple[DeviceCode, ...] | None:
    """Machine code of every variant for every target; None with the finding recorded when one fails."""
    variants = {variant_key(v): v for pack in packs.values() for v in pack.kernels.values()}

    def run_job(payload: dict) -> JobResult:
        return sandbox.run(COMPILE_ENTRY, payload, limits=COMPILE_LIMITS)

    deadline = time.monotonic() + COMPILE_SECONDS

    def compiled(target: int) -> Built:
        return build(source.files, variants, run_job, (target,), cache, source.cuda, deadline)

    with ThreadPoolExecutor(len(TARGETS)) as pool:
        built = list(pool.map(compiled, TARGETS))
    problems = [problem for one in built for problem in one.problems]
    if problems:
        first = problems[0]
        if first.reason in SAYS_NOTHING:
            ruling.skip_stage("compile", first.reason, _text(first.message))
            return None
        message = f"{first.kernel} for {first.target}: {first.message}"
        ruling.fail(Finding(check="compile", reason=first.reason, message=_text(message)))
        return None
    return tuple(code for one in built for code in one.codes)


def settle_audits(
    audits: tuple[KernelAudit, ...], codes: Iterable[DeviceCode], packs: Mapping[str, KernelPack], ruling: Ruling
) -> Audits | None:
    """Takes what the machine code says into the verdict; None with the finding recorded when it must not be launched."""
    ruling.audits = audits
    found = {(audit.kernel, audit.target): audit for audit in audits}
    if problem := _too_much_shared(packs, found):
        ruling.fail(Finding(check="compile", reason="compile.out_of_resources", message=_text(problem)))
        return None
    if problem := next((_holds_globals(audit) for audit in audits if audit.writable_globals), None):
        ruling.fail(Finding(check="compile", reason="compile.writable_global", message=_text(problem)))
        return None
    if problem := _never_waits(packs, codes):
        ruling.fail(Finding(check="compile", reason="compile.never_waits", message=_text(problem)))
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


def can_run(packs: Mapping[str, KernelPack], languages: Collection[Language], executor: str, ruling: Ruling) -> bool:
    """Whether an executor that runs `languages` can run every plan; otherwise execution is recorded as not run."""
    for pack in packs.values():
        for launch in pack.launches:
            variant = pack.kernels[launch.kernel]
            if variant.language not in languages:
                message = (
                    f"{variant.function} ({variant.file}) is {variant.language} and needs a GPU: it was recorded, and "
                    f"compiled and audited for {', '.join(map(target_name, TARGETS))}; {executor} cannot run it"
                )
                ruling.skip_stage("execution", "execution.needs_gpu", _text(message))
                return False
    return True


class PrepareFailed(Exception):
    """`prepare` did not give the buffers that the plan declares."""


def _prepare_limits(static_bytes: int, pack: KernelPack) -> Limits:
    """What `prepare` may use: its weights, what it declared to make of them, and working copies of both."""
    made = sum(math.prod(buffer.shape) * buffer.dtype.bytes for buffer in pack.prepared.values())
    return RECORD_LIMITS.model_copy(
        update={
            "wall_seconds": RECORD_LIMITS.wall_seconds + (static_bytes + made) / PREPARE_BYTES_PER_SECOND,
            "output_bytes": RECORD_LIMITS.output_bytes + made,
        }
    )


def prepare(
    sandbox: Sandbox, candidate: Candidate, contract: OpContract, workload: Workload, hardware: Hardware,
    static: Mapping[str, torch.Tensor], pack: KernelPack,
) -> dict[str, bytes]:  # fmt: skip
    """Runs `prepare` on the given static tensors, apart from everything else, and takes back its buffers.

    Raises PrepareFailed when the job dies or answers with other buffers than the plan declares.
    """
    places, size = [], 0
    for spec in contract.tensors(workload):
        if spec.name in static:
            length = spec.storage_elements * spec.dtype.bytes
            places.append({"spec": spec.model_dump(mode="json"), "offset": size, "bytes": length})
            size += -(-length // 256) * 256
    fd = sealed_memory(max(size, 1), "fasttrack-static")
    try:
        memory = mmap.mmap(fd, max(size, 1))
        for place in places:
            _place(memory, place, TensorSpec.model_validate(place["spec"]), static[place["spec"]["name"]])
        payload = {
            "candidate": candidate.model_dump(mode="json"), "axes": workload.axes, "hardware": _facts(hardware),
            "static": places,
        }  # fmt: skip
        result = sandbox.run(PREPARE_ENTRY, payload, memory=(fd,), limits=_prepare_limits(size, pack))
    finally:
        os.close(fd)
    names = result.value.get("prepared") if result.status is JobStatus.OK else None
    named = isinstance(names, list) and sorted(map(str, names)) == sorted(pack.prepared)
    if not named or len(result.blobs) != len(names):
        detail = _last_line(result) if result.status is not JobStatus.OK else str(result.value.get("rejected", names))
        raise PrepareFailed(_text(f"prepare gave other buffers than it declared: {detail}"))
    # By name: a plan that was kept in a file lists its buffers in another order.
    found = dict(zip(names, result.blobs, strict=True))
    for name, buffer in pack.prepared.items():
        declared = math.prod(buffer.shape) * buffer.dtype.bytes
        if len(found[name]) != declared:
            raise PrepareFailed(
                f"prepared buffer {name} has {len(found[name])} bytes on real weights, {declared} when recorded"
            )
    return found


def _payload(candidate: Candidate, contract: OpContract, workloads: tuple[Workload, ...], hardware: Hardware) -> dict:
    return {
        "candidate": candidate.model_dump(mode="json"),
        "workloads": [
            {
                "name": w.name,
                "axes": w.axes,
                "tensors": [spec.model_dump(mode="json") for spec in contract.tensors(w)],
            }
            for w in workloads
        ],
        "hardware": _facts(hardware),
    }


def _facts(hardware: Hardware) -> dict:
    return {
        "name": hardware.name,
        "capability": hardware.target,
        "multiprocessors": hardware.multiprocessors,
        "max_shared": hardware.shared_per_block,
    }


def _place(memory: mmap.mmap, place: Mapping[str, int], spec: TensorSpec, value: torch.Tensor) -> None:
    raw = torch.frombuffer(memory, dtype=torch.uint8, count=len(memory))
    flat = raw[place["offset"] : place["offset"] + place["bytes"]].view(value.dtype)
    flat.as_strided(spec.shape, spec.strides).copy_(value)


def _reason(reason: object, prefix: str) -> str:
    """A reason id from an untrusted answer: one of the recorder's, or the generic one."""
    text = str(reason)[:80]
    return text if text.startswith(prefix) and text.replace(".", "").replace("_", "").isalnum() else f"{prefix}answer"


def _last_line(result: JobResult) -> str:
    lines = result.error.strip().splitlines()
    return _text(lines[-1]) if lines else f"the job ended with {result.status.value}"


def _text(message: str) -> str:
    """An untrusted message: one line, printable, and bounded, with its beginning and its end."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in message[:20_000]).split())
    return flat if len(flat) <= 600 else f"{flat[:200]} [...] {flat[-390:]}"
