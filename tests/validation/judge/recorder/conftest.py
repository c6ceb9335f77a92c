"""Records candidates in a forked child, as the sandbox does, without the confinement."""

import multiprocessing

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


def _child(pipe, payload, memory, scratch):
    from fasttrack_validation.judge.recorder import job

    pipe.send(job.run(payload, memory, scratch))


@pytest.fixture
def record(tmp_path):
    """record(code, files=..., config=..., static=..., memory=...) -> (answer, blobs)."""
    # Imported before the fork, so that children do not pay for it.
    from fasttrack_validation.judge.recorder import job  # noqa: F401

    def call(code, *, files=None, entry="kernel.py", config=None, axes=None, static=None, memory=(), tensors=TENSORS):
        workload = {"name": "b4", "axes": axes or {"rows": 4}, "tensors": tensors}
        if static is not None:
            workload["static"] = static
        payload = {
            "candidate": {
                "op": "copy", "entry": entry, "files": files or {"kernel.py": HEADER + code}, "config": config or {},
            },
            "workloads": [workload],
            "hardware": HARDWARE,
        }  # fmt: skip
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        child = context.Process(target=_child, args=(theirs, payload, memory, tmp_path))
        child.start()
        theirs.close()
        try:
            return ours.recv()
        finally:
            child.join()

    return call
