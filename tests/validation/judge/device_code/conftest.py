"""Compiles kernels in forked children, as the sandbox does, without the confinement."""

import faulthandler
import multiprocessing
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fasttrack_validation.judge.pack import KernelVariant

KERNELS = """
import triton
import triton.language as tl

@triton.jit
def add(x, y, o, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)

@triton.jit
def gemm(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr, HALF: tl.constexpr):
    m = tl.arange(0, M)[:, None]
    n = tl.arange(0, N)[None, :]
    x = tl.load(a + m * K + tl.arange(0, K)[None, :])
    y = tl.load(b + tl.arange(0, K)[:, None] * N + n)
    if HALF:
        r = tl.dot(x, y, input_precision=PRECISION, out_dtype=tl.float16)
    else:
        r = tl.dot(x, y, input_precision=PRECISION)
    tl.store(c + m * N + n, r)

@triton.jit
def downcast_gemm(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m = tl.arange(0, M)[:, None]
    n = tl.arange(0, N)[None, :]
    x = tl.load(a + m * K + tl.arange(0, K)[None, :]).to(tl.bfloat16)
    y = tl.load(b + tl.arange(0, K)[:, None] * N + n).to(tl.bfloat16)
    tl.store(c + m * N + n, tl.dot(x, y))

@triton.jit
def wide_sum(x, o, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, ROWS)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    v = tl.load(x + i)
    tl.store(o + i, v - tl.max(v, axis=0)[None, :] * tl.sum(v * v, axis=0)[None, :])

@triton.jit
def specialised(a, b, o, K, M: tl.constexpr, N: tl.constexpr, STEP: tl.constexpr):
    m = tl.arange(0, M)[:, None]
    n = tl.arange(0, N)[None, :]
    k = tl.arange(0, STEP)
    r = tl.zeros((M, N), tl.float32)
    for s in tl.range(0, K, STEP, warp_specialize=True):
        r = tl.dot(tl.load(a + m * K + (s + k)[None, :]), tl.load(b + (s + k)[:, None] * N + n), r)
    tl.store(o + m * N + n, r)

@triton.jit
def wave(x, o, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(o + i, tl.erf(tl.sin(tl.load(x + i))))

@triton.jit
def length(x, o, EVEN: tl.constexpr):
    v = tl.load(x + tl.arange(0, 128))
    tl.store(o, tl.sum(tl.fma(v, v, 0.0) if EVEN else v * v))

@triton.jit
def asks_where(x):
    tl.store(x, (x.to(tl.int64) & 255).to(tl.float32))

@triton.jit
def wrong(x):
    tl.store(x, undefined_name)
"""


@dataclass
class Outcome:
    status: str
    value: dict = field(default_factory=dict)
    blobs: tuple = ()
    error: str = ""
    stderr: str = ""


def _child(pipe, payload, scratch):
    faulthandler.disable()  # pytest's would print its own frames when the compiler aborts
    with open(Path(scratch) / "stderr", "wb") as file:
        os.dup2(file.fileno(), 2)
    from fasttrack_validation.judge.device_code import compile_job

    pipe.send(compile_job.run(payload, (), scratch))


def run_job(payload):
    """The compile job in a child of its own; a child that dies is an outcome, as in the sandbox."""
    from fasttrack_validation.judge.device_code import compile_job  # noqa: F401  (imported before the fork)

    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory() as scratch:
        child = context.Process(target=_child, args=(theirs, payload, scratch))
        child.start()
        theirs.close()
        try:
            answer = ours.recv()
        except EOFError:
            answer = None
        child.join()
        stderr = (Path(scratch) / "stderr").read_text()
        if answer is None:
            return Outcome("killed", error=f"exit code {child.exitcode}", stderr=stderr)
        return Outcome("ok", answer[0], tuple(answer[1]), stderr=stderr)


def variant(function, signature, constexprs=None, **options):
    """A variant of a kernel of KERNELS, its pointers divisible by 16."""
    constexprs = constexprs or {}
    return KernelVariant(
        file="kernels.py",
        function=function,
        signature={**signature, **dict.fromkeys(constexprs, "constexpr")},
        constexprs=constexprs,
        divisible_by_16=tuple(name for name, kind in signature.items() if kind.startswith("*")),
        options={
            "num_warps": 4, "num_stages": 3, "num_ctas": 1, "maxnreg": None, "enable_fp_fusion": True,
            "launch_pdl": False, "launch_cooperative_grid": False, **options,
        },
    )  # fmt: skip


def gemm(dtype, m, n, k, *, precision="tf32", half=False, out="fp32"):
    constexprs = {"M": m, "N": n, "K": k, "PRECISION": precision, "HALF": half}
    return variant("gemm", {"a": f"*{dtype}", "b": f"*{dtype}", "c": f"*{out}"}, constexprs)


ADD = variant("add", {"x": "*fp32", "y": "*fp32", "o": "*fp32", "n": "i32"}, {"BLOCK": 1024})


@pytest.fixture(scope="session")
def compiled():
    """compiled(variant, target) -> Built, each pair compiled once for all tests."""
    from fasttrack_validation.judge.device_code.build import build

    known = {}

    def call(kernel, target=90, source=KERNELS):
        key = (kernel.digest(), target, source)
        if key not in known:
            known[key] = build({"kernels.py": source}, {"kernel": kernel}, run_job, targets=(target,))
        return known[key]

    return call


@pytest.fixture(scope="session")
def lab():
    """The helpers of this file, for tests that build variants of their own."""
    from types import SimpleNamespace

    return SimpleNamespace(KERNELS=KERNELS, ADD=ADD, Outcome=Outcome, run_job=run_job, variant=variant, gemm=gemm)
