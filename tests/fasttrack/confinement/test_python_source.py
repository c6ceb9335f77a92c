"""What Python and CUDA sources may say: exploits with their rule and line, and the code that kernels really need."""

import pytest
from fasttrack.confinement.contents import Limits, check_contents
from fasttrack.confinement.rules import RULES

HONEST = '''"""One decode kernel: reads x (bf16), writes y (bf16), accumulates in fp32."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial, lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from cuda.bindings import driver
from triton.language.extra import libdevice

from . import layout
from .shared import rounding as _rounding
from ..schedule import Plan


@triton.jit
def kernel(input, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(input + at, mask=at < n), mask=at < n)


@dataclass(frozen=True)
class Config:
    block: int = 128
    tables: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self):
        object.__init__(self)


class Runner:
    def __init__(self, device):
        self.device = device
        self.cache = {}

    def launch(self, ctx, buffers, axes, config):
        dtype = getattr(torch, "bfloat16")
        self.cache[axes["rows"]] = torch.empty(4, dtype=dtype)
        total, (first, *rest) = 0, axes.values()
        total += first
        kernel[(1, 1, 1)](buffers["x"], buffers["y"], total, BLOCK=config["block"])
        buffers["x"][0] = F.relu(buffers["x"][0])
        return math.ceil(total), driver.CUdeviceptr
'''

EXPLOITS = [
    ("content.import", "import os"),
    ("content.import", "import subprocess as torch"),
    ("content.import", "from socket import socket"),
    ("content.import", "import numpy"),
    ("content.import", "import fasttrack_models.alpha.kernels"),
    ("content.import", "import torchevil"),
    ("content.import", "from torch import *"),
    ("content.import", "import ctypes.util"),
    ("content.relative_import", "from ... import core"),
    ("content.relative_import", "from ...beta.k import BETA"),
    ("content.forbidden_name", "m = __import__('os')"),
    ("content.forbidden_name", "exec('import os')"),
    ("content.forbidden_name", "f = eval"),
    ("content.forbidden_name", "\uff45val('1')"),
    ("content.forbidden_name", "open('/tmp/x', 'w')"),
    ("content.forbidden_name", "globals()['x'] = 1"),
    ("content.forbidden_name", "().__class__.__base__.__subclasses__()"),
    ("content.forbidden_name", "getattr((), '__class__')"),
    ("content.forbidden_name", "getattr(x, 'a' + 'b')"),
    ("content.forbidden_name", "from torch.utils.cpp_extension import load"),
    ("content.forbidden_name", "import torch.utils.cpp_extension as c"),
    ("content.forbidden_name", "import torch as t\nu = t.utils\nu.cpp_extension.load_inline('x', '')"),
    ("content.forbidden_name", "import torch\ngetattr(torch, 'load')('/tmp/x')"),
    ("content.forbidden_name", "from torch import hub as h"),
    ("content.forbidden_name", "import torch\ntorch.ops.load_library('/tmp/x.so')"),
    ("content.forbidden_name", "import torch\ntorch.set_default_dtype(torch.float64)"),
    ("content.forbidden_name", "import triton\ntriton.runtime.driver.set_active(None)"),
    ("content.forbidden_name", "import functools\nfunctools.sys.modules"),
    ("content.forbidden_name", "import collections\ncollections._sys.modules"),
    ("content.forbidden_name", "import torch.nn.functional as F\nF.importlib.import_module('os')"),
    ("content.forbidden_name", "from torch.utils import os"),
    ("content.forbidden_name", "import torch\nx = torch" + ".nn.functional.torch" * 5 + ".sys"),
    ("content.forbidden_name", "import torch\na = torch.nn.functional\nb = a.torch.sys"),
    ("content.forbidden_name", "from dataclasses import sys as s"),
    ("content.global_patch", "import torch\ntorch.nn.Linear.forward = None"),
    ("content.global_patch", "import torch\ntorch.backends.cuda.matmul.allow_tf32 = True"),
    ("content.global_patch", "from torch.cuda import Event\nEvent.elapsed_time = lambda *_: 1.0"),
    ("content.global_patch", "import torch\nt = torch\nt.empty = None"),
    ("content.global_patch", "import torch\nfor torch.x in (1, 2): pass"),
    ("content.global_patch", "import torch\nwith torch.no_grad() as torch.y: pass"),
    ("content.global_patch", "import torch\na, (torch.z, *b) = 1, (2, 3)"),
    ("content.global_patch", "import torch\ndel torch.empty"),
    ("content.global_patch", "import torch\n[0 for torch.x in (1,)]"),
    ("content.global_patch", "from ..schedule import TABLE\nTABLE['x'] = 1"),
    ("content.identifier", "\u0430 = 1"),
    ("content.identifier", "def f(\u0435): pass"),
    ("content.syntax", "def f(:"),
    ("content.syntax", "x = 1\nreturn (")
]  # fmt: skip


def problems(relative: str, text: str) -> list:
    return list(check_contents(relative, text.encode(), Limits()))


def test_an_honest_kernel_passes():
    assert problems("kernels/k.py", HONEST) == []


@pytest.mark.parametrize(("rule", "source"), EXPLOITS)
def test_exploit_fails_on_its_line(rule, source):
    found = problems("kernels/k.py", f"A = 1\n{source}\n")
    assert rule in {problem.rule for problem in found}, found
    last = 1 + len(source.split("\n"))
    assert all(2 <= problem.line <= last for problem in found)


def test_relative_imports_stay_inside_by_depth():
    assert problems("kernels/deep/k.py", "from ... import layout\n") == []
    assert [p.rule for p in problems("k.py", "from .. import beta\n")] == ["content.relative_import"]
    assert problems("k.py", "from . import layout\n") == []


def test_deep_nesting_is_a_finding_not_a_crash():
    assert {problem.rule for problem in problems("k.py", "x = " + "(" * 5000 + "1" + ")" * 5000)} == {"content.syntax"}
    assert problems("k.py", "x = " + "1 + " * 200 + "1\n") == []


def test_hostile_sources_are_read_in_time():
    """Each would take hours if reading were quadratic."""
    reversed_chain = "".join(f"a{n} = a{n - 1}.x\n" for n in range(30_000, 0, -1)) + "import torch as a0\n"
    assert problems("k.py", reversed_chain[: 1 << 19])
    chains = "\n".join("x" + ".y" * 900 for _ in range(280))
    assert {problem.rule for problem in problems("k.py", chains)} == {"content.forbidden_name"}
    assert problems("k.py", "import torch\ntorch" + ".y" * 900 + " = 1\n")


CUDA = [
    ('#include "../layout.cuh"\n', True), ("#include <cuda_bf16.h>\n", True), ("__global__ void k() {}\n", True),
    ('#include "../../core/x.h"\n', False), ("#include </etc/passwd>\n", False), ("#include <../x.h>\n", False),
    ("# include HEADER\n", False), ("#inc\\\nlude \"/etc/passwd\"\n", False), ("#embed \"x.bin\"\n", False),
    ('asm(".incbin \\"/etc/passwd\\"");\n', False),
]  # fmt: skip


@pytest.mark.parametrize(("source", "honest"), CUDA)
def test_cuda_includes(source, honest):
    assert [problem.rule for problem in problems("kernels/k.cu", source)] == ([] if honest else ["content.include"])


def test_every_content_rule_has_an_exploit():
    assert {rule for rule, _ in EXPLOITS} | {"content.include"} == {r for r in RULES if r.startswith("content.")}
