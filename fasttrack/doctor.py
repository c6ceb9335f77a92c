"""`fasttrack doctor`: whether this machine and this checkout are in order, and what to do where they are not."""

import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from fasttrack_validation.errors import UserError

# Kept equal to pyproject.toml's bounds by a test: [from, below).
PYTHON = ((3, 11), (3, 14))
RANGES = {"triton": ((3, 8), (3, 10)), "torch": ((2, 11), (2, 14))}
GIT = (2, 38)
# Triton's caches and the judge's buffers at true shapes.
FREE_BYTES = 4 * 2**30


@dataclass(frozen=True)
class Line:
    """One thing that was looked at. `state` is ok, warn or fail."""

    name: str
    state: str
    what: str
    how: str = ""


def examine(directory: Path | None = None) -> list[Line]:
    """Every check, in the order in which things are needed."""
    start = directory or Path.cwd()
    checks: tuple[Callable[[], Line], ...] = (
        python, lambda: package("triton"), lambda: package("torch"), git, lambda: checkout(start),
        lambda: identity(start), lambda: space("temporary directory", Path(tempfile.gettempdir())), state_directory,
        sandbox, gpu, bindings, nvrtc, sanitizer,
    )  # fmt: skip
    return [check() for check in checks]


def versions(pins: Path) -> list[Line]:
    """Python, Triton, torch, and every installed package that `pins` (a constraints file of pip) names: whether it has that
    version. What is not installed is no matter of constraints. UserError for a file that cannot be read."""
    try:
        named = [line.strip() for line in pins.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{pins}: {getattr(error, 'strerror', None) or 'it is no text'}", "name a constraints file") from error
    same, other = 0, []
    for name, _, pinned in (line.partition("==") for line in named if line and not line.startswith("#")):
        try:
            have = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if have.partition("+")[0] == pinned:  # "+cu130" names a build of the same version
            same += 1
        else:
            other.append((name, have, pinned))
    told = f"{same} packages have the pinned version, {len(other)} another"
    if other:
        told += ": " + ", ".join(f"{name} {have} ({pinned} is pinned)" for name, have, pinned in other)
    how = "pip install " + " ".join(f"{name}=={pinned}" for name, _, pinned in other)
    return [python(), package("triton"), package("torch"), Line("pins", "fail" if other else "ok", told, how)]


def exit_code(lines: list[Line]) -> int:
    """1 when a line fails, else 0."""
    return int(any(line.state == "fail" for line in lines))


def require_toolchain(*, records: bool = True) -> None:
    """Raises UserError when Python or torch are missing or out of range, or Triton where something is to be recorded."""
    for line in (python(), *([package("triton")] if records else []), package("torch")):
        if line.state == "fail":
            raise UserError(f"{line.name}: {line.what}", line.how)


def python() -> Line:
    """The interpreter's version."""
    have = sys.version_info[:2]
    found = ".".join(map(str, sys.version_info[:3]))
    return Line("python", *_in_range(found, have, PYTHON), f"use Python {_range(PYTHON)}")


def package(name: str) -> Line:
    """A package's version, read from its metadata: nothing is imported."""
    how = f'pip install "{name}>={_dotted(RANGES[name][0])},<{_dotted(RANGES[name][1])}"'
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Line(name, "fail", "not installed", how)
    return Line(name, *_in_range(found, _numbers(found)[:2], RANGES[name]), how)


def git() -> Line:
    """Git's version."""
    from .workspace import git as run

    try:
        found = run(Path("/"), "version").strip()
    except UserError as error:
        return Line("git", "fail", error.what, error.how)
    state = "ok" if _numbers(found)[:2] >= GIT else "fail"
    return Line("git", state, found, "install git 2.38 or later; `git merge-tree --write-tree` is needed")


def checkout(start: Path) -> Line:
    """Whether a checkout is around `start`."""
    from .model_dir import find_checkout, model_names

    found = find_checkout(start)
    if found is None:
        return Line("checkout", "warn", f"none at or above {start}", "run inside a checkout to propose or submit")
    return Line("checkout", "ok", f"{found}, models: {', '.join(model_names(found / 'models'))}")


def identity(start: Path) -> Line:
    """Whether git knows who commits."""
    from .workspace import IDENTITY
    from .workspace import git as run

    try:
        name, email = (run(start, "config", "--get", key, check=False).strip() for key in ("user.name", "user.email"))
    except UserError as error:
        return Line("identity", "fail", error.what, error.how)
    if name and email:
        return Line("identity", "ok", f"{name} <{email}>")
    fallback = f"not configured; commits would be by {IDENTITY[0]} <{IDENTITY[1]}>"
    return Line("identity", "warn", fallback, 'git config --global user.name "..." and user.email "..."')


def space(name: str, path: Path) -> Line:
    """Free space where `path` lies."""
    free = shutil.disk_usage(path).free
    state = "ok" if free >= FREE_BYTES else "warn"
    return Line(name, state, f"{path}, {free / 2**30:.1f} GiB free", f"have {FREE_BYTES / 2**30:.0f} GiB free there")


def state_directory() -> Line:
    """Whether runs can be kept."""
    from .storage import home

    how = "set FASTTRACK_HOME to a writable directory outside the checkout"
    try:
        path = home()
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path):
            pass
    except UserError as error:
        return Line("state directory", "fail", error.what, error.how)
    except OSError as error:
        return Line("state directory", "fail", f"{path} cannot be written: {error.strerror}", how)
    return space("state directory", path)


def sandbox() -> Line:
    """Whether candidate code can be confined on this system."""
    how = "see validation/sandbox/README.md; --unsafe-no-sandbox runs without, and the evidence says so"
    try:
        from fasttrack_validation.sandbox import probe
    except ImportError as error:
        return Line("sandbox", "fail", f"cannot be loaded: {error}", "install the package anew")
    try:
        found = probe()
    except UserError as error:
        return Line("sandbox", "fail", error.what, error.how or how)
    return Line("sandbox", "ok", f"{found.name}: {found.description}")


def gpu() -> Line:
    """Whether there is a GPU to measure on; without one everything else still works."""
    try:
        import torch

        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    except (ImportError, RuntimeError, OSError) as error:
        return Line("gpu", "warn", f"cannot be asked for: {error}", "times are modelled and cells say not measured")
    if not names:
        return Line("gpu", "ok", "none: correctness is judged by the interpreter, times are not measured")
    return Line("gpu", "ok", ", ".join(names))


def bindings() -> Line:
    """cuda-bindings: what launches plans, and finds NVRTC."""
    try:
        return Line("cuda-bindings", "ok", metadata.version("cuda-bindings"))
    except metadata.PackageNotFoundError:
        how = "pip install 'fasttrack[gpu]' to launch plans, or 'fasttrack[cuda]' to compile CUDA C++"
        return Line("cuda-bindings", _unless_gpu(), "not installed: plans are interpreted and never launched", how)


def nvrtc() -> Line:
    """NVRTC and its headers: what compiles CUDA C++ kernels."""
    how = "pip install 'fasttrack[cuda]'; Triton kernels do not need it"
    from fasttrack_validation.judge.device_code import cuda_compiler

    try:
        return Line("NVRTC", "ok", f"{cuda_compiler.available()}: CUDA C++ kernels can be compiled")
    except cuda_compiler.NoCudaCompiler as error:
        return Line("NVRTC", "ok", f"none: verdicts on CUDA C++ kernels are not run ({error})", how)


def sanitizer() -> Line:
    """compute-sanitizer: what looks for races and bad accesses on a GPU."""
    from fasttrack_validation.judge.replay import sanitizer as tool

    if found := tool.find():
        return Line(tool.PROGRAM, "ok", f"{found}: on a GPU accepted plans run under {', '.join(tool.TOOLS)}")
    what = "none: verdicts say of memcheck, racecheck, initcheck and synccheck (C15) that they were not run"
    how = "install the CUDA toolkit, or its compute-sanitizer package; races between threads of a block show only there"
    return Line(tool.PROGRAM, _unless_gpu(), what, how)


def _unless_gpu() -> str:
    """What the absence of a tool amounts to that only a GPU machine needs."""
    return "warn" if shutil.which("nvidia-smi") else "ok"


def _in_range(found: str, have: tuple[int, ...], bounds) -> tuple[str, str]:
    if bounds[0] <= have < bounds[1]:
        return "ok", found
    return "fail", f"{found} is not in the supported range {_range(bounds)}"


def _numbers(text: str) -> tuple[int, ...]:
    match = re.search(r"\d+(?:\.\d+)+", text)
    return tuple(map(int, match[0].split("."))) if match else ()


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _range(bounds) -> str:
    return f">={_dotted(bounds[0])},<{_dotted(bounds[1])}"
