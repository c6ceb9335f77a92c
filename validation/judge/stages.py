"""The stages of recording: the judge's calls into the sandbox, and what it makes of their answers.

Nothing an answer says is believed (answers.py).
"""

import platform
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.metadata import version
from pathlib import Path

from pydantic import ValidationError

from ..contracts.base import OpContract, Workload
from ..performance.hardware import Hardware
from ..sandbox import JobResult, JobStatus, Limits, Sandbox
from . import plan
from .answers import last_line, reason_of, text_of
from .candidate import Candidate
from .device_code.build import ENTRY as COMPILE_ENTRY
from .device_code.build import Built, build
from .device_code.records import SAYS_NOTHING, TARGETS, DeviceCode, target_name
from .inspect_trial import Finding
from .kernel_source import KernelSource, KernelSourceError, extract
from .pack import KernelPack, Language, variant_key
from .ruling import Ruling

RECORD_ENTRY = "fasttrack_validation.judge.recorder.job:run"
# Recording touches no tensor, but pools that need 64-bit offsets take address space.
RECORD_LIMITS = Limits(wall_seconds=60, memory_bytes=64 << 30)
COMPILE_LIMITS = Limits(wall_seconds=180)
# What compiling one candidate may take in all: variants of every plan, and seconds for each target.
MAX_VARIANTS = 256
COMPILE_SECONDS = 900

def extract_source(candidate: Candidate, ruling: Ruling) -> KernelSource | None:
    """The allow-listed kernels of the candidate, or None with the finding recorded."""
    try:
        return extract(candidate.files, candidate.entry)
    except KernelSourceError as error:
        ruling.fail(Finding(check="record", reason=error.reason, message=text_of(str(error))))
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
            check="record", reason=reason_of(rejected.get("reason"), "record."),
            message=text_of(f"{where}{rejected.get('message', '')}"),
        ))  # fmt: skip
        return None
    if result.status is not JobStatus.OK:
        ruling.fail(Finding(check="record", reason=f"record.{result.status.value}", message=last_line(result)))
        return None
    try:
        packs = [KernelPack.model_validate(entry) for entry in result.value["packs"]]
        by_workload = {pack.workload: pack for pack in packs}
        if list(by_workload) != [w.name for w in workloads]:
            raise ValueError(f"plans for {list(by_workload)[:4]}..., asked were {[w.name for w in workloads][:4]}...")
    except (KeyError, TypeError, ValueError, ValidationError) as error:
        ruling.fail(Finding(check="record", reason="record.answer", message=text_of(f"the recorder's answer: {error}")))
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
            finding = Finding(check="plan", reason=problems[0].reason, message=text_of(problems[0].message + more))
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
            ruling.skip_stage("compile", first.reason, text_of(first.message))
            return None
        message = f"{first.kernel} for {first.target}: {first.message}"
        ruling.fail(Finding(check="compile", reason=first.reason, message=text_of(message)))
        return None
    return tuple(code for one in built for code in one.codes)


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
                ruling.skip_stage("execution", "execution.needs_gpu", text_of(message))
                return False
    return True


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
        "hardware": facts_of(hardware),
    }


def facts_of(hardware: Hardware) -> dict:
    """What a job of the recorder is told of the card."""
    return {
        "name": hardware.name,
        "capability": hardware.target,
        "multiprocessors": hardware.multiprocessors,
        "max_shared": hardware.shared_per_block,
    }
