"""Compiles the kernels of a pack in confined jobs, one variant and target each, and keeps what they made."""

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from pydantic import ValidationError

from ...records import canonical_json, digest_files, sha256
from ..pack import KernelVariant, Language
from ..verdict import KernelAudit
from .audit import audit
from .records import OUT_OF_TIME, TARGETS, CompileProblem, DeviceCode, target_name

# Once for each package: importlib.metadata keeps what it finds for each state of a directory, for good.
_version = cache(metadata.version)

ENTRY = f"{__package__}.compile_job:run"

# Bump when compile_job or DeviceCode changes what a cached entry means.
_CACHE_SCHEMA = 3
_MAX_FAULT = 2000


class JobOutcome(Protocol):
    """How a confined job ended: `status` is "ok" or says what stopped it; `value` and `blobs` are its answer."""

    status: str
    value: Mapping[str, Any]
    blobs: tuple[bytes, ...]
    error: str
    stderr: str


RunJob = Callable[[dict[str, Any]], JobOutcome]
"""Runs the job function named by `ENTRY` with the payload, confined."""


@dataclass(frozen=True)
class Built:
    """Everything that compiled, everything that did not, and the audits of what did, in the order of the pack."""

    codes: tuple[DeviceCode, ...]
    audits: tuple[KernelAudit, ...]
    problems: tuple[CompileProblem, ...]


def build(
    source_files: Mapping[str, str],
    variants: Mapping[str, KernelVariant],
    run_job: RunJob,
    targets: Iterable[int] = TARGETS,
    cache: Path | None = None,
    cuda_files: Mapping[str, str] = MappingProxyType({}),
    deadline: float = math.inf,
) -> Built:
    """Compiles and audits `variants` for each target from the extracted kernel sources `source_files`.

    `cuda_files` are the CUDA sources and headers that the variants in that language come from. Past `deadline` (on the
    monotonic clock) no further job begins.

    A variant whose compiler aborts, runs out of time or is refused becomes a problem of its own; the others go on.
    `cache` is a directory that only the judge writes; entries depend on source, variant, target and the compilers'
    versions.
    """
    codes, audits, problems = [], [], []
    for target in targets:
        for key, variant in variants.items():
            files = cuda_files if variant.language is Language.CUDA else source_files
            result = _one(files, key, variant, target, run_job, cache, deadline)
            figures = audit(result) if isinstance(result, DeviceCode) else result
            if isinstance(figures, CompileProblem):
                problems.append(figures)
            else:
                codes.append(result)
                audits.append(figures)
    return Built(tuple(codes), tuple(audits), tuple(problems))


def _one(
    files: Mapping[str, str], key: str, variant: KernelVariant, target: int, run_job: RunJob, cache: Path | None,
    deadline: float,
) -> DeviceCode | CompileProblem:  # fmt: skip
    path = cache / f"{_cache_key(files, variant, target)}.json" if cache else None
    if path and (kept := _read(path)):
        return kept.model_copy(update={"kernel": key})
    own, other = ("cuda", "files") if variant.language is Language.CUDA else ("files", "cuda")
    source = {own: dict(files), other: {}}
    if time.monotonic() > deadline:
        message = "compiling all variants of this candidate takes too long"
        return CompileProblem(reason=OUT_OF_TIME, message=message, kernel=key, target=target_name(target))
    outcome = run_job({"source": source, "variants": {key: variant.model_dump(mode="json")}, "target": target})
    result = _received(key, target, outcome)
    if path and isinstance(result, DeviceCode):
        _write(path, result)
    return result


def _received(key: str, target: int, outcome: JobOutcome) -> DeviceCode | CompileProblem:
    def problem(reason: str, message: str) -> CompileProblem:
        return CompileProblem(reason=reason, message=message, kernel=key, target=target_name(target))

    # MLIR and LLVM say on standard error what is wrong; the exception, if there is one, says only which pass failed.
    said = _excerpt(outcome.stderr)
    if outcome.status != "ok":
        lines = (f"the compiler ended with {outcome.status!s}", outcome.error, said)
        return problem("compile.crashed", "\n".join(line for line in lines if line))
    try:
        if fault := outcome.value["problems"].get(key):
            return problem(fault["reason"], f"{fault['message']}\n{said}".rstrip())
        ptx, cubin, sass = outcome.blobs
        texts = {"ptx": ptx.decode(), "sass": sass.decode(), "cubin": cubin}
        return DeviceCode.model_validate({"kernel": key, **outcome.value["kernels"][key], **texts})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return problem("compile.answer", f"the compile job's answer is malformed: {error!r}")


def _excerpt(text: str) -> str:
    """The start, where the fault is named, and the end of a long diagnosis."""
    half = _MAX_FAULT // 2
    return text if len(text) <= _MAX_FAULT else f"{text[:half]}\n[...]\n{text[-half:]}"


def _cache_key(files: Mapping[str, str], variant: KernelVariant, target: int) -> str:
    source = digest_files({name: text.encode() for name, text in files.items()})
    tools = [_version("triton"), *(cuda_packages() if variant.language is Language.CUDA else ())]
    parts = [_CACHE_SCHEMA, source, variant.digest(), target, *tools]
    return sha256(canonical_json(parts).encode())


def cuda_packages() -> list[str]:
    """Versions of what CUDA sources are compiled by and with; "none" for what is not installed as a package."""
    found = []
    for name in ("nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-cuda-crt", "nvidia-cuda-cccl"):
        try:
            found.append(_version(name))
        except metadata.PackageNotFoundError:
            found.append("none")
    return found


def _read(path: Path) -> DeviceCode | None:
    try:
        return DeviceCode.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _write(path: Path, code: DeviceCode) -> None:
    """Keeps an entry; a cache that cannot be written is no cache, and no error."""
    try:
        _replace(path, code)
    except OSError:
        return


def _replace(path: Path, code: DeviceCode) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(code.model_dump_json().encode())
        os.replace(name, path)
    except OSError:
        os.unlink(name)
        raise
