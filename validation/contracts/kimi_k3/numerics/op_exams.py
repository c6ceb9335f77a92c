"""The ops at the widths of a small checkpoint: contracts, a workload of each, and tensors laid out as it says."""

from collections.abc import Mapping
from functools import cache
from random import Random

import torch
from torch import Tensor

from ....tensors import torch_dtype
from ...base import OpContract, TensorRole, Workload
from .. import load
from ..architecture import Architecture
from ..graph import step
from ..kda_decode import layout as kda_layout
from ..kda_verify import layout as verify_layout
from ..op import Layout


def contracts(of: Architecture) -> dict[str, OpContract]:
    """Every op's contract over `of`: distributions, oracle, plain path and tolerances are those of the real widths."""
    return {name: type(op)(of, op.policy) for name, op in load()[2].items()}


def workload(op: OpContract, tp: int, rows: int, seed: int) -> Workload:
    """`rows` rows on one rank of `tp`, in a layout that the seed draws."""
    name, random = f"tp{tp}-r{rows}-s{seed}", Random(f"{op.op} {tp} {rows} {seed}")
    if op.op == "kda_decode":
        shard = op.architecture.kda_shard(tp)
        return kda_layout.workload(
            shard, name, rows, slots=rows + 3 + random.randrange(3), projected_gap=8 * random.randrange(9),
            conv_gap=8 * random.randrange(1, 9), state_gap=4 * random.randrange(1, 9), slots_stride=random.choice((1, 2)),
        )  # fmt: skip
    if op.op == "kda_verify":
        return verify_layout.varied_to(op.architecture.kda_shard(tp), name, rows, random)
    return op.at(tp, rows, Layout(random), name)


@cache
def _readers(of: Architecture, tokens: int) -> Mapping[str, tuple[int, ...]]:
    found: dict[str, set[int]] = {}
    for name, node in step(of, tokens=tokens).nodes.items():
        number = name.partition(".")[0]
        found.setdefault(node.op, set()).update({int(number)} if number.isdigit() else ())
    return {op: tuple(sorted(layers)) for op, layers in found.items()}


def layers(op: OpContract) -> tuple[int, ...]:
    """Numbers of the layers that run an op, in a step of one token a request or of several; none behind the last one."""
    return _readers(op.architecture, 1).get(op.op) or _readers(op.architecture, 2).get(op.op, ())


def laid(op: OpContract, at: Workload, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Inputs with the strides of `at`, NaN between rows and pages; outputs full of NaN. Where the inputs are."""
    found, (device, *_) = {}, {tensor.device for tensor in inputs.values()}
    for spec in op.tensors(at):
        dtype = torch_dtype(spec.dtype)
        poison = float("nan") if dtype.is_floating_point else 0
        storage = torch.full((max(spec.storage_elements, 1),), poison, dtype=torch.float32, device=device).to(dtype)
        found[spec.name] = storage.as_strided(spec.shape, spec.strides)
        if spec.role is not TensorRole.OUTPUT:
            found[spec.name].copy_(inputs[spec.name])
    return found
