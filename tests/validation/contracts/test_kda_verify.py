"""A verify step of KDA: pages of candidates, what is nobody's to write, and every known mistake about them."""

from types import SimpleNamespace

import kda_tolerance
import op_exam
import pytest
import torch
from fasttrack_validation import contracts
from fasttrack_validation.contracts.kimi_k3.kda_decode.oracle import to_bfloat16
from fasttrack_validation.contracts.kimi_k3.kda_verify import layout
from fasttrack_validation.contracts.kimi_k3.kda_verify.hypotheses import MISTAKES
from fasttrack_validation.contracts.kimi_k3.step.kda import Kda
from fasttrack_validation.contracts.kimi_k3.step.precision import EXACT
from fasttrack_validation.contracts.kimi_k3.step.state import KdaCache
from fasttrack_validation.errors import UserError
from fasttrack_validation.judge.sanity import check_task
from fasttrack_validation.judge.verdict import Outcome
from fasttrack_validation.numerics.calibrate import Decision

OP = contracts.load("kimi_k3").op("kda_verify")
SINGLE = contracts.load("kimi_k3").op("kda_decode")
SHARD = OP.architecture.kda_shard(32)
AT = layout.workload(SHARD, "small", 3, 4, slots_gap=2, projected_gap=16)
POOLS = ("conv_state", "recurrent_state")


@pytest.fixture(scope="module")
def trials():
    found = {}
    for name in OP.distributions:
        inputs = OP.make_inputs(AT, name, 7)
        found[name] = (inputs, OP.oracle(inputs, AT), OP.plain(inputs, AT))
    return found


def failed(trial, path):
    inputs, expected, plain = trial
    ruled = op_exam.rulings(OP, AT, inputs, expected, plain, path(inputs, AT))
    return {ruling.tensor for ruling in ruled if ruling.decision is not Decision.PASS}


def spec(workload, name):
    return next(spec for spec in OP.tensors(workload) if spec.name == name)


def test_declared_batches_are_of_widths_two_and_eight():
    found = {w.name: (w.axes["rows"], w.axes["tokens"]) for w in OP.workloads()}
    widths = {1: 1, 2: 2, 4: 2, 8: 8, 16: 8, 32: 8, 64: 8}
    assert found == {f"tp{tp}-b{rows}": (rows, widths[rows]) for tp in (8, 16) for rows in widths}
    held_out = {(w.axes["rows"], w.axes["tokens"]) for w in OP.workloads(held_out=True)}
    assert held_out == {(1, 1), (3, 3), (6, 6), (14, 7), (30, 6), (56, 8)}


def test_layouts_vary_in_requests_and_width_and_stay_in_the_bucket():
    for base in OP.workloads():
        varied = [OP.vary(base, seed) for seed in range(12)]
        below = {1: 0, 2: 1, 4: 2, 8: 4, 16: 8, 32: 16, 64: 32}[base.axes["rows"]]
        assert all(below < w.axes["rows"] <= base.axes["rows"] and w.axes["tp"] == base.axes["tp"] for w in varied)
        for w in varied:
            requests, rest = divmod(w.axes["rows"], w.axes["tokens"])
            assert rest == 0 and 1 <= w.axes["tokens"] <= 8
            assert w.axes["slots"] > requests * (1 + w.axes["tokens"]) and w.axes["slots_stride"] > w.axes["tokens"]
        if below > 2:
            assert len({w.axes["tokens"] for w in varied}) > 1 and any(w.axes["rows"] % 2 for w in varied)


def test_shapes_at_tp8():
    at = next(w for w in OP.workloads() if w.name == "tp8-b16")
    assert spec(at, "slots").shape == (2, 9) and spec(at, "projected").shape == (16, 6288)
    assert spec(at, "out").shape == (16, 1536) and spec(at, "recurrent_state").shape == (23, 12, 128, 128)
    same = {s.name for s in OP.tensors(at)} - {"slots"}
    one = layout.one_token(at)
    assert {s.name: (s.dtype, s.role) for s in OP.tensors(at) if s.name in same} == {
        s.name: (s.dtype, s.role) for s in SINGLE.tensors(one) if s.name in same
    }
    assert one.axes["rows"] == 2 and "tokens" not in one.axes


@pytest.mark.parametrize("accepted", range(5))
def test_a_verify_step_is_single_steps_for_every_accepted_count(trials, accepted):
    """What the next step finds in page `accepted` is what `accepted` steps of one token leave in place."""
    inputs, expected, _ = trials["padded"]
    one, pools = layout.one_token(AT), {name: inputs[name].clone() for name in POOLS}
    pools["recurrent_state"] = pools["recurrent_state"].double()
    slots, outs = inputs["slots"][:, 0].contiguous(), []
    for t in range(accepted):
        rows = inputs["projected"][t :: AT.axes["tokens"]].contiguous()
        left = SINGLE.oracle({**inputs, **pools, "projected": rows, "slots": slots}, one)
        pools = {name: left[name] for name in POOLS}
        outs.append(left["out"])
    live = slots > 0
    assert live.any() and not live.all()
    pages = inputs["slots"][live, accepted].long()
    for name in POOLS:
        assert torch.equal(expected[name][pages], pools[name][slots[live].long()].to(expected[name].dtype))
    for t, out in enumerate(outs):
        assert torch.equal(expected["out"][t :: AT.axes["tokens"]], out)


def test_the_layers_own_verify_agrees(trials):
    """The step model goes through tables of its own, which were written before this op was."""
    inputs, expected, _ = trials["typical"]
    kda = Kda(OP.architecture, SHARD.tp, EXACT)
    kda.core.round_gate = lambda gamma: to_bfloat16(gamma).double()
    columns = inputs["projected"].nan_to_num().double()
    p = SHARD.channels
    names = ("f_b", "conv_weight", "a_log", "dt_bias", "o_norm")
    weights = SimpleNamespace(
        in_proj=torch.eye(columns.shape[1], dtype=torch.float64), o_proj=torch.eye(p, dtype=torch.float64),
        **{name: inputs[name].double() for name in names},
    )  # fmt: skip
    cache = KdaCache(inputs["conv_state"].double(), inputs["recurrent_state"].double())
    out = kda.decode(columns, weights, cache, inputs["slots"].long(), [AT.axes["tokens"]] * len(inputs["slots"]))
    for got, wanted in ((out, "out"), (cache.conv, "conv_state"), (cache.recurrent, "recurrent_state")):
        torch.testing.assert_close(got, expected[wanted].double(), rtol=1e-12, atol=1e-13)


def test_committed_pages_and_those_of_nobody_keep_every_bit(trials):
    for name, (inputs, expected, plain) in trials.items():
        slots = inputs["slots"]
        written = slots[slots[:, 0] > 0, 1:].flatten().tolist()
        kept = [page for page in range(AT.axes["slots"]) if page not in written]
        assert 0 in kept and set(slots[slots[:, 0] > 0, 0].tolist()) <= set(kept), name
        for pool in POOLS:
            for path in (expected, plain):
                assert torch.equal(path[pool][kept].float().nan_to_num(7), inputs[pool][kept].float().nan_to_num(7))


def test_padded_nan_hides_everything_that_is_not_read(trials):
    inputs, expected, plain = trials["padded_nan"]
    padded = inputs["slots"][:, 0] <= 0
    assert padded.any() and not padded.all()
    rows = inputs["projected"].unflatten(0, (-1, AT.axes["tokens"]))
    assert rows[padded].isnan().all() and not rows[~padded][..., : 4 * SHARD.channels].isnan().any()
    owned = inputs["recurrent_state"].flatten(1).isnan().all(1).logical_not().nonzero().flatten().tolist()
    assert sorted(owned) == sorted(inputs["slots"][~padded, 0].tolist())
    for path in (expected, plain):
        out = path["out"].unflatten(0, (-1, AT.axes["tokens"]))
        assert not out[padded].any() and not out.isnan().any()
        assert not path["recurrent_state"][inputs["slots"][~padded].long()].isnan().any()


@pytest.mark.parametrize("description", MISTAKES)
def test_a_mistake_about_pages_is_rejected(trials, description):
    assert any(failed(trial, OP.hypotheses[description]) for trial in trials.values())


@pytest.mark.parametrize("description", [name for name in OP.hypotheses if name not in MISTAKES])
def test_a_mistake_in_each_tokens_own_step_is_rejected(trials, description):
    assert any(failed(trial, OP.hypotheses[description]) for trial in trials.values())


def test_every_mistake_of_a_single_step_is_known_here_too():
    assert set(OP.hypotheses) == set(SINGLE.hypotheses) | set(MISTAKES)


@pytest.mark.parametrize("form", kda_tolerance.HONEST)
def test_honest_single_steps_pass_one_after_the_other(trials, form):
    from fasttrack_validation.contracts.kimi_k3.kda_verify.steps import steps

    def path(inputs, at):
        return steps(kda_tolerance.HONEST[form], inputs, at)

    for name, trial in trials.items():
        assert not failed(trial, path), name


def test_the_oracle_and_the_plain_path_pass(trials):
    for trial in trials.values():
        assert not failed(trial, OP.oracle) and not failed(trial, OP.plain)


def test_the_exam_is_sane():
    result = check_task(OP, next(w for w in OP.workloads() if w.name == "tp16-b4"), 7)
    assert result.outcome is Outcome.PASS, result.message


def test_a_request_owns_its_rows_and_the_pages_behind_its_committed_one():
    inputs = {"slots": torch.tensor([[5, 3, 1], [0, 6, 7], [2, 4, 8]], dtype=torch.int32)}
    assert [OP.row_of("out", (row, 0), inputs) for row in range(6)] == [0, 0, None, None, 2, 2]
    for name in POOLS:
        assert [OP.row_of(name, (page, 0), inputs) for page in range(9)] == [None, 0, None, 0, 2, None, None, None, 2]
    with pytest.raises(UserError, match="does not produce 'projected'"):
        OP.row_of("projected", (0, 0), inputs)


def test_perturbing_a_request_moves_no_other():
    inputs = OP.make_inputs(AT, "typical", 3)
    before = OP.oracle(inputs, AT)
    pad = SHARD.columns["pad"].start
    for request in range(AT.axes["rows"]):
        changed = OP.perturb_row(inputs, AT, request, 9)
        differs = (inputs["projected"] != changed["projected"])[:, :pad].any(1).nonzero().flatten().tolist()
        assert differs == [4 * request + t for t in range(4) if request < 3]
        assert all(torch.equal(inputs[name], changed[name]) for name in inputs if name != "projected")
        after = OP.oracle(changed, AT)
        for name in OP.produced:
            others = [i for i in range(len(before[name])) if OP.row_of(name, (i,), inputs) != request]
            assert torch.equal(before[name][others], after[name][others])


def test_cost_by_hand():
    # TP8, 2 requests of 8: weights as kda_decode's; of each request one page read, 9 slots; of each row its projection
    # read, a page and 1536 outputs written. A page: 12 x 64 KiB of state, 3 x 4608 bf16 of window.
    weights = 393_216 + 73_728 + 48 + 6_144 + 256
    page = 786_432 + 27_648
    cost = OP.cost(next(w for w in OP.workloads() if w.name == "tp8-b16"))
    assert cost.bytes_read == weights + 2 * (page + 9 * 4) + 16 * 12_568
    assert cost.bytes_written == 16 * (page + 3_072)
    assert cost.flops == 16 * 12 * 9 * 16_384


def test_equal_seeds_draw_equal_bits_and_others_do_not():
    for name in OP.distributions:
        first, again, other = (OP.make_inputs(AT, name, seed) for seed in (1, 1, 2))
        assert all(torch.equal(first[n].nan_to_num(), again[n].nan_to_num()) for n in first)
        assert not torch.equal(first["recurrent_state"].nan_to_num(), other["recurrent_state"].nan_to_num())
        live = first["slots"][first["slots"][:, 0] > 0]
        assert live.min() > 0 and len(set(live.flatten().tolist())) == live.numel()
