"""The first half of a KDA layer as one launch: its packing, its plan, its machine code; on a GPU, what it computes."""

from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from fasttrack_validation.contracts.kimi_k3.architecture import Architecture
from fasttrack_validation.judge.plan import validate
from half_layers import HARDWARE, SEED, HalfLayer, equal_bits, needs_compiler, with_rows, workload, wrong
from long_tests import long

LAUNCH = HalfLayer("attn_res_norm+in_projection+kda_decode+o_proj_residual+attn_res_norm+front", "kda_front")
half_layer = import_module("fasttrack_models.kimi_k3.kernels.half_layer")
kernel, CONFIG = LAUNCH.kernel, LAUNCH.config


@pytest.fixture(scope="module")
def op():
    return LAUNCH.contract()


# Packing


@pytest.mark.parametrize(("groups", "n", "k"), [(1, 48, 1024), (2, 64, 768), (4, 128, 256)])
def test_units_hold_what_the_lanes_of_an_mma_multiply(groups, n, k):
    """PTX's m16n8k16: lane 4 g + q has A rows g and g + 8 at k 2 q, 2 q + 1 (registers 0, 1) and 8 more (2, 3)."""
    random = torch.Generator().manual_seed(n)
    weight, x = (torch.randn(rows, k, generator=random).bfloat16() for rows in (n, 8))
    chunk, sharers = 512 // groups, 16 // groups
    units = half_layer.units(weight, groups).view(n // (16 * groups), k // chunk, groups, sharers, 2, 8, 4, 4, 2).double()
    # A lane's activations: eight consecutive ones for the two steps of its warp.
    operands = x.double().view(8, k // chunk, sharers, 4, 2, 2, 2)  # row, chunk, warp, q, step, register, element
    low = torch.einsum("tcmwsgqpe,ncwqspe->tmgn", units[..., [0, 2], :], operands)
    high = torch.einsum("tcmwsgqpe,ncwqspe->tmgn", units[..., [1, 3], :], operands)
    product = torch.stack([low, high], 2).reshape(n, 8)
    torch.testing.assert_close(product, weight.double() @ x.double().T, rtol=1e-12, atol=1e-12)


def test_gate_and_up_rows_of_a_channel_lie_eight_apart():
    size, width = 16, 512
    gate, up = torch.zeros(size, width), torch.ones(size, width)
    static = SimpleNamespace(
        shared_gate_up=torch.cat([gate, up]).bfloat16(), router=torch.zeros(16, width).bfloat16(),
        latent_down=torch.zeros(16, width).bfloat16(), in_proj=torch.zeros(16, width).bfloat16(),
        o_proj=torch.zeros(32, width).bfloat16(), a_log=torch.tensor([0.0, 1.0]),
        **{
            f"attn_res_norm_{mix}_{name}": torch.full((width,), 1.5).bfloat16()
            for mix in (1, 2)
            for name in ("res_norm", "res_proj")
        },
    )  # fmt: skip
    made = kernel.prepare(None, static, {}, CONFIG)
    # Tile, warp, step, lane, register (row g, row g + 8 in turn), element
    tiles = made["front_units"].view(-1, 16, 2, 32, 4, 2)
    assert (tiles[:2] == 0).all() and len(tiles) == 4
    assert (tiles[2:, :, :, :, [0, 2]] == 0).all() and (tiles[2:, :, :, :, [1, 3]] == 1).all()
    assert (made["queries"] == 2.25).all() and made["rate"].tolist() == pytest.approx([1, 2.718281828])


def test_where_nothing_is_banked_there_are_no_banks():
    stream, blocks = torch.zeros(3, 8), torch.zeros(2, 3, 8)
    assert len(half_layer.banks(SimpleNamespace(attn_res_norm_1_stream=stream))) == 0
    assert half_layer.banks(SimpleNamespace(attn_res_norm_1_stream=stream, blocks=blocks)) is blocks


def test_constants_are_those_of_the_published_model():
    of = Architecture.from_config()
    assert half_layer.HIDDEN == of.hidden_size
    assert (kernel.HEAD_DIM, kernel.GATE_RANK) == (of.kda.head_dim, of.kda.gate_rank)
    assert (kernel.GATE_LOWER_BOUND, kernel.L2_EPS, kernel.OUTPUT_EPS, half_layer.NORM_EPS) == (
        of.kda.gate_lower_bound, of.eps.kda_l2, of.eps.kda_output, of.eps.backbone,
    )  # fmt: skip
    assert (half_layer.SITU_BETA, half_layer.SITU_LINEAR_BETA) == (of.situ.beta, of.situ.linear_beta)


# The plan


@pytest.fixture(scope="module")
def packs(op, tmp_path_factory):
    """Rows of one launch, and nineteen."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="CUDA C++ needs the extra fasttrack[cuda]")
    places = {
        "one": workload(op, "tp8-b1"),
        "nine": with_rows(op, 9, slots=14),
        "sixteen": workload(op, "tp8-b16"),
        "nineteen": with_rows(op, 19, slots=24),
    }
    return {name: (at, LAUNCH.recorded(op, at, tmp_path_factory.mktemp("record"))) for name, at in places.items()}


@pytest.mark.parametrize(
    ("name", "rows", "splits"),  # splits: blocks that share the value rows of a head
    [("one", [1], [8]), ("nine", [9], [2]), ("sixteen", [16], [1]), ("nineteen", [16, 3], [1, 4])],
)
def test_a_plan_is_one_cooperative_launch_for_every_sixteen_rows(op, packs, name, rows, splits):
    at, pack = packs[name]
    functions = {LAUNCH.entry: {}} | {file: {} for file in LAUNCH.sources if file.endswith(".cu")}
    assert validate(pack, op.tensors(at), functions) == ()
    assert [launch.arguments["p4"].value for launch in pack.launches] == rows
    for launch in pack.launches:
        variant = pack.kernels[launch.kernel]
        assert launch.grid == (132, 1, 1) and variant.options["launch_cooperative_grid"]
        assert variant.options["threads"] == 640, "with any other number setmaxnreg would wait for ever"
        assert launch.shared_bytes <= HARDWARE["max_shared"]
    constants = [pack.kernels[launch.kernel].constexprs for launch in pack.launches]
    assert [of["SPLIT"] for of in constants] == splits
    assert {of["ALONE"] for of in constants} == {name == "one"}, "a row alone waits at no barrier"
    assert {of["ROWS_AT_ONCE"] for of in constants} == {8 if name == "one" else 16}, "one instance for all of a batch"


def test_eight_rows_are_served_by_their_own_instance():
    assert [kernel.rows_at_once(rows) for rows in (1, 8, 9, 16, 17, 64)] == [8, 8, 16, 16, 16, 16]


@pytest.mark.parametrize("target", [90, 103])
@pytest.mark.parametrize("name", ["one", "sixteen", pytest.param("nineteen", marks=long)])
def test_it_compiles_without_spills(packs, name, target):
    from fasttrack_validation.judge.device_code import cuda_compiler, sass
    from fasttrack_validation.judge.device_code.refills import unfenced_refills

    _, pack = packs[name]
    cuda = LAUNCH.cuda_sources
    for variant in pack.kernels.values():
        made = cuda_compiler.compile_kernel(cuda, variant, target)
        assert unfenced_refills(made.ptx) == (), "no slot is filled again before it is read"
        report = sass.ptxas_report(made.log)
        assert report.spill_store_bytes == report.spill_load_bytes == report.stack_bytes == 0
        assert report.registers == 96, "what 640 threads have before they move between warps"
        assert "setmaxnreg.inc" in made.ptx and "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in made.ptx


def test_without_its_fence_a_slot_is_filled_again_before_it_is_read(packs):
    """On a GPU that switched between processes, one launch of some ten thousand had a warp's weights replaced by later ones."""
    from fasttrack_validation.judge.device_code import cuda_compiler
    from fasttrack_validation.judge.device_code.refills import unfenced_refills

    (variant,) = packs["one"][1].kernels.values()
    cuda = LAUNCH.cuda_sources
    file = "kernels/cuda/weight_ring.cuh"
    cuda[file] = cuda[file].replace('asm volatile("fence.proxy.async.shared::cta;" ::: "memory");', "")
    found = unfenced_refills(cuda_compiler.compile_kernel(cuda, variant, 90).ptx)
    assert {refill.read[1].split()[0] for refill in found} == {"ld.shared.v4.u32"}, "weights, and nothing else"
    assert all(refill.handed[1].startswith("mbarrier.arrive.shared::cta.b64") for refill in found)


# What it computes

# As if on so many multiprocessors, blocks share tiles.
BLOCKS = 9


@pytest.fixture(scope="module")
def exam(op):
    """One row at TP 16: place, inputs, oracle, plain path."""
    at = workload(op, "tp16-b1")
    inputs = op.make_inputs(at, "typical", SEED)
    return at, inputs, op.oracle(inputs, at), op.plain(inputs, at)


@pytest.mark.slow
@needs_compiler
def test_its_text_agrees_with_the_oracle_on_a_cpu(op, exam, tmp_path):
    at, inputs, *_ = exam
    made, buffers = LAUNCH.run(op, at, inputs, LAUNCH.on_cpu(tmp_path, BLOCKS), "cpu")
    assert wrong(op, exam, made) == set() and int(buffers.cells[1]) == 0
    assert int(buffers.cells[0]) == BLOCKS * 3, "all blocks arrive at three phases"


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("edit", "seen", "unseen"),
    [
        # Rows of a product that two blocks share are read from the first of them alone. (The second mix hides it.)
        pytest.param(
            ("kernels/cuda/split_product.cuh", "return owner(first) != owner(first + kChunks - 1);", "return false;"),
            {"conv_state", "partial", "o_proj_residual_stream"},
            set(),
            marks=long,
        ),
        # The front's shared rows are finished without what the next block has of them.
        (
            ("kernels/cuda/half_layer.cuh", "rest[0] = receive(tail, epoch, health);", "rest[0] = 0;"),
            {"latent"},  # at TP16 no tile of the router is shared
            {"logits", "recurrent_state", "conv_state", "partial", "o_proj_residual_stream"},
        ),
    ],
    ids=["projections", "front"],
)
def test_a_planted_fault_is_seen_on_a_cpu(op, exam, tmp_path, edit, seen, unseen):
    at, inputs, *_ = exam
    made, _ = LAUNCH.run(op, at, inputs, LAUNCH.on_cpu(tmp_path, BLOCKS, edit), "cpu")
    found = wrong(op, exam, made)
    assert seen <= found and not unseen & found


# Launched programmatically, beside the end of the kernel in front

EARLY = HalfLayer(LAUNCH.part, "kda_front", pdl=True)


@pytest.mark.slow
@needs_compiler
def test_beside_the_kernel_in_front_it_waits_and_leaves_the_same_bits(op, exam, tmp_path):
    at, inputs, *_ = exam
    early = EARLY.waits_on_cpu(op, at, inputs, tmp_path, BLOCKS)
    (tmp_path / "plain").mkdir()
    made, _ = LAUNCH.run(op, at, inputs, LAUNCH.on_cpu(tmp_path / "plain", BLOCKS), "cpu")
    for tensor, got in made.items():
        assert equal_bits(got, early[tensor]), tensor


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("who", "seen", "changed"),
    [
        ('asm volatile("setmaxnreg.inc.sync.aligned.u32 112;");\n    ', {"partial", "conv_state", "latent"}, {"cells"}),
        ("} else if (thread >= kConsumers + 32) {\n            ", {"o_proj_residual_stream"}, {"others"}),
    ],
    ids=["consumers", "helpers"],
)
def test_whoever_does_not_wait_is_seen_on_a_cpu(op, exam, tmp_path, who, seen, changed):
    at, inputs, *_ = exam
    context = EARLY.on_cpu(tmp_path, BLOCKS, ("kernels/cuda/kda_front.cu", f"{who}wait_for_predecessors();", who))
    made, _ = EARLY.run(op, at, inputs, context, "cpu")
    assert seen <= wrong(op, exam, made) and changed <= context.predecessor.changed


# More than eight rows: sixteen blocks or more, since each mixes one row.


@pytest.fixture(scope="module")
def rows16(op):
    """Sixteen rows at TP 16, one of them padding."""
    at = workload(op, "tp16-b16")
    inputs = op.make_inputs(at, "typical", SEED)
    inputs["slots"][10] = 0
    return at, inputs


PICKED = torch.arange(15, 6, -1)


@pytest.fixture(scope="module")
def exam9(op, rows16):
    """The last nine of them, backwards: one group of eight and a row of the next. Place, inputs, oracle, plain path."""
    at, inputs = with_rows(op, 9, slots=rows16[0].axes["slots"]), dict(rows16[1])
    for tensor in ("attn_res_norm_1_stream", "slots"):
        inputs[tensor] = inputs[tensor][PICKED]
    for tensor in ("blocks", "peers"):
        inputs[tensor] = inputs[tensor][:, PICKED]
    return at, inputs, op.oracle(inputs, at), op.plain(inputs, at)


@pytest.mark.slow
@needs_compiler
def test_nine_rows_agree_with_the_oracle_on_a_cpu(op, exam9, tmp_path):
    at, inputs, *_ = exam9
    made, buffers = LAUNCH.run(op, at, inputs, LAUNCH.on_cpu(tmp_path, 16), "cpu")
    assert wrong(op, exam9, made) == set()
    assert buffers.cells[:2].tolist() == [16 * 3, 0], "one launch"


@long
@needs_compiler
@pytest.mark.parametrize(
    ("name", "blocks", "backwards"),
    [
        ("tp8-b16", 132, False),  # all as on an H200
        ("tp16-b16", 132, False),
        ("tp16-b16", 17, True),  # the last block belongs to no team
        ("tp16-b8", 9, False),  # eight rows: blocks mix several and take several heads
    ],
)
def test_more_rows_agree_with_the_oracle_on_a_cpu(op, tmp_path, name, blocks, backwards):
    at = workload(op, name)
    inputs = op.make_inputs(at, "typical", SEED)
    made, buffers = LAUNCH.run(op, at, inputs, LAUNCH.on_cpu(tmp_path, blocks, backwards=backwards), "cpu")
    assert wrong(op, (at, inputs, op.oracle(inputs, at), op.plain(inputs, at)), made) == set()
    assert buffers.cells[:2].tolist() == [blocks * 3, 0]


@long
@needs_compiler
def test_the_last_rows_of_many_are_served_by_a_second_launch(op, tmp_path):
    at = with_rows(op, 19, slots=24)
    inputs = op.make_inputs(at, "typical", SEED)
    made, buffers = LAUNCH.run(op, at, inputs, LAUNCH.on_cpu(tmp_path, 16), "cpu")
    assert wrong(op, (at, inputs, op.oracle(inputs, at), op.plain(inputs, at)), made) == set()
    assert buffers.cells[:2].tolist() == [2 * 16 * 3, 0]


@long
@needs_compiler
def test_a_row_has_the_same_bits_whatever_is_beside_it(op, rows16, exam9, tmp_path):
    """Nine rows alone and among sixteen, at other places and in whatever order threads run."""
    (at, inputs), (at9, inputs9, *_) = rows16, exam9
    many, _ = LAUNCH.run(op, at, inputs, LAUNCH.on_cpu(tmp_path, 16), "cpu")
    (tmp_path / "nine").mkdir()
    few, _ = LAUNCH.run(op, at9, inputs9, LAUNCH.on_cpu(tmp_path / "nine", 16, backwards=True), "cpu")
    pages = inputs9["slots"][inputs9["slots"] > 0].long()
    for tensor, got in few.items():
        state = tensor in ("conv_state", "recurrent_state")
        one, other = (got[pages], many[tensor][pages]) if state else (got, many[tensor][PICKED])
        assert equal_bits(one, other), tensor


@long
@needs_compiler
@pytest.mark.parametrize(
    ("edit", "seen", "unseen"),
    [
        # Of a column the first half of k alone is read.
        (
            ("kernels/cuda/handed_on.cuh", "span ? values[i] + sum : sum;", "span ? values[i] : sum;"),
            {"conv_state", "recurrent_state", "partial", "logits", "latent", "shared"},
            set(),
        ),
        # Both blocks of a team are sent the weights of the first half.
        (
            ("kernels/cuda/split_product.cuh", "* (SPANS - 1) + span())", "* (SPANS - 1))"),
            {"conv_state", "recurrent_state", "partial", "logits", "latent", "shared"},
            set(),
        ),
        # The ninth row is multiplied with the activations of the first.
        (
            ("kernels/cuda/half_layer.cuh", "from + 8 * eight * kHidden + chunk", "from + chunk"),
            {"conv_state", "recurrent_state", "partial", "logits", "latent", "shared"},
            set(),
        ),
        (
            ("kernels/cuda/kda_front.cu", "if (eight) load_gated(row);", "if (eight) load_gated(lane_row);"),
            {"partial", "o_proj_residual_stream"},
            {"conv_state", "recurrent_state"},
        ),
        # Sums of a tile are replaced by those of the next one before they are added.
        (
            ("kernels/cuda/split_product.cuh", "if (EIGHTS > 1) sync_consumers();", ""),
            {"conv_state", "partial"},
            set(),
        ),
        # A block's later heads leave the convolution's window as it was.
        (
            ("kernels/cuda/kda_front.cu", "if (round) kda.shift(), kda.turn_to", "if (round) kda.turn_to"),
            {"conv_state"},
            {"recurrent_state", "partial", "logits"},
        ),
        # Of the front, rows behind the eighth are left to the other block as well.
        (
            ("kernels/cuda/half_layer.cuh", "at = Front::span() * 8 + i / 16 % 8;", "at = i / 16 % 8;"),
            {"logits", "latent", "shared"},
            {"conv_state", "recurrent_state", "partial", "o_proj_residual_stream"},
        ),
    ],
    ids=["half", "weights", "group", "attention", "sums", "window", "front"],
)
def test_a_planted_fault_of_nine_rows_is_seen_on_a_cpu(op, exam9, tmp_path, edit, seen, unseen):
    at, inputs, *_ = exam9
    made, _ = LAUNCH.run(op, at, inputs, LAUNCH.on_cpu(tmp_path, 16, edit), "cpu")
    found = wrong(op, exam9, made)
    assert seen <= found and not unseen & found


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["tp8-b1", "tp8-b4", "tp8-b16", "tp16-b8", "tp16-b16"])
def test_it_agrees_with_the_oracle_and_with_itself(op, name):
    LAUNCH.agrees_on_gpu(op, name, ("conv_state", "recurrent_state"))
