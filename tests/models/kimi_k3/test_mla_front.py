"""The first half of an MLA layer as one launch: its packing, plan and machine code; what it computes, on a CPU too."""

from types import SimpleNamespace

import pytest
import torch
from fasttrack_validation.contracts.kimi_k3 import paged_maths
from fasttrack_validation.contracts.kimi_k3.architecture import Architecture
from fasttrack_validation.judge.plan import validate
from half_layers import HARDWARE, SEED, HalfLayer, equal_bits, needs_compiler, with_rows, workload, wrong
from long_tests import long

PART = "attn_res_norm+mla_projection+mla_query+mla_core+mla_value+o_proj_residual+attn_res_norm+front"
LAUNCH = HalfLayer(PART, "mla_front")
kernel = LAUNCH.kernel


@pytest.fixture(scope="module")
def op():
    return LAUNCH.contract()


# Packing


def test_absorption_multiplies_a_head_by_its_own_keys_transposed():
    heads = 2
    random = torch.Generator().manual_seed(heads)
    up_key, x = (torch.randn(*shape, generator=random).bfloat16() for shape in ((heads, 128, 512), (heads, 8, 128)))
    names = ("res_norm", "res_proj")
    static = SimpleNamespace(
        up_key=up_key, up_value=torch.zeros(heads, 128, 512).bfloat16(), qkv_a_g=torch.zeros(16, 512).bfloat16(),
        q_b=torch.zeros(16, 512).bfloat16(), o_proj=torch.zeros(32, 512).bfloat16(),
        shared_gate_up=torch.zeros(32, 512).bfloat16(), router=torch.zeros(16, 512).bfloat16(),
        latent_down=torch.zeros(16, 512).bfloat16(),
        **{f"attn_res_norm_{mix}_{name}": torch.ones(512).bfloat16() for mix in (1, 2) for name in names},
    )  # fmt: skip
    units = kernel.prepare(None, static, {}, LAUNCH.config)["up_key_units"]
    # Head, tile of 64 latents, group of 16, warp of four that share k, step, row, quarter, register, element; PTX's
    # m16n8k16 has rows g and g + 8 in registers 0 and 1 at k 2 q, 2 q + 1, in 2 and 3 eight more.
    units = units.view(heads, 8, 4, 4, 2, 8, 4, 4, 2).double()
    operands = x.double().view(heads, 8, 4, 4, 2, 2, 2)  # head, row, warp, quarter, step, register half, element
    rows = [torch.einsum("htmwsgqpe,hnwqspe->htmgn", units[..., [half, half + 2], :], operands) for half in (0, 1)]
    absorbed = torch.stack(rows, 3).reshape(heads, 512, 8)
    expected = torch.einsum("hkl,hnk->hln", up_key.double(), x.double())
    torch.testing.assert_close(absorbed, expected, rtol=1e-12, atol=1e-12)


def test_constants_are_those_of_the_published_model():
    of = Architecture.from_config()
    assert (kernel.Q_RANK, kernel.LATENT, kernel.NOPE, kernel.SHARED_KEY, kernel.HEAD_DIM) == (
        of.mla.q_lora_rank, of.mla.kv_lora_rank, of.mla.qk_nope_head_dim, of.mla.qk_rope_head_dim, of.mla.v_head_dim,
    )  # fmt: skip
    assert (kernel.Q_EPS, kernel.KV_EPS) == (of.eps.mla_q_a, of.eps.mla_kv_a)
    width = of.mla.qk_nope_head_dim + of.mla.qk_rope_head_dim
    assert 2**kernel.SCALE_LOG2 == pytest.approx(torch.tensor(width**-0.5).double().exp().item())


# The plan


@pytest.fixture(scope="module")
def packs(op, tmp_path_factory):
    """A single row, and nine: two launches."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="CUDA C++ needs the extra fasttrack[cuda]")
    return {
        name: (at, LAUNCH.recorded(op, at, tmp_path_factory.mktemp("record")))
        for name, at in (("one", workload(op, "tp8-b1")), ("nine", with_rows(op, 9)))
    }


@pytest.mark.parametrize(("name", "launches"), [("one", 1), ("nine", 2)])
def test_a_plan_is_one_cooperative_launch_for_every_eight_rows(op, packs, name, launches):
    at, pack = packs[name]
    functions = {LAUNCH.entry: {}} | {file: {} for file in LAUNCH.sources if file.endswith(".cu")}
    assert validate(pack, op.tensors(at), functions) == ()
    assert len(pack.launches) == launches == len(pack.kernels), "a row alone, the ninth too, has an instance of its own"
    for launch in pack.launches:
        variant = pack.kernels[launch.kernel]
        assert launch.grid == (132, 1, 1) and variant.options["launch_cooperative_grid"]
        assert variant.options["threads"] == 640, "with any other number setmaxnreg would wait for ever"
        assert launch.shared_bytes <= HARDWARE["max_shared"]
        alone = name == "one" or launch is pack.launches[1]
        assert launch.arguments["p5"].value == (1 if alone else 8) and variant.constexprs["ALONE"] == alone


def test_pages_that_units_of_sixteen_tokens_do_not_tile_are_refused():
    context, buffers = SimpleNamespace(hardware=SimpleNamespace(multiprocessors=132)), SimpleNamespace()
    with pytest.raises(ValueError, match="pages of 24 tokens"):
        kernel.launch(context, buffers, {"rows": 1, "mla_query_page_size": 24}, LAUNCH.config)


@pytest.mark.parametrize("target", [90, 103])
@pytest.mark.parametrize("name", ["one", "nine"])
def test_it_compiles_without_spills(packs, name, target):
    from fasttrack_validation.judge.device_code import cuda_compiler, sass
    from fasttrack_validation.judge.device_code.refills import unfenced_refills

    for variant in packs[name][1].kernels.values():
        made = cuda_compiler.compile_kernel(LAUNCH.cuda_sources, variant, target)
        assert unfenced_refills(made.ptx) == (), "no slot is filled again before it is read"
        report = sass.ptxas_report(made.log)
        assert report.spill_store_bytes == report.spill_load_bytes == report.stack_bytes == 0
        assert report.registers == 96, "what 640 threads have before they move between warps"
        assert "setmaxnreg.inc" in made.ptx and "ldmatrix.sync.aligned.m8n8.x4.trans" in made.ptx


def test_without_its_fence_a_slot_is_filled_again_before_it_is_read(packs):
    """Slots hold cached rows too, which are read by ldmatrix."""
    from fasttrack_validation.judge.device_code import cuda_compiler
    from fasttrack_validation.judge.device_code.refills import unfenced_refills

    (variant,) = packs["one"][1].kernels.values()
    cuda = LAUNCH.cuda_sources
    file = "kernels/cuda/weight_ring.cuh"
    cuda[file] = cuda[file].replace('asm volatile("fence.proxy.async.shared::cta;" ::: "memory");', "")
    found = unfenced_refills(cuda_compiler.compile_kernel(cuda, variant, 90).ptx)
    reads = {refill.read[1].split()[0] for refill in found}
    assert {"ld.shared.v4.u32", "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"} <= reads


# What it computes

# As if on so many multiprocessors, blocks share tiles of latents, gate, queries, values and front. (A row takes seven.)
BLOCKS = 14
ON_CPU = HalfLayer(PART, "mla_front", query_blocks=5)


def exam_of(op, at, lengths, **changed):
    """Place, inputs, oracle, plain path; what is no row's to read holds NaN or absurd page numbers."""
    inputs = op.make_inputs(at, "typical", SEED)
    inputs["lengths"] = torch.tensor(lengths, dtype=torch.int32)
    paged_maths.forget_entries(inputs)
    paged_maths.forget_rows(inputs)
    inputs |= changed
    return at, inputs, op.oracle(inputs, at), op.plain(inputs, at)


@pytest.fixture(scope="module")
def short(op):
    """One row of 70 tokens at TP 16: two pages, two slices, the newest token in a unit that is not full."""
    return exam_of(op, workload(op, "tp16-b1"), [70])


def computed(op, exam, directory, blocks=BLOCKS, **how):
    at, inputs, *_ = exam
    made, buffers = ON_CPU.run(op, at, inputs, ON_CPU.on_cpu(directory, blocks, **how), "cpu")
    assert int(buffers.cells[1]) == 0, "a block gave up waiting"
    return made, buffers


@pytest.mark.slow
@needs_compiler
def test_its_text_agrees_with_the_oracle_on_a_cpu(op, short, tmp_path):
    made, buffers = computed(op, short, tmp_path)
    assert wrong(op, short, made) == set()
    assert int(buffers.cells[0]) == BLOCKS * 2, "all blocks arrive at two phases"


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("name", "lengths", "blocks"),
    [
        # Slices of a row lie in seven blocks; a row of one token, which is its newest; padding.
        ("tp8-b4", [1500, 0, 1, 64], 28),
        # Thirteen slices of 19 units, more than the ring holds, and one of nine.
        pytest.param("tp16-b1", [4096], BLOCKS, marks=long),
        # Eight rows, the most of a launch: of each a single block.
        pytest.param("tp8-b8", [257, 16, 0, 15, 17, 0, 1000, 63], 56, marks=long),
    ],
)
def test_rows_of_any_length_agree_with_the_oracle_on_a_cpu(op, tmp_path, name, lengths, blocks):
    exam = exam_of(op, workload(op, name), lengths)
    made, _ = computed(op, exam, tmp_path, blocks)
    assert wrong(op, exam, made) == set()


@pytest.mark.slow
@needs_compiler
def test_layouts_that_were_drawn_agree_with_the_oracle_on_a_cpu(op, tmp_path):
    """Pages of 16 tokens, rows of banks side by side or apart, gaps between rows and pages, blocks in other order."""
    varied = (op.vary(workload(op, "tp16-b1"), seed) for seed in range(100))
    at = next(at for at in varied if at.axes["mla_query_page_size"] == 16)
    exam = exam_of(op, at, [min(75, 16 * at.axes["mla_query_table_width"])])
    made, _ = computed(op, exam, tmp_path, backwards=True)
    assert wrong(op, exam, made) == set()


@pytest.mark.slow
@needs_compiler
def test_a_row_has_the_same_bits_whatever_is_beside_it(op, tmp_path):
    at, inputs, *_ = exam = exam_of(op, workload(op, "tp16-b2"), [130, 200])
    one, _ = computed(op, exam, tmp_path, 14)
    other = op.perturb_row(inputs, at, 1, SEED) | {"lengths": torch.tensor([130, 0], dtype=torch.int32)}
    two, _ = computed(op, (at, other), tmp_path, 14)
    pages = inputs["page_table"][0, :3].long()
    assert equal_bits(one.pop("cache")[pages], two.pop("cache")[pages])
    for tensor, got in one.items():
        assert equal_bits(got[0], two[tensor][0]), tensor
        assert not equal_bits(got[1], two[tensor][1]), tensor


FAULTS = {
    "the newest token is not attended to": (
        ("latent_attention.cuh", "row < rows ? reinterpret_cast<const uint32_t*>(newest)[word] : 0", "0"),
        {"partial"}, {"cache"},
    ),
    "slices are added without their maxima": (
        (
            "slices.cuh", "shares_[first + i] = exp2f(largest[first + i] - highest) / total;",
            "shares_[first + i] = 1 / total;",
        ),
        {"partial"}, {"cache"},
    ),
    "every page is taken to be the first one": (
        ("latent_attention.cuh", "__ldg(pages + token / PAGE)", "__ldg(pages)"), {"partial"}, {"cache"},
    ),
    "latents that two blocks share are half there": (
        ("split_product.cuh", "return owner(first) != owner(first + kChunks - 1);", "return false;"),
        {"cache", "partial"}, set(),
    ),
    "the shared key is cached without the first norm": (
        ("mla_front.cu", "__float2bfloat16(values[1] * scale)", "__float2bfloat16(values[1])"), {"cache"}, set(),
    ),
    "the gate is left out": (
        ("mla_front.cu", "parts.sum() * gate", "parts.sum()"), {"partial"}, {"cache"},
    ),
}  # fmt: skip


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("fault", [*list(FAULTS)[:2], *(pytest.param(fault, marks=long) for fault in list(FAULTS)[2:])])
def test_a_planted_fault_is_seen_on_a_cpu(op, short, tmp_path, fault):
    (file, old, new), seen, unseen = FAULTS[fault]
    # Of many tokens the newest one may weigh too little to be missed.
    exam = exam_of(op, workload(op, "tp16-b1"), [3]) if "newest" in fault else short
    made, _ = computed(op, exam, tmp_path, edit=(f"kernels/cuda/{file}", old, new))
    found = wrong(op, exam, made)
    assert seen <= found and not unseen & found


# Launched programmatically, beside the end of the kernel in front

EARLY = HalfLayer(PART, "mla_front", query_blocks=5, pdl=True)


@pytest.mark.slow
@needs_compiler
def test_beside_the_kernel_in_front_it_waits_and_leaves_the_same_bits(op, short, tmp_path):
    at, inputs, *_ = short
    early = EARLY.waits_on_cpu(op, at, inputs, tmp_path, BLOCKS)
    (tmp_path / "plain").mkdir()
    made, _ = computed(op, short, tmp_path / "plain")
    for tensor, got in made.items():
        assert equal_bits(got, early[tensor]), tensor


@pytest.mark.slow
@needs_compiler
def test_a_helper_that_does_not_wait_is_seen_on_a_cpu(op, short, tmp_path):
    """It adds up shares that are not there yet, where an earlier launch may still read."""
    at, inputs, *_ = short
    who = "} else if (thread >= kConsumers + 32) {\n            "
    context = EARLY.on_cpu(tmp_path, BLOCKS, ("kernels/cuda/mla_front.cu", f"{who}wait_for_predecessors();", who))
    made, _ = EARLY.run(op, at, inputs, context, "cpu")
    assert "o_proj_residual_stream" in wrong(op, short, made) and "others" in context.predecessor.changed


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["tp8-b1", "tp8-b4", "tp16-b8", "tp16-b16"])
def test_it_agrees_with_the_oracle_and_with_itself(op, name):
    LAUNCH.agrees_on_gpu(op, name, ("cache",))
