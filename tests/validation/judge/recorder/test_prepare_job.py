"""`prepare` on the judge's values, in a job that needs no recording hook (and so no particular Triton)."""

import json
import struct
import subprocess
import sys

from fasttrack_validation.judge.pack import KernelPack, ScratchBuffer
from fasttrack_validation.judge.prepare import _prepare_limits
from fasttrack_validation.tensors import DType

PREPARE = """
import torch


def prepare(ctx, static, axes, config):
    return {"packed": static.w.t().contiguous(), "scale": static.w.float().sum(dim=1) * config["factor"]}
"""

# Runs the job as the sandbox would, and says what was imported for it.
RUN = """
import json, sys, tempfile
from fasttrack_validation.judge.recorder import prepare_job
payload = json.loads(sys.argv[1])
answer, blobs = prepare_job.run(payload, (bytes.fromhex(sys.argv[2]),), tempfile.mkdtemp())
hooked = "fasttrack_validation.judge.recorder.triton_hook" in sys.modules
print(json.dumps([answer, [blob.hex() for blob in blobs], hooked]))
"""


def job(text: str, memory: bytes):
    spec = {"name": "w", "dtype": "bf16", "role": "static", "shape": [8, 8], "strides": [8, 1]}
    payload = {
        "candidate": {"op": "o", "entry": "kernel.py", "files": {"kernel.py": text}, "config": {"factor": 2}},
        "axes": {"rows": 4},
        "hardware": {"name": "h200", "capability": 90, "multiprocessors": 132, "max_shared": 232448},
        "static": [{"spec": spec, "offset": 6, "bytes": 128}],
    }
    arguments = [sys.executable, "-c", RUN, json.dumps(payload), memory.hex()]
    answer, blobs, hooked = json.loads(subprocess.run(arguments, capture_output=True, check=True).stdout)
    return answer, [bytes.fromhex(blob) for blob in blobs], hooked


def test_prepare_sees_the_static_values_and_hands_back_bytes():
    # bf16 holds the integers up to 256 exactly: its bits are the upper half of the float32's.
    values = [struct.unpack("<I", struct.pack("<f", float(n)))[0] >> 16 for n in range(64)]
    answer, blobs, hooked = job(PREPARE, b"\xff" * 6 + struct.pack("<64H", *values))
    assert answer == {"prepared": ["packed", "scale"]}
    assert blobs[0] == struct.pack("<64H", *[values[8 * (n % 8) + n // 8] for n in range(64)])
    assert blobs[1] == struct.pack("<8f", *(2 * sum(range(8 * row, 8 * row + 8)) for row in range(8)))
    assert not hooked


def test_a_prepare_that_returns_something_else_is_rejected_with_its_place():
    answer, blobs, _ = job("def prepare(ctx, static, axes, config):\n    return {'w': [1]}\n", bytes(134))
    assert answer["rejected"]["reason"] == "record.prepared" and blobs == []
    answer, _, _ = job("def prepare(ctx, static, axes, config):\n    return {'w': static.missing}\n", bytes(134))
    assert "kernel.py:2" in answer["rejected"]["where"] and "missing" in answer["rejected"]["message"]


def test_limits_leave_room_for_what_the_plan_declares():
    """90 MB of repacked weights, more than any job may say by default, at no less than 10 MB a second."""
    pack = KernelPack(
        op="op", workload="w", candidate_digest="0" * 64, kernels={}, launches=(), scratch={}, toolchain={},
        prepared={"packed": ScratchBuffer(shape=(45_000_000,), dtype=DType.BF16)},
    )  # fmt: skip
    limits = _prepare_limits(90_000_000, pack)
    assert limits.output_bytes == (64 << 20) + 90_000_000
    assert limits.wall_seconds == 60 + 18
