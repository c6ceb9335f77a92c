"""Short cuts of the interpreter: the same bits as without them."""

import json
import os
import subprocess
import sys

PROGRAM = """
import hashlib, json, sys
import torch, triton
import triton.language as tl
from fasttrack_validation.judge.interpreter.serving import InterpretingContext

sys.modules[__name__].__package__ = ""


@triton.jit
def bits(x, y, out, flags, N: tl.constexpr, M: tl.constexpr):
    n = tl.arange(0, N)
    m = tl.arange(0, M)
    a = tl.load(x + n)[:, None]
    b = tl.load(y + m)[None, :]
    both = (a & b) | (a ^ 21) ^ (b & -2147483648)
    odd = ((a & 1) == 1) & (b > 0) | (m < 2)[None, :]
    cube = tl.reshape(both, [N, M, 1])[:, :, None, :]
    tl.store(out + n[:, None] * M + m[None, :], tl.sum(tl.sum(cube, axis=3), axis=2))
    tl.store(flags + n[:, None] * M + m[None, :], (odd ^ (a < 0)).to(tl.int32))


InterpretingContext()
found = []
for quicker in (False, True):
    if quicker:
        from fasttrack_validation.numerics.whole_model import quicker

        quicker.install()
        quicker.install()
    random = torch.Generator().manual_seed(0)
    x, y = (torch.randint(-(2**31), 2**31 - 1, (size,), generator=random, dtype=torch.int32) for size in (8, 16))
    for _ in range(2):
        out, flags = torch.zeros(8, 16, dtype=torch.int32), torch.zeros(8, 16, dtype=torch.int32)
        bits[(1,)](x, y, out, flags, N=8, M=16)
        a, b = x[:, None], y[None]
        assert torch.equal(out, (a & b) | ((a ^ 21) ^ (b & -2147483648)))
        odd = ((a & 1) == 1) & (b > 0) | (torch.arange(16) < 2)[None]
        assert torch.equal(flags.bool(), odd ^ (a < 0))
        found.append(hashlib.sha256(out.numpy().tobytes() + flags.numpy().tobytes()).hexdigest())
print(json.dumps(found))
"""


def test_indices_types_and_bits_are_what_they_were(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, env=os.environ | {"TRITON_INTERPRET": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert len(set(json.loads(done.stdout))) == 1
