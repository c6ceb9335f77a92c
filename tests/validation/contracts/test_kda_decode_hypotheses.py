"""Every known mistake is caught, and the two honest ways of computing the step are not."""

import pytest
import torch
from fasttrack_validation import contracts
from fasttrack_validation.contracts.kimi_k3.kda_decode import layout
from fasttrack_validation.contracts.kimi_k3.kda_decode.hypotheses import VARIANTS
from fasttrack_validation.numerics.calibrate import Decision, decide, measure

OP = contracts.load("kimi_k3").op("kda_decode")
WORKLOAD = layout.workload(
    OP.architecture.kda_shard(32), "small", 5, projected_gap=16, conv_gap=128, state_gap=64, slots_stride=2
)


@pytest.fixture(scope="module")
def trials():
    trials = {}
    for name in OP.distributions:
        inputs = OP.make_inputs(WORKLOAD, name, 7)
        trials[name] = (inputs, OP.oracle(inputs, WORKLOAD), OP.plain(inputs, WORKLOAD))
    return trials


def rulings(trial, path):
    inputs, expected, plain = trial
    got = path(inputs, WORKLOAD)
    for comparison in OP.comparisons:
        name = comparison.tensor
        value = got[name].to(plain[name].dtype)
        owners = [OP.row_of(name, (index,), inputs) for index in range(len(value))]
        yield decide(comparison, [measure(comparison, expected[name], plain[name], value, owners)])


@pytest.mark.parametrize("description", VARIANTS)
def test_a_known_mistake_is_rejected(trials, description):
    variant = OP.hypotheses[description]
    failed = (ruling.decision is Decision.FAIL for trial in trials.values() for ruling in rulings(trial, variant))
    assert any(failed), "no distribution shows this mistake"


@pytest.mark.parametrize(
    ("mistake", "distribution"),
    [
        ("the decay is rounded to bfloat16", "decay_extremes"),
        ("beta is rounded to bfloat16", "beta_extremes"),
        ("the gate projection is truncated", "gate_ties"),
        ("the gate projection f_b f_a is not rounded", "gate_mantissas"),
        ("the L2 norm is bounded below", "near_zero"),
        ("the L2 norm has no epsilon", "near_zero"),
        ("padded rows are treated as live", "padded"),
        ("the recurrent state is kept in bfloat16", "accumulated"),
        ("q, k and v are rounded to bfloat16", "converged"),
    ],
)
def test_a_distribution_catches_what_it_is_there_for(trials, mistake, distribution):
    (description,) = (name for name in VARIANTS if name.startswith(mistake))
    assert any(r.decision is Decision.FAIL for r in rulings(trials[distribution], OP.hypotheses[description]))


def reordered(inputs, workload):
    """The plain path with the key channels in another order: the same sums, added otherwise (A/A)."""
    shard = OP.architecture.kda_shard(workload.axes["tp"])
    order = torch.randperm(128, generator=torch.Generator().manual_seed(1))
    keys = torch.cat([head * 128 + order for head in range(shard.heads)])
    p = shard.channels
    both = torch.cat([keys, p + keys, torch.arange(2 * p, 3 * p)])
    moved = dict(inputs)
    moved["f_b"], moved["dt_bias"] = inputs["f_b"][keys], inputs["dt_bias"][keys]
    moved["conv_weight"] = inputs["conv_weight"][both]
    moved["conv_state"] = inputs["conv_state"][..., both]
    moved["projected"] = torch.cat([inputs["projected"][:, both], inputs["projected"][:, 3 * p :]], 1)
    moved["recurrent_state"] = inputs["recurrent_state"][..., order]
    result = OP.plain(moved, workload)
    result["conv_state"] = result["conv_state"][..., both.argsort()].contiguous()
    result["recurrent_state"] = result["recurrent_state"][..., order.argsort()].contiguous()
    return result


@pytest.mark.parametrize("path", [OP.plain, OP.oracle, reordered], ids=["plain", "oracle, rounded", "A/A"])
def test_an_honest_path_passes_everywhere(trials, path):
    for name, trial in trials.items():
        for ruling in rulings(trial, path):
            assert ruling.decision is Decision.PASS, (name, ruling.message)
