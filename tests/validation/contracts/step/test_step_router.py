"""The router: ties, zeros, non-finite values, bias, renormalisation, and why its logits are float32."""

import math
from dataclasses import replace

import pytest
import torch

from fasttrack_validation.contracts.kimi_k3.architecture import Architecture
from fasttrack_validation.contracts.kimi_k3.step.precision import EXACT, PUBLISHED
from fasttrack_validation.contracts.kimi_k3.step.router import choose, router_logits
from fasttrack_validation.errors import UserError

K3 = Architecture.from_config().moe
TWO = K3.model_copy(update={"experts": 6, "top_k": 2})


def chosen(logits, bias=None, moe=TWO, precision=PUBLISHED):
    logits = torch.tensor([logits], dtype=torch.float32) if isinstance(logits, list) else logits
    bias = torch.zeros(logits.shape[1]) if bias is None else torch.tensor(bias)
    ids, weights = choose(logits, bias, moe, precision)
    return ids, weights


def ids_of(*args, **kwargs):
    return chosen(*args, **kwargs)[0][0].tolist()


def test_ties_go_to_the_lower_expert():
    assert ids_of([0.0, 1.0, 2.0, 1.0, 2.0, 2.0]) == [2, 4]
    assert ids_of([1.0, 1.0, 1.0, 1.0, 1.0, 1.0]) == [0, 1]
    assert ids_of([0.0, 1.0, 1.0, 3.0, 1.0, 1.0]) == [3, 1]


def test_ties_among_896_experts():
    """All equal but one: the sixteen are that one and the lowest ids; a cap at 512 experts would miss it."""
    logits = torch.zeros(1, 896)
    logits[0, 895] = 1.0
    assert ids_of(logits, moe=K3) == [895, *range(15)]


def test_plus_and_minus_zero_are_one_value():
    """sigmoid(-inf) + (-0) = +0 + -0 would order by sign only in a sort of bit patterns; sums of -0 alone are -0."""
    zeros = [-math.inf] * 6
    assert ids_of(zeros, bias=[-0.0, 0.0, -0.0, 0.0, -0.0, 0.0]) == [0, 1]
    logits = torch.tensor([[-0.0, 0.0, -0.0, 0.0, -0.0, 0.0]])
    assert ids_of(logits) == [0, 1]


@pytest.mark.parametrize(
    "logits, expected",
    [
        ([math.nan, 0.0, math.nan, -5.0, math.nan, math.nan], [1, 3]),
        ([math.inf, 0.0, 1.0, math.inf, 2.0, 3.0], [0, 3]),
        ([-math.inf, -math.inf, -40.0, -math.inf, -math.inf, -math.inf], [2, 0]),
        ([math.nan] * 6, [0, 1]),
        ([math.nan, math.nan, math.nan, math.nan, math.nan, 7.0], [5, 0]),
    ],
)
def test_non_finite_logits(logits, expected):
    assert ids_of(logits) == expected


def test_a_nan_that_had_to_be_chosen_stays_visible():
    _, weights = chosen([math.nan] * 6)
    assert weights.isnan().all()
    ids, weights = chosen([math.nan, 0.0, math.nan, 0.0, math.nan, math.nan])
    assert weights.tolist() == [[0.5, 0.5]]


def test_bias_selects_and_does_not_weigh():
    """Scores 1/2 each; the bias moves expert 5 to the front and leaves its weight at one half."""
    ids, weights = chosen([0.0] * 6, bias=[0.0, 0.0, 0.0, 0.0, 0.0, 0.75])
    assert ids.tolist() == [[5, 0]]
    assert weights.tolist() == [[0.5, 0.5]]
    ids, weights = chosen([math.log(3), 0.0, 0.0, 0.0, 0.0, -math.log(3)], bias=[0.0, 0.0, 0.0, 0.0, 0.0, 9.0])
    assert ids.tolist() == [[5, 0]]  # s = 1/4 and 3/4
    torch.testing.assert_close(weights, torch.tensor([[0.25, 0.75]]))


def test_renormalisation_epsilon():
    """Without it a row of zero scores is 0 / 0; with it, scores far below float32's epsilon still sum to one."""
    assert chosen([-math.inf] * 6)[1].tolist() == [[0.0, 0.0]]
    _, weights = chosen([-30.0] * 6)
    torch.testing.assert_close(weights, torch.full((1, 2), 0.5))
    # Two scores of 2^-66 (1.36e-20): 2^-66 / (2^-65 + 1e-20) = 0.3652...
    tiny = 66 * math.log(2)
    expected = 2.0**-66 / (2.0**-65 + 1e-20)
    _, weights = chosen([-tiny] * 6)
    torch.testing.assert_close(weights, torch.full((1, 2), expected), rtol=1e-5, atol=0)
    assert 0.36 < expected < 0.37


def test_scaling_factor_comes_last():
    scaled = TWO.model_copy(update={"routed_scaling_factor": 2.5})
    assert chosen([0.0] * 6, moe=scaled)[1].tolist() == [[1.25, 1.25]]


def test_bfloat16_logits_are_refused_because_they_change_expert_sets():
    rng = torch.Generator().manual_seed(0)
    logits, bias = torch.randn(400, 896, generator=rng), torch.zeros(896)
    with pytest.raises(UserError, match="router logits are torch.bfloat16"):
        choose(logits.bfloat16(), bias, K3, PUBLISHED)
    exact = choose(logits.double(), bias, K3, EXACT)[0].sort().values
    single = choose(logits, bias, K3, PUBLISHED)[0].sort().values
    narrow = choose(logits.bfloat16().float(), bias, K3, PUBLISHED)[0].sort().values
    assert (exact != single).any(1).float().mean() < 0.005
    assert (exact != narrow).any(1).float().mean() > 0.02


def test_logits_are_not_rounded():
    """256 + 1/2 needs ten bits: bfloat16 has eight."""
    y, weight = torch.tensor([[256.0, 0.5]]), torch.ones(1, 2, dtype=torch.bfloat16)
    assert router_logits(y, weight, PUBLISHED).item() == 256.5


def test_routing_weights_rounded_on_request():
    rounded = replace(PUBLISHED, round_routing_weights=True)
    logits = [0.0, 1.0, 0.5, -1.0, -1.0, -1.0]
    ids, weights = chosen(logits)
    other_ids, other = chosen(logits, precision=rounded)
    assert torch.equal(ids, other_ids)
    assert torch.equal(other, weights.bfloat16().float())
    assert not torch.equal(other, weights)
