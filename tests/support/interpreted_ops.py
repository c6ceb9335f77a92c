"""Sits the ops' exams with their stock paths in Triton's interpreter, and prints as JSON what did not pass.

    interpreted_ops.py exams OP ...      {} where all is well
    interpreted_ops.py spoiled OP ...    the same with a sum over ranks that leaves one out
    interpreted_ops.py parts             errors of parts of the op graph, beside the plain paths'
    interpreted_ops.py joined PART ...   sits the exams of parts (o_proj_residual+attn_res_norm) with their stock paths

A script of its own: whether kernels are interpreted is decided when triton is imported. Products are torch's, in
float32 and rounded once as cuBLAS leaves them; streams are in order. What is CUDA C++ (routing, experts) needs a GPU.
"""

import contextlib
import json
import os
import sys
import types
import warnings
from unittest.mock import MagicMock

os.environ["TRITON_INTERPRET"] = "1"
warnings.filterwarnings("ignore")

from fasttrack_validation.contracts.kimi_k3.stock import require  # noqa: E402

if not require._installed("cuda.bindings"):
    # Only what is CUDA C++ calls it, and that is not run here.
    sys.modules |= {"cuda": MagicMock(), "cuda.bindings": MagicMock()}

import op_exam  # noqa: E402
import torch  # noqa: E402

from fasttrack_validation.contracts.base import TensorRole, Workload  # noqa: E402
from fasttrack_validation.judge.interpreter import arithmetic, device_library  # noqa: E402

arithmetic.install()
device_library.install()


class Stream:
    def wait_stream(self, other):
        pass


def product(form):
    def run(left, right, *, out_dtype=None, out=None):
        result = form(left.float(), right.float()).to(out_dtype or left.dtype)
        return result if out is None else out.copy_(result)

    return run


torch.cuda.get_device_properties = lambda: types.SimpleNamespace(multi_processor_count=6)
torch.cuda.Stream, torch.cuda.current_stream, torch.cuda.stream = Stream, Stream, contextlib.nullcontext

import stock_parts  # noqa: E402

from fasttrack_validation.contracts.kimi_k3 import graph  # noqa: E402
from fasttrack_validation.contracts.kimi_k3.kda_verify import layout as verify_layout  # noqa: E402
from fasttrack_validation.contracts.kimi_k3.part import subgraph  # noqa: E402
from fasttrack_validation.contracts.kimi_k3.stock import exchange, ops  # noqa: E402
from fasttrack_validation.contracts.kimi_k3.stock import parts as stock_path  # noqa: E402

torch.mm, torch.bmm = product(torch.mm), product(torch.bmm)

ROWS, SEED = 4, 5


def place(op, workload, inputs):
    """The op's tensors with its strides; what lies between rows is NaN."""
    laid = {}
    for spec in op.tensors(workload):
        if spec.role is TensorRole.OUTPUT:
            continue
        value = inputs[spec.name]
        storage = torch.full((max(spec.storage_elements, 1),), float("nan")).to(value.dtype)
        laid[spec.name] = storage.as_strided(spec.shape, spec.strides)
        laid[spec.name].copy_(value)
    return laid


def faults(op, workload, distribution):
    inputs = op.make_inputs(workload, distribution, SEED)
    laid = place(op, workload, inputs)
    bound = ops.prepare(op, laid, workload)
    bound.run()
    found = op_exam.failures(op, workload, inputs, bound.outputs)
    for name, value in inputs.items():
        if name not in op.produced and not torch.equal(laid[name].nan_to_num(), value.nan_to_num()):
            found.append(f"{name} was changed")
    return found


def workloads(name):
    if name == "kda_decode":
        op = op_exam.REAL.op(name)
        shard = op.architecture.kda_shard(48)
        yield op, stock_parts.layout.workload(shard, "small", ROWS, projected_gap=16, state_gap=64, slots_stride=2)
    elif name == "kda_verify":
        op = op_exam.REAL.op(name)
        shard = op.architecture.kda_shard(48)
        for requests, tokens in ((3, 3), (2, 1)):
            at = verify_layout.workload(shard, f"{requests}x{tokens}", requests, tokens, projected_gap=16, slots_gap=2)
            yield op, at
    elif name == "mla_verify":
        op = op_exam.nano(name)
        # By heads of a rank: a tile of eight queries and one of thirty-two, filled; and two tiles of fifty-six.
        for tp, requests, tokens in ((4, 3, 2), (4, 2, 8), (2, 2, 7)):
            rows, layout = requests * tokens, op._drawn(str(SEED))
            axes = {"tp": tp, "rows": rows, **op.paged_axes(tp, rows, tokens, layout)}
            yield op, Workload(name=f"{requests}x{tokens}", axes=axes)
    else:
        op = op_exam.nano(name)
        yield op, op_exam.drawn(op, 4, ROWS, SEED)


PARTS = {
    "a KDA layer up to its MLP, and the mix behind": (1, ("attention_mix", "in_projection", "kda_decode",
                                                          "o_proj_residual", "mlp_mix")),
    "a KDA layer that begins a block": (5, ("attention_mix", "in_projection", "kda_decode", "o_proj_residual",
                                            "mlp_mix")),
    "an MLA layer of a verify step": (3, ("mla_projection", "mla_query", "mla_verify", "mla_value", "o_proj_residual")),
    "an MLA layer up to its MLP": (3, ("mla_projection", "mla_query", "mla_core", "mla_value", "o_proj_residual")),
    "queries alone": (3, ("mla_projection", "mla_query")),
    "the dense layer": (0, ("mlp_mix", "dense_up", "dense_down")),
}  # fmt: skip


def parts():
    nano = op_exam.nano("head").architecture
    for what, (layer, names) in PARTS.items():
        # Two requests of two tokens.
        steps = graph.step(nano, tokens=2 if "mla_verify" in names else 1)
        of = stock_parts.Part(steps, [f"{layer}.{name}" for name in names], nano, 2, ROWS)
        tensors = of.draw()
        placed = stock_parts.laid_out(of, tensors, "cpu")
        bound = stock_path.prepare(steps, of.names, of.contracts, placed, of.workloads)
        bound.run()
        outputs = {name: value.clone() for name, value in bound.outputs.items()}
        yield {
            f"{what}: {name}": [
                stock_parts.error(outputs[name], exact), stock_parts.error(plain, exact)
            ]
            for (name, exact), plain in zip(
                of.expected(tensors).items(), of.expected(tensors, "plain").values(), strict=True
            )
        }  # fmt: skip


def joined(name):
    """The exam of a part, with one distribution for each member: that they differ is their own tests' business."""
    nano = op_exam.nano("head").architecture
    part = subgraph(nano, {name: type(op)(nano, op.policy) for name, op in op_exam.REAL.ops.items()}, name)
    workload = next(w for w in part.workloads() if (w.axes["tp"], w.axes["rows"]) == (8, ROWS))
    for distribution in ("typical", next(iter(list(part.distributions)[1:]))):
        inputs = part.make_inputs(workload, distribution, SEED)
        laid = place(part, workload, inputs)
        bound = part.bound(stock_path.prepare, laid, workload)
        bound.run()
        yield f"{name} {distribution}", op_exam.failures(part, workload, inputs, bound.outputs)


found, (what, *names) = {}, sys.argv[1:]
if what == "parts":
    for errors in parts():
        found |= errors
if what == "joined":
    found = {case: wrong for name in names for case, wrong in joined(name) if wrong}
    names = []
if what == "spoiled":
    whole = exchange.sum_residual
    exchange.sum_residual = lambda own, peers, residual, out: whole(own, peers[:-1], residual, out)
for name in names:
    for op, workload in workloads(name):
        for distribution in op.distributions:
            if wrong := faults(op, workload, distribution):
                found[f"{name} {workload.name} {distribution}"] = wrong
print(json.dumps(found))
