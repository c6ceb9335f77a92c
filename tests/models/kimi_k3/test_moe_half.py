"""The mixture as one launch: what its CUDA C++ computes, on a CPU. Compiled, and run on a GPU: test_kimi_k3_cuda_experts.py."""

import cuda_on_cpu
import pytest
import torch
from fasttrack_models.kimi_k3.kernels import moe_half
from fasttrack_validation import contracts
from fasttrack_validation.contracts.kimi_k3.part import subgraph
from half_layers import SEED, HalfLayer, equal_bits, needs_compiler, wrong
from long_tests import long

PART = "routing+experts+shared_down+latent_up"
LAUNCH = {
    structure: HalfLayer(PART, "moe_half", num_stages=2, structure=structure) for structure in ("resident", "spread")
}
# As if on so many multiprocessors: one takes two row blocks of W2 at most where a block keeps them, and ends eight channels.
BLOCKS = {"resident": 112, "spread": 56}
ROUTING = "kernels/cuda/routing.cuh"


@pytest.fixture(scope="module")
def op():
    """The published mixture at TP 16 but for its experts' width: 64 channels of a rank instead of 192."""
    model = contracts.load("kimi_k3")
    moe = model.architecture.moe.model_copy(update={"expert_intermediate_size": 1024})
    of = model.architecture.model_copy(update={"moe": moe})
    return subgraph(of, {name: type(one)(of, one.policy) for name, one in model.ops.items()}, PART)


def place(op, rows):
    """So many rows at TP 16."""
    found = next(w for w in op.workloads() if w.axes["tp"] == 16)
    shapes = {"routed_stride": rows * 3584, "shared_stride": rows * 448}
    return found.model_copy(update={"axes": found.axes | shapes | {"rows": rows}})


def drawn(op, rows, distribution="typical"):
    """Place, inputs, oracle, plain path."""
    at = place(op, rows)
    inputs = op.make_inputs(at, distribution, SEED)
    return at, inputs, op.oracle(inputs, at), op.plain(inputs, at)


def ran(op, exam, structure, directory, **how):
    launch = LAUNCH[structure]
    made, buffers = launch.run(op, *exam[:2], launch.on_cpu(directory, BLOCKS[structure], **how), "cpu")
    assert buffers.barrier[1] == 0 and buffers.barrier[0] & 0x7FFFFFFF == 0, "the barrier stands as it began"
    return made


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("rows", "structure", "distribution"),
    [
        (1, "resident", "typical"),
        (1, "spread", "routing_ties"),
        (3, "resident", "experts_repeated"),
        (9, "spread", "routing_crowded"),
        pytest.param(16, "resident", "typical", marks=long),
        pytest.param(33, "spread", "typical", marks=long),
    ],
)
def test_its_text_agrees_with_the_oracle_on_a_cpu(op, tmp_path, rows, structure, distribution):
    exam = drawn(op, rows, distribution)
    assert wrong(op, exam, ran(op, exam, structure, tmp_path)) == set()


@pytest.mark.slow
@needs_compiler
def test_a_rows_bits_depend_on_nothing_but_the_row(op, tmp_path):
    """Alone, among others, whoever runs first: the same."""
    exam = drawn(op, 3)
    together = ran(op, exam, "spread", tmp_path, backwards=True)
    inputs = dict(exam[1])
    for name in ("logits", "experts_x", "shared_down_x", "residual"):
        inputs[name] = inputs[name][2:]
    for name in ("latent_up_routed", "shared"):
        inputs[name] = inputs[name][:, 2:]
    (tmp_path / "alone").mkdir()
    alone = ran(op, (place(op, 1), inputs), "spread", tmp_path / "alone")
    for name, tensor in alone.items():
        assert equal_bits(tensor[0], together[name][2]), name


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("rows", "structure", "edit", "seen", "unseen"),
    [
        # What another warp's slice of k adds is left out.
        (
            1, "resident",
            ("kernels/cuda/experts.cu", "for (int i = 0; i < SLICES; i++) total += partial[i][row][token];",
             "for (int i = 1; i < SLICES; i++) total += partial[i][row][token];"),
            {"experts_routed", "partial"}, {"stream"},
        ),
        # The scale of a chunk's last columns is taken for its first.
        (
            1, "resident",
            ("kernels/cuda/mxfp4.cuh", "__uint_as_float((a ? bytes << 7 : bytes << 23) & 0x7F800000u)",
             "__uint_as_float((bytes << 7) & 0x7F800000u)"),
            {"experts_routed"}, {"partial", "stream"},
        ),
        # The last rank's share is left out of the layer's end.
        (
            1, "resident",
            ("kernels/cuda/latent_up.cuh", "for (int rank = 0; rank < RANKS; rank++) others +=",
             "for (int rank = 0; rank < RANKS - 1; rank++) others +="),
            {"stream"}, {"experts_routed", "partial"},
        ),
        # Nobody waits for the activations of the experts that it takes.
        (3, "spread", ("kernels/cuda/experts.cu", "if (fresh) wait_for", "if (false) wait_for"),
         {"experts_routed"}, {"partial", "stream"}),
        # What is counted of them goes on from the launch before.
        (3, "spread", ("kernels/cuda/experts.cu", "ready[i] = 0;", "ready[i] = 1 << 20;"),
         {"experts_routed"}, {"partial", "stream"}),
    ],
    ids=["slices", "scales", "ranks", "no wait", "an old count"],
)  # fmt: skip
def test_a_planted_fault_is_seen_on_a_cpu(op, tmp_path, rows, structure, edit, seen, unseen):
    exam = drawn(op, rows)
    found = wrong(op, exam, ran(op, exam, structure, tmp_path, edit=edit))
    assert seen <= found and not unseen & found


# Launched programmatically, beside the end of the kernel in front


def ran_early(op, exam, structure, early, directory, **how):
    """What it leaves, and what it wrote before the kernel in front had ended."""
    launch = HalfLayer(PART, "moe_half", num_stages=2, structure=structure, pdl=True, early=early)
    context = launch.on_cpu(directory, BLOCKS[structure], **how)
    made, buffers = launch.run(op, *exam[:2], context, "cpu")
    assert buffers.barrier[1] == 0, "no block gave up"
    return made, context.predecessor.changed


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("rows", "structure", "early"),
    [(1, "resident", 1), (3, "spread", 0), pytest.param(9, "spread", 1, marks=long), pytest.param(16, "resident", 1, marks=long)],
)
def test_beside_the_kernel_in_front_it_waits_and_leaves_the_same_bits(op, tmp_path, rows, structure, early):
    exam = drawn(op, rows)
    made, changed = ran_early(op, exam, structure, early, tmp_path)
    assert changed == set()
    (tmp_path / "plain").mkdir()
    for name, tensor in ran(op, exam, structure, tmp_path / "plain").items():
        assert equal_bits(tensor, made[name]), name


WAIT = "  wait_for_predecessors();\n"
LOGITS = (
    "#if ROUTE\n  if (one_row || blockIdx.x < rows)"
    " among = candidates(logits + (size_t)(one_row ? 0 : blockIdx.x) * logits_stride, bias);\n"
)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("rows", "structure", "edit", "seen", "unseen", "early"),
    [
        (1, "resident", (WAIT, ""), {"experts_routed", "partial", "stream"}, set(), {"partial"}),
        # The logits of a kernel that has not ended.
        (1, "resident", (WAIT + LOGITS, LOGITS + WAIT), {"experts_routed"}, {"partial", "stream"}, set()),
        # A counter that an earlier launch may still look at is cleared.
        (3, "spread", (WAIT, "  ready[0] = 0;\n" + WAIT), set(), {"experts_routed", "partial", "stream"}, {"ready"}),
    ],
    ids=["no wait", "logits in front of it", "a counter in front of it"],
)  # fmt: skip
def test_a_wait_that_comes_too_late_is_seen_on_a_cpu(op, tmp_path, rows, structure, edit, seen, unseen, early):
    exam = drawn(op, rows)
    made, changed = ran_early(op, exam, structure, 1, tmp_path, edit=("kernels/cuda/experts.cu", *edit))
    found = wrong(op, exam, made)
    assert seen <= found and not unseen & found and early <= changed


# The choice alone, a block for each row

CHOICE = """
#include "routing.cuh"
extern "C" __global__ void __launch_bounds__(512) choice(const float* logits, const float* bias, int* ids, float* weights) {
  extern __shared__ __align__(128) unsigned char memory[];
  RoutingWork& work = *(RoutingWork*)memory;
  const size_t row = blockIdx.x;
  const Candidates among = candidates(logits + row * EXPERTS, bias);
  choose(work, among, SCALING, ids + row * TOP, weights + row * TOP);
}
"""


class Choice:
    """The compiled choice, and what it has to be: the contract's, by a stable sort in float32."""

    def __init__(self, directory, edit=None):
        texts = LAUNCH["spread"].cuda_sources | {"kernels/cuda/choice.cu": CHOICE}
        if edit:
            assert texts[ROUTING].count(edit[0]) == 1
            texts[ROUTING] = texts[ROUTING].replace(*edit)
        constants = {"EXPERTS": moe_half.EXPERTS, "TOP": moe_half.TOP, "SCALING": 1.0}
        self._run = cuda_on_cpu.compiled(texts, "kernels/cuda/choice.cu", constants, 512, directory)

    def __call__(self, logits, bias, backwards=False):
        ids = torch.full((len(logits), moe_half.TOP), -1, dtype=torch.int32)
        weights = torch.full(ids.shape, float("nan"))
        self._run(logits.contiguous(), bias, ids, weights, blocks=len(logits), shared_bytes=8192, backwards=backwards)
        return ids, weights


def expected(logits, bias):
    scores = torch.sigmoid(logits)
    order = (scores + bias).nan_to_num(float("-inf"), float("inf"), float("-inf"))
    ids = order.sort(dim=-1, descending=True, stable=True).indices[:, : moe_half.TOP]
    return ids, scores.gather(1, ids)


def crowds():
    """Logits [rows, 896] by name: where the best lie, and how many are as good as the last one that is chosen."""
    random, experts = torch.Generator().manual_seed(5), moe_half.EXPERTS
    base = torch.randn(6, experts, generator=random)
    raised = base.clone()
    for row, first in enumerate((0, 37, 448, 512, 880, 864)):
        raised[row, first : first + 16] += 5  # in one group of 32, in two, in the last one
    tied = torch.zeros(6, experts)
    for row, many in enumerate((1, 15, 16, 17, 32, 33)):
        tied[row, torch.randperm(experts, generator=random)[:many]] = 1.0
    coarse = (base * 2).round() / 2
    spread = base.clone()
    spread[:, ::32] += 6  # 28 that are far above the others, one a group
    zeros = torch.where(base > 0, 0.0, -0.0)
    return {"drawn": base, "in one group": raised, "many equal": tied, "few values": coarse, "one a group": spread, "zeros": zeros}


@pytest.mark.slow
@needs_compiler
def test_the_best_are_chosen_in_order_wherever_they_lie_and_however_many_tie(tmp_path):
    choice, bias = Choice(tmp_path), torch.zeros(moe_half.EXPERTS)
    steep = bias.clone()
    steep[100:116] = 3.0
    nothing = torch.full_like(bias, -0.5)  # sums of zero with a logit of zero
    for name, logits in crowds().items():
        for bias in (bias, steep, nothing):
            ids, weights = choice(logits, bias)
            assert torch.equal(choice(logits, bias, backwards=True)[0], ids), "whoever runs first"
            right, scores = expected(logits, bias)
            assert torch.equal(ids.long(), right), name
            torch.testing.assert_close(weights, scores / scores.sum(-1, keepdim=True), rtol=1e-6, atol=0)


@pytest.mark.slow
@needs_compiler
def test_scores_that_are_no_numbers_come_last(tmp_path):
    choice, bias = Choice(tmp_path), torch.zeros(moe_half.EXPERTS)
    bias[::3] = float("-inf")
    logits = torch.randn(3, moe_half.EXPERTS, generator=torch.Generator().manual_seed(1))
    logits[0, 1::3] = float("nan")  # 299 are left
    logits[1, 5:] = float("nan")  # four are left, and all others are as good as each other
    logits[2] = float("nan")
    assert torch.equal(choice(logits, bias)[0].long(), expected(logits, bias)[0])


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("edit", "crowd"),
    [
        (("lists > 1;", "lists > 2;"), "drawn"),
        (("lane < TOP ? lane : 31 - lane", "lane"), "drawn"),
        (("__shfl_xor_sync(~0u, keys[1], 31)", "keys[1]"), "drawn"),
        (("(u32)~expert", "(u32)expert"), "few values"),
        (("work.best + 2 * (ROUTE_WARPS - lists)", "work.best"), "drawn"),
    ],
    ids=["half of the lists", "two lists forwards", "both of a warp's forwards", "ties the other way", "one list for all rounds"],
)  # fmt: skip
def test_a_planted_fault_of_the_choice_is_seen(tmp_path, edit, crowd):
    logits, bias = crowds()[crowd], torch.zeros(moe_half.EXPERTS)
    ids, _ = Choice(tmp_path, edit)(logits, bias, backwards=True)
    assert not torch.equal(ids.long(), expected(logits, bias)[0])
