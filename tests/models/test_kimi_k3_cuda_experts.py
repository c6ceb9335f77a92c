"""The CUDA C++ experts: compiled for both targets as `launch` asks for them, and run where there is a GPU."""

import tomllib
from pathlib import Path
from types import SimpleNamespace

import fasttrack_models.kimi_k3 as package
import pytest
import torch
from fasttrack_models.kimi_k3.kernels import experts_cuda, moe_half
from fasttrack_validation.judge.device_code import cuda_compiler, sass
from fasttrack_validation.judge.device_code.refills import unfenced_refills
from half_layers import MEMORY, listed

ROOT = Path(package.__file__).parent
FILES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in ROOT.rglob("*.cu*")}
EXPERTS = 896
CASES = {
    "tp8, one row": (experts_cuda, 384, 1, "resident", {}),
    "tp8, 64 rows": (experts_cuda, 384, 64, "spread", {}),
    "tp16, 9 rows": (experts_cuda, 192, 9, "resident", {}),
    "tp8, choice and shared expert": (moe_half, 384, 8, "resident", {"shared_down_x": 768}),
    "tp8, one row to the layer's end": (moe_half, 384, 1, "resident", {"shared_down_x": 768, "columns": 896}),
    "tp8, 5 rows to the layer's end": (moe_half, 384, 5, "spread", {"shared_down_x": 768, "columns": 896}),
    "tp8, 16 rows to the layer's end": (moe_half, 384, 16, "resident", {"shared_down_x": 768, "columns": 896}),
    "tp16, 64 rows to the layer's end": (moe_half, 192, 64, "spread", {"shared_down_x": 384, "columns": 448}),
    "tp16, choice alone": (moe_half, 192, 3, "spread", {}),
}


class Asked:
    """A context that keeps what is launched."""

    hardware = SimpleNamespace(multiprocessors=132)

    def cuda(self, file, kernel, *, threads, constants, cooperative, pdl):
        self.variant = {"file": file, "function": kernel, "constexprs": constants}
        self.options = {"threads": threads, "cluster": 1, "cooperative": cooperative, "pdl": pdl}
        return self

    def __getitem__(self, grid):
        self.grid = grid
        return self

    def __call__(self, *arguments, shared_bytes):
        self.arguments, self.shared_bytes = arguments, shared_bytes


def asked_for(module, channels, rows, structure, more, **switches):
    columns = more.get("columns")
    axes = {"rows": rows, "channels": channels, "experts": EXPERTS}
    axes |= {"columns": columns, "tp": 7168 // columns} if columns else {}
    config = {"structure": structure, "num_stages": 2 if columns else 3} | switches
    x = "experts_x" if more else "x"
    names = ["stages13", "stages2", x, "experts_routed" if columns else "routed", *module.scratch(axes, config), *module.persistent(axes, config)]
    names += ["logits", "correction_bias"] if module is moe_half else ["ids", "weights"]
    names += ["shared_stages", "partial"] if more else []
    names += ["up_rows", "latent_norm", "residual", "stream"] if columns else []
    buffers = {name: torch.empty(1, 1) for name in names}
    buffers |= {name: torch.empty(rows, width) for name, width in more.items() if name != "columns"}
    if columns:
        buffers |= {name: torch.empty(axes["tp"], rows, 8) for name in ("latent_up_routed", "shared")}
    context = Asked()
    module.launch(context, SimpleNamespace(**buffers), axes, config)
    return context


def made(context, target, files=FILES):
    kinds = ["*u8" if isinstance(value, torch.Tensor) else "i32" for value in context.arguments]
    signature = {f"p{number}": kind for number, kind in enumerate(kinds)}
    variant = SimpleNamespace(
        **context.variant, signature=signature, ordered=tuple(signature), options=context.options
    )
    try:
        return cuda_compiler.compile_kernel(files, variant, target)
    except cuda_compiler.NoCudaCompiler as error:
        pytest.skip(str(error))


def compiled(context, target, files=FILES):
    return sass.ptxas_report(made(context, target, files).log)


@pytest.mark.parametrize("target", (90, 103))
@pytest.mark.parametrize("case", CASES)
def test_a_launch_compiles_without_spills_for_one_block_a_multiprocessor(case, target):
    context = asked_for(*CASES[case])
    code = made(context, target)
    assert unfenced_refills(code.ptx) == (), "no stage is filled again before it is read"
    report = sass.ptxas_report(code.log)
    assert (report.spill_store_bytes, report.spill_load_bytes, report.stack_bytes) == (0, 0, 0)
    assert report.registers * context.options["threads"] <= 65536
    assert context.options["cooperative"] and context.grid == (132,)
    assert context.shared_bytes + report.static_shared_bytes <= 227 << 10


def dispatched():
    """(TP, rows, structure) of every instance of the whole mixture that the table leads to on an H200: by its most rows."""
    entries = tomllib.loads((ROOT / "dispatch/moe_half.toml").read_text())["entry"]
    for entry in entries:
        first, last = entry["rows"]
        sizes = {experts_cuda._most_rows(rows): rows for rows in range(last, first - 1, -1)}
        for rows in sizes.values():
            yield entry["tp"], rows, entry["config"]


SWITCHES = {"as dispatched": {}, "programmatic": {"pdl": True, "early": 0}, "programmatic, a stage early": {"pdl": True}}


@pytest.mark.parametrize("target", (90, 103))
@pytest.mark.parametrize("switches", SWITCHES)
@pytest.mark.parametrize(("tp", "rows", "config"), list(dispatched()), ids=lambda value: str(value) if isinstance(value, int) else "")
def test_no_dispatched_instance_spills(tp, rows, config, switches, target):
    more = {"shared_down_x": 6144 // tp, "columns": 7168 // tp}
    context = asked_for(moe_half, 3072 // tp, rows, config["structure"], more, **SWITCHES[switches])
    assert context.variant["constexprs"]["STAGES"] == config["num_stages"]
    assert context.options["cooperative"] and context.options["pdl"] == (switches != "as dispatched")
    report = compiled(context, target)
    assert (report.spill_store_bytes, report.spill_load_bytes, report.stack_bytes) == (0, 0, 0)


@pytest.mark.parametrize("target", (90, 103))
@pytest.mark.parametrize("early", (0, 1))
@pytest.mark.parametrize("case", ("tp8, one row to the layer's end", "tp8, 5 rows to the layer's end", "tp8, 64 rows"))
def test_a_programmatic_launch_touches_no_memory_but_weights_before_it_waits(case, early, target, tmp_path):
    code = made(asked_for(*CASES[case], pdl=True, early=early), target)
    assert unfenced_refills(code.ptx) == (), "no stage is filled again before it is read"
    code = listed(code, tmp_path)
    wait, trigger = code.index("ACQBULK"), code.index("PREEXIT")
    assert code.count("ACQBULK") == 1 and not MEMORY & set(code[:wait]) and wait < trigger
    # The first copy stands in front of the wait where weights that need no choice are asked for early.
    assert (code.index("UBLKCP") < wait) == (early == 1 and "end" in case)


def test_a_launch_that_is_not_programmatic_neither_waits_nor_lets_others_come(tmp_path):
    code = listed(made(asked_for(*CASES["tp8, one row to the layer's end"]), 90), tmp_path)
    assert not {"ACQBULK", "PREEXIT"} & set(code)


def test_a_configuration_may_leave_out_that_all_blocks_run_at_once():
    case = CASES["tp8, one row to the layer's end"]
    ways = [asked_for(*case, **switches).options for switches in ({}, {"pdl": True}, {"pdl": True, "cooperative": False})]
    assert [(way["pdl"], way["cooperative"]) for way in ways] == [(False, True), (True, True), (True, False)]


def test_a_whole_ring_cannot_come_early():
    with pytest.raises(cuda_compiler.CudaError, match="followed by a wait, and by more"):
        compiled(asked_for(*CASES["tp8, one row to the layer's end"], pdl=True, early=2), 90)


@pytest.mark.parametrize("case", ("tp8, 64 rows", "tp8, 16 rows to the layer's end"))
def test_without_its_fence_a_stage_is_filled_again_by_whoever_read_it(case):
    file, fence = "kernels/cuda/weight_stream.cuh", 'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");'
    found = unfenced_refills(made(asked_for(*CASES[case]), 90, FILES | {file: FILES[file].replace(fence, "")}).ptx)
    assert found and all(refill.handed == refill.copy for refill in found)


def test_half_fragments_are_what_the_lanes_of_an_mma_multiply():
    """PTX's m16n8k16 with its lower eight rows alone: lane 4 g + q has row g at its k 2 q, 2 q + 1 and 8 more."""
    random = torch.Generator().manual_seed(1)
    weight, x = (torch.randn(rows, 128, generator=random).bfloat16() for rows in (16, 8))
    lanes = moe_half.half_fragments(weight).view(2, 4, 8, 4, 2, 2, 2).double()  # block, step, g, q, MMA, register, element
    operands = x.double().view(8, 4, 4, 2, 2, 2)  # token, step, q, MMA, register, element
    product = torch.einsum("bsgqmre,tsqmre->bgt", lanes, operands).reshape(16, 8)
    torch.testing.assert_close(product, weight.double() @ x.double().T, rtol=1e-12, atol=1e-12)


def test_registers_for_two_blocks_would_spill():
    file = "kernels/cuda/experts.cu"
    narrow = FILES | {file: FILES[file].replace("__launch_bounds__(32 * WARPS, 1)", "__launch_bounds__(32 * WARPS, 2)")}
    report = compiled(asked_for(*CASES["tp8, one row"]), 90, narrow)
    assert report.spill_store_bytes > 0


def test_too_little_shared_memory_does_not_compile():
    context = asked_for(*CASES["tp8, 64 rows"])
    context.variant["constexprs"]["SHARED_BYTES"] = 150_000
    with pytest.raises(cuda_compiler.CudaError, match="the launch brings less shared memory"):
        compiled(context, 90)


def test_more_rows_than_a_block_can_keep_are_spread():
    kept, more = (asked_for(experts_cuda, 384, rows, "resident", {}) for rows in (16, 17))
    assert [one.variant["constexprs"]["SPREAD"] for one in (kept, more)] == [False, True]
    more.variant["constexprs"]["SPREAD"] = False
    with pytest.raises(cuda_compiler.CudaError, match="a block keeps the products of all places"):
        compiled(more, 90)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", (1, 5, 13, 37))
def test_the_experts_pass_their_exam_on_a_gpu(rows):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    import cuda_context
    import cuda_experts

    op = cuda_experts.OP
    workload = op.at(16, rows, op._drawn(f"gpu {rows}"), "gpu")
    configs = [{"structure": structure, "num_stages": 2} for structure in experts_cuda.STRUCTURES]
    context = cuda_context.DeviceContext(ROOT)
    for distribution in ("typical", "repeated", "padded"):
        for config, wrong in cuda_experts.exam(context, workload, distribution, cuda_experts.fitting(configs, rows)):
            assert wrong == [], (distribution, config)
