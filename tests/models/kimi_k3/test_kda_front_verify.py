"""A step to verify through the first half of a KDA layer in one launch: its plan, its machine code, what it computes on a CPU."""

import pytest
import torch
from fasttrack_validation.contracts.base import Workload
from fasttrack_validation.judge.plan import validate
from half_layers import SEED, HalfLayer, equal_bits, needs_compiler, workload, wrong
from long_tests import long

PART = "attn_res_norm+in_projection+kda_{}+o_proj_residual+attn_res_norm+front"
VERIFY, SINGLE = (HalfLayer(PART.format(core), "kda_front") for core in ("verify", "decode"))
BLOCKS = 9  # as if on so many multiprocessors, blocks share tiles
PAGES = ("conv_state", "recurrent_state")


@pytest.fixture(scope="module")
def op():
    return VERIFY.contract()


def place(op, tp: int, requests: int, tokens: int) -> Workload:
    """So many requests of so many tokens, without gaps."""
    rows, base = requests * tokens, next(w for w in op.workloads() if w.axes["tp"] == tp)
    strides = dict.fromkeys(("attn_res_norm_1_block_stride", "attn_res_norm_2_block_stride", "peer_stride"), rows * 7168)
    pool = {"rows": rows, "tokens": tokens, "slots": 1 + requests * (1 + tokens) + 4}
    return Workload(name=f"tp{tp}-{requests}x{tokens}", axes=base.axes | strides | pool)


# The plan


@pytest.mark.parametrize(
    ("requests", "tokens", "rows", "splits"),  # splits: blocks that share the value rows of a head
    [
        (1, 8, [8], [8]), (4, 2, [8], [2]), (2, 8, [16], [4]), (1, 1, [1], [8]),
        # Whole requests: fifteen of eighteen rows, then the sixth request alone.
        (6, 3, [15, 3], [2, 8]),
    ],
)  # fmt: skip
def test_a_launch_takes_whole_requests(op, requests, tokens, rows, splits, tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc", reason="CUDA C++ needs the extra fasttrack[cuda]")
    at = place(op, 8, requests, tokens)
    pack = VERIFY.recorded(op, at, tmp_path)
    functions = {VERIFY.entry: {}} | {file: {} for file in VERIFY.sources if file.endswith(".cu")}
    assert validate(pack, op.tensors(at), functions) == ()
    assert [launch.arguments["p4"].value for launch in pack.launches] == rows
    constants = [pack.kernels[launch.kernel].constexprs for launch in pack.launches]
    assert [of["SPLIT"] for of in constants] == splits and {of["TOKENS"] for of in constants} == {tokens}
    assert not any(of["ALONE"] for of in constants), "a request's tokens meet at barriers"
    assert {of["ROWS_AT_ONCE"] for of in constants} == {8 if requests * tokens <= 8 else 16}
    # Tables of the requests of a launch, one behind the other.
    offsets = [launch.arguments["p2"].offset for launch in pack.launches]
    assert offsets == [4 * at.axes["slots_stride"] * (sum(rows[:number]) // tokens) for number in range(len(rows))]


INSTANCES = [(tp, requests, tokens) for tp in (8, 16) for requests, tokens in ((1, 8), (1, 7), (2, 8), (3, 5))]
OTHERS = [
    (tp, requests, tokens) for tp in (8, 16) for tokens in range(1, 9) for requests in range(1, 16 // tokens + 1)
    if (tp, requests, tokens) not in INSTANCES
]  # fmt: skip


@pytest.mark.parametrize(
    ("tp", "requests", "tokens"), [*INSTANCES, *(pytest.param(*one, marks=long) for one in OTHERS)]
)
def test_no_instance_spills(op, tp, requests, tokens, tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc", reason="CUDA C++ needs the extra fasttrack[cuda]")
    from fasttrack_validation.judge.device_code import cuda_compiler, sass

    (variant,) = VERIFY.recorded(op, place(op, tp, requests, tokens), tmp_path).kernels.values()
    for target in (90, 103):
        report = sass.ptxas_report(cuda_compiler.compile_kernel(VERIFY.cuda_sources, variant, target).log)
        assert (report.spill_store_bytes, report.spill_load_bytes, report.stack_bytes) == (0, 0, 0), target
        assert report.registers == 96, "what 640 threads have before they move between warps"


# What it computes


@pytest.fixture(scope="module")
def eight(op):
    """One request of eight tokens at TP 16: place, inputs, oracle, plain path."""
    at = workload(op, "tp16-b8")
    assert (at.axes["rows"], at.axes["tokens"]) == (8, 8)
    inputs = op.make_inputs(at, "typical", SEED)
    return at, inputs, op.oracle(inputs, at), op.plain(inputs, at)


@pytest.mark.slow
@needs_compiler
def test_eight_tokens_agree_with_the_oracle_on_a_cpu(op, eight, tmp_path):
    at, inputs, *_ = eight
    made, buffers = VERIFY.run(op, at, inputs, VERIFY.on_cpu(tmp_path, BLOCKS), "cpu")
    assert wrong(op, eight, made) == set() and buffers.cells[:2].tolist() == [3 * BLOCKS, 0]
    # The committed page keeps every bit: no token need be accepted.
    committed = int(inputs["slots"][0, 0])
    assert all(equal_bits(made[name][committed], inputs[name][committed]) for name in PAGES)


WALK = "kernels/cuda/kda_walk.cuh"
AFTER = {"partial", "o_proj_residual_stream", "logits", "latent", "shared"}


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("edit", "seen", "unseen"),
    [
        # A token's window is the committed one.
        pytest.param(
            (WALK, "window_[0] = window_[1], window_[1] = window_[2], window_[2] = __float2bfloat16(newest);", ""),
            {"conv_state", "recurrent_state", "partial"}, set(), id="window",
        ),
        # The state behind a token goes to the next one's page.
        pytest.param(
            (WALK, "return __ldg(table() + 1 + token);", "return __ldg(table() + 1 + (token + 1) % COUNT);"),
            {"conv_state", "recurrent_state"}, AFTER, id="pages",
        ),
        # All tokens decay as the first one does.
        pytest.param(
            (WALK, "Head::key_of(own, own + kK, own + kDecay)", "Head::key_of(own, own + kK, scratch + kDecay)"),
            {"recurrent_state"}, {"conv_state"}, id="decay",
        ),
        # The second four tokens are gated by the first four.
        pytest.param(
            (WALK, "own[kGate + other] = sigmoid(values[3 * j + 2])", "if (first == 0) own[kGate + other] = sigmoid(values[3 * j + 2])"),
            {"partial"}, {"conv_state", "recurrent_state"}, id="gate",
        ),
        # Rows are scaled by the first row's norm.
        pytest.param(
            ("kernels/cuda/kda_front.cu", "values[i] *= row_scales[at[i]];", "values[i] *= row_scales[0];"),
            {"conv_state", "recurrent_state"}, set(), id="scales",
        ),
    ],
)  # fmt: skip
def test_a_planted_fault_is_seen_on_a_cpu(op, eight, tmp_path, edit, seen, unseen):
    at, inputs, *_ = eight
    made, _ = VERIFY.run(op, at, inputs, VERIFY.on_cpu(tmp_path, BLOCKS, edit), "cpu")
    found = wrong(op, eight, made)
    assert seen <= found and not unseen & found


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("tokens", [3, pytest.param(7, marks=long)])
def test_behind_each_token_stands_what_single_steps_leave(op, tokens, tmp_path):
    """Bit for bit, whatever is accepted: pages, and the rows of everything else."""
    at = place(op, 16, 1, tokens)
    inputs = op.make_inputs(at, "typical", SEED)
    made, _ = VERIFY.run(op, at, inputs, VERIFY.on_cpu(tmp_path, BLOCKS), "cpu")
    single = SINGLE.contract()
    one = workload(single, "tp16-b1", slots=at.axes["slots"])
    (tmp_path / "one").mkdir()
    context = SINGLE.on_cpu(tmp_path / "one", BLOCKS)
    pages, state = inputs["slots"][0].tolist(), {name: inputs[name].clone() for name in PAGES}
    for token in range(tokens):
        rows = slice(token, token + 1)
        mine = {**inputs, **state, "slots": torch.tensor([pages[0]], dtype=torch.int32)}
        mine["attn_res_norm_1_stream"] = inputs["attn_res_norm_1_stream"][rows]
        mine |= {name: inputs[name][:, rows].contiguous() for name in ("blocks", "peers")}
        left, _ = SINGLE.run(single, one, mine, context, "cpu")
        for name in PAGES:
            state[name][pages[0]] = left[name][pages[0]]
            assert equal_bits(made[name][pages[1 + token]], left[name][pages[0]]), (token, name)
        for name in AFTER:
            assert equal_bits(made[name][rows], left[name]), (token, name)


@pytest.mark.slow
@needs_compiler
def test_a_padded_request_is_neither_read_nor_written(op, tmp_path):
    """Two requests of four tokens, of which one is padding: NaN in its pages reach nobody, and nothing of it is written."""
    at = place(op, 16, 2, 4)
    inputs = op.make_inputs(at, "typical", SEED)
    pages = inputs["slots"][0].long().clone()
    inputs["slots"][0, 0] = -3
    for name in PAGES:
        inputs[name][pages] = float("nan")
    made, _ = VERIFY.run(op, at, inputs, VERIFY.on_cpu(tmp_path, BLOCKS, backwards=True), "cpu")
    exam = at, inputs, op.oracle(inputs, at), op.plain(inputs, at)
    assert wrong(op, exam, made) == set()
    assert all(equal_bits(made[name][pages], inputs[name][pages]) for name in PAGES)


@long
@needs_compiler
@pytest.mark.parametrize(
    ("tp", "requests", "tokens", "blocks", "backwards"),
    [(8, 2, 8, 132, False), (16, 16, 1, 17, True), (16, 3, 5, 16, False), (16, 6, 3, 16, True), (16, 8, 2, 16, False)],
)
def test_more_requests_agree_with_the_oracle_on_a_cpu(op, tp, requests, tokens, blocks, backwards, tmp_path):
    at = place(op, tp, requests, tokens)
    inputs = op.make_inputs(at, "typical", SEED)
    made, _ = VERIFY.run(op, at, inputs, VERIFY.on_cpu(tmp_path, blocks, backwards=backwards), "cpu")
    assert wrong(op, (at, inputs, op.oracle(inputs, at), op.plain(inputs, at)), made) == set()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["tp8-b8", "tp8-b16", "tp16-b2", "tp16-b16"])
def test_it_agrees_with_the_oracle_and_with_itself(op, name):
    VERIFY.agrees_on_gpu(op, name, PAGES)
