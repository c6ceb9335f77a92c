"""Every op's stock path sits the op's own exam, and parts of the graph add up: interpreted here, compiled on a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import op_exam
import pytest
import stock_parts
import torch
from long_tests import long

from fasttrack_validation.contracts.base import TensorRole
from fasttrack_validation.contracts.kimi_k3 import graph as op_graph
from fasttrack_validation.contracts.kimi_k3 import stock
from fasttrack_validation.contracts.kimi_k3.part import subgraph
from fasttrack_validation.contracts.kimi_k3.stock import require
from fasttrack_validation.errors import UserError

SUPPORT = Path(__file__).parents[3] / "support"
NANO = op_exam.nano("head").architecture
GRAPH = op_graph.step(NANO)
OPS = tuple(op_exam.REAL.ops)
# CUDA C++: no interpreter.
COMPILED = {"routing", "experts"}
# At published widths, with layouts of their own.
KDA = ("kda_decode", "kda_verify")
# Ops whose oracle rounds nothing leave errors like the plain path's; another order of roundings no more than twice.
SLACK = 2


def interpreted(*arguments: str) -> dict:
    pytest.importorskip("fla")
    pytest.importorskip("triton")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, SUPPORT / "interpreted_ops.py", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_an_interpreted_stock_path_passes_its_exam_and_changes_no_input():
    """All distributions, strides with gaps; what is fused of MoE and CUDA C++ waits for a GPU."""
    assert interpreted("exams", *sorted(set(OPS) - COMPILED)) == {}


@pytest.mark.slow
def test_a_stock_path_that_is_wrong_does_not_pass():
    """A sum over ranks that leaves out the last one."""
    wrong = interpreted("spoiled", "o_proj_residual")
    assert len(wrong) > 3 and all("stream" in message for messages in wrong.values() for message in messages)


@pytest.mark.slow
def test_interpreted_parts_of_the_graph_are_as_near_to_their_oracles_as_the_plain_paths():
    found = interpreted("parts")
    assert len({name.split(": ")[0] for name in found}) == 6
    for name, (error, plain) in found.items():
        assert error <= SLACK * plain + 1e-6, name


JOINED = (
    "o_proj_residual+attn_res_norm",
    "attn_res_norm+in_projection+kda_decode+o_proj_residual+attn_res_norm+front",
    "mla_query+mla_core+mla_value",
    "layer:dense",
)


@pytest.mark.slow
@pytest.mark.parametrize("parts", [("o_proj_residual+attn_res_norm",), pytest.param(JOINED, marks=long)], ids=len)
def test_an_interpreted_stock_path_passes_the_exam_of_a_part(parts):
    assert interpreted("joined", *parts) == {}


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*JOINED, "routing+experts+shared_down+latent_up", "layer:kda", "layer:mla"])
def test_a_stock_path_passes_the_exam_of_a_part_on_a_gpu(gpu, name):
    part = subgraph(NANO, {name: type(op)(NANO, op.policy) for name, op in op_exam.REAL.ops.items()}, name)
    workload = next(w for w in part.workloads() if w.axes["rows"] == 4)
    inputs = part.make_inputs(workload, "typical", 5)
    got = part.stock("cuda")(on_gpu(part, workload, inputs), workload)
    got = {tensor: value.cpu().contiguous() for tensor, value in got.items()}
    assert op_exam.failures(part, workload, inputs, got) == []


@pytest.mark.parametrize("name", ["layer:kda", "routing+experts", "step"])
def test_without_a_gpu_a_part_and_a_step_are_refused_in_words(name):
    with pytest.raises(UserError, match="needs a CUDA GPU, not 'cpu'|nano configuration has no stock path on 'cpu'"):
        op_exam.REAL.op(name).stock("cpu")


@pytest.mark.parametrize("name", OPS)
def test_without_a_gpu_an_op_says_what_it_needs(name):
    with pytest.raises(UserError, match="needs a CUDA GPU, not 'cpu'"):
        op_exam.REAL.op(name).stock("cpu")


def test_without_a_gpu_a_part_says_what_it_needs():
    with pytest.raises(UserError, match="needs a CUDA GPU, not 'cpu'"):
        stock.part(GRAPH, ["1.in_projection"], {}, {}, {}, device="cpu")


@pytest.fixture
def gpu():
    try:
        require.gpu("cuda")
    except UserError as missing:
        pytest.skip(missing.what)


def on_gpu(op, workload, inputs):
    laid = {}
    for spec in op.tensors(workload):
        if spec.role is not TensorRole.OUTPUT:
            storage = torch.zeros(max(spec.storage_elements, 1), dtype=inputs[spec.name].dtype, device="cuda")
            laid[spec.name] = storage.as_strided(spec.shape, spec.strides)
            laid[spec.name].copy_(inputs[spec.name])
    return laid


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPS)
def test_a_stock_path_passes_its_exam_on_a_gpu(gpu, name):
    real = name in KDA
    op = op_exam.REAL.op(name) if real else op_exam.nano(name)
    workload = op.vary(op.workloads()[3], 1) if real else op_exam.drawn(op, 2, 6, 5)
    path = op.stock("cuda")
    for distribution in op.distributions:
        inputs = op.make_inputs(workload, distribution, 5)
        laid = on_gpu(op, workload, inputs)
        got = {tensor: value.cpu().contiguous() for tensor, value in path(laid, workload).items()}
        assert op_exam.failures(op, workload, inputs, got) == [], distribution


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPS)
def test_a_captured_run_reads_what_lies_there_at_its_replay(gpu, name):
    from fasttrack_validation.contracts.kimi_k3.stock.graph import capture

    real = name in KDA
    op = op_exam.REAL.op(name) if real else op_exam.nano(name)
    workload = op.workloads()[1] if real else op_exam.declared(op, 2, 3)
    first, second = (op.make_inputs(workload, "typical", seed) for seed in (1, 2))
    second = {**second, **{spec.name: first[spec.name] for spec in op.tensors(workload) if spec.role is
                           TensorRole.STATIC}}  # fmt: skip
    laid = on_gpu(op, workload, first)
    bound = op.stock("cuda").prepare(laid, workload)
    captured = capture(bound.run)
    assert captured.kernels and captured.others == ()
    for tensor, value in laid.items():
        value.copy_(second[tensor])
    captured.replay()
    got = {tensor: value.cpu().contiguous() for tensor, value in bound.outputs.items()}
    assert op_exam.failures(op, workload, second, got) == []


@pytest.mark.gpu
@pytest.mark.parametrize("layer", [0, 1, 3, 5, 12])
def test_a_layer_of_the_graph_is_as_near_to_its_oracle_as_the_plain_path(gpu, layer):
    """Dense and KDA; KDA and MLA with MoE; the first layer of a block; the last layer."""
    part = stock_parts.Part(GRAPH, GRAPH.layer(layer), NANO, 2, 5)
    tensors = part.draw()
    bound = stock.part(GRAPH, part.names, part.contracts, stock_parts.laid_out(part, tensors, "cuda"), part.workloads)
    bound.run()
    got = {name: value.cpu() for name, value in bound.outputs.items()}
    exact, plain = part.expected(tensors), part.expected(tensors, "plain")
    assert set(got) == set(exact)
    for name in exact:
        error = stock_parts.error(got[name], exact[name])
        assert error <= SLACK * stock_parts.error(plain[name], exact[name]) + 1e-6, name


@pytest.mark.gpu
def test_a_tensor_that_nobody_gives_is_named(gpu):
    part = stock_parts.Part(GRAPH, ["1.o_proj_residual", "1.mlp_mix"], NANO, 2, 3)
    tensors = stock_parts.laid_out(part, part.draw(), "cuda")
    del tensors["1.o_proj_residual.peers"]
    with pytest.raises(UserError, match="1.o_proj_residual.peers is not given"):
        stock.part(GRAPH, part.names, part.contracts, tensors, part.workloads)
