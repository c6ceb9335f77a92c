"""Each distribution really holds what it claims to."""

import pytest
import torch
from fasttrack_validation import contracts
from fasttrack_validation.contracts.kimi_k3.kda_decode import layout


@pytest.fixture(scope="module")
def op():
    return contracts.load("kimi_k3").op("kda_decode")


@pytest.fixture(scope="module")
def workload(op):
    return layout.workload(op.architecture.kda_shard(48), "small", 7)


def step_of(op, workload, distribution, seed=2):
    inputs = op.make_inputs(workload, distribution, seed)
    oracle = op.stages(workload)
    return inputs, oracle, oracle.step(inputs)


def exact_gate(step):
    return step.projected["f_a"] @ step.static["f_b"].T


def test_the_gate_rounds_alike_in_every_order_of_summation(op, workload):
    for distribution in op.distributions:
        inputs, oracle, step = step_of(op, workload, distribution)
        expected = oracle.gate(step).flatten(1)
        products = (step.projected["f_a"][:, None] * step.static["f_b"][None]).float()
        for seed in range(4):
            order = torch.randperm(128, generator=torch.Generator().manual_seed(seed))
            sequential = torch.zeros_like(products[..., 0])
            for term in order:
                sequential += products[..., term]
            pairwise = products[..., order].sum(-1)
            for total in (sequential, pairwise):
                assert torch.equal(total.bfloat16().double(), expected), distribution


def test_gate_ties_are_ties(op, workload):
    _, oracle, step = step_of(op, workload, "gate_ties")
    exact = exact_gate(step)
    bits = exact.float().view(torch.int32)
    assert torch.equal(exact.float().double(), exact)
    ties = (bits & 0xFFFF) == 0x8000
    assert 0.15 < ties.float().mean() < 0.4
    away = torch.where(ties, bits + 0x8000, bits + 0x7FFF) & -65536
    assert (away.view(torch.float32).double() != oracle.gate(step).flatten(1)).float().mean() > 0.05


def test_gate_mantissas_are_full(op, workload):
    inputs, _, step = step_of(op, workload, "gate_mantissas")
    low_bits = inputs["f_b"].view(torch.int16) & 1
    assert 0.4 < low_bits.float().mean() < 0.6
    exact = exact_gate(step)
    assert (exact.float().double() != exact).float().mean() > 0.2


def test_decay_extremes(op, workload):
    _, oracle, step = step_of(op, workload, "decay_extremes")
    slow, fast = oracle.decay(step)[:, 0::2], oracle.decay(step)[:, 1::2]
    assert (slow > 0.998).all() and (slow < 1).all()
    assert (slow.bfloat16() == 1).float().mean() > 0.8
    assert ((fast - torch.tensor(-5.0).exp()).abs() < 1e-3 * fast).float().mean() > 0.8


def test_beta_extremes(op, workload):
    _, oracle, step = step_of(op, workload, "beta_extremes", seed=4)
    beta = oracle.beta(step)
    assert (beta < 2e-4).any() and (beta > 0.9998).any() and ((beta > 0.04) & (beta < 0.96)).any()
    assert (beta.bfloat16().double() != beta).any()


def test_near_zero_holds_zeros_small_rows_and_subnormals(op, workload):
    _, oracle, step = step_of(op, workload, "near_zero")
    q, k, v = oracle.convolved(step)
    squares = k.square().sum(-1)
    assert (q == 0).all(-1).any() and (squares == 0).any() and (v == 0).all(-1).any()
    assert ((squares > 1e-8) & (squares < 1e-4)).any(), "k where the epsilon decides"
    assert ((v != 0) & (v.abs() < 2.0**-126)).any()


def test_padded_rows_and_unowned_pages_hold_nan(op, workload):
    inputs, _, _ = step_of(op, workload, "padded_nan")
    padding = inputs["slots"] <= 0
    assert set(inputs["slots"][padding].tolist()) >= {0, -1, -(2**31)}
    assert (~padding).sum() >= 3
    assert inputs["projected"][padding].isnan().all()
    assert not inputs["projected"][~padding][:, : 4 * 256 + 128 + 2].isnan().any()
    for pool in (inputs["conv_state"], inputs["recurrent_state"]):
        nan = pool.isnan().flatten(1)
        assert nan[0].all() and torch.equal(nan.all(1), nan.any(1))
        assert sorted((~nan.any(1)).nonzero().flatten().tolist()) == sorted(inputs["slots"][~padding].tolist())


def test_wide_range_leaves_half_precision(op, workload):
    inputs, oracle, step = step_of(op, workload, "wide_range")
    scale = step.state.square().mean(-1).sqrt()
    assert scale.max() / scale.min() > 2**15
    q, k, v = oracle.convolved(step)
    assert max(x.square().sum(-1).max() for x in (q, k, v)) > 65504


def test_accumulated_state_is_large_and_one_signed(op, workload):
    _, oracle, step = step_of(op, workload, "accumulated")
    assert 48 < step.state.mean() < 80 and (step.state > 0).float().mean() > 0.99


def test_converged_state_predicts_the_value(op, workload):
    _, oracle, step = step_of(op, workload, "converged")
    _, key, value = oracle.convolved(step)
    predicted = torch.einsum("rhvk,rhk->rhv", step.state * oracle.decay(step)[:, :, None], oracle.normalised(key))
    assert (predicted - value).abs().max() < 2e-5 * value.abs().max()


def test_padding_columns_are_nan_everywhere(op, workload):
    pad = op.architecture.kda_shard(48).columns["pad"]
    assert pad.stop - pad.start == 14
    for distribution in op.distributions:
        assert op.make_inputs(workload, distribution, 0)["projected"][:, pad].isnan().all()
