"""Records candidates in a child process, as the sandbox does, without the confinement."""

import multiprocessing
import tempfile

import pytest

HEADER = """
import torch
import triton
import triton.language as tl

@triton.jit
def copy(x, o, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o + i, tl.load(x + i, mask=i < n), mask=i < n)
"""

HARDWARE = {"name": "H200", "capability": 90, "multiprocessors": 132, "max_shared": 232448}

TENSORS = [
    {"name": "x", "dtype": "fp32", "role": "input", "shape": [4, 64], "strides": [96, 1]},
    {"name": "w", "dtype": "bf16", "role": "static", "shape": [8, 8], "strides": [8, 1]},
    {"name": "o", "dtype": "fp32", "role": "output", "shape": [4, 64], "strides": [64, 1]},
]


def _serve(pipe):
    """Runs one recording after another: each starts from a fresh candidate package."""
    from fasttrack_validation.judge.recorder import job

    while request := pipe.recv():
        pipe.send(job.run(*request))


@pytest.fixture(scope="session")
def recorder_process():
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_serve, args=(theirs,), daemon=True)
    child.start()
    theirs.close()
    yield ours
    ours.send(None)
    child.join()


@pytest.fixture
def record(tmp_path, recorder_process):
    """record(code, files=..., config=..., ...) -> (answer, blobs)."""

    def call(code, *, files=None, entry="kernel.py", config=None, axes=None, memory=(), tensors=TENSORS):
        workload = {"name": "b4", "axes": axes or {"rows": 4}, "tensors": tensors}
        files = files or {"kernel.py": HEADER + code}
        candidate = {"op": "copy", "entry": entry, "files": files, "config": config or {}}
        payload = {"candidate": candidate, "workloads": [workload], "hardware": HARDWARE}
        # A directory of its own for each recording: Python remembers source lines by file name.
        recorder_process.send((payload, memory, tempfile.mkdtemp(dir=tmp_path)))
        return recorder_process.recv()

    return call
