"""Choosing tokens: against probabilities, by hand, and independent of all but seed and place."""

import math
from collections import Counter

import pytest
import torch

from fasttrack_validation.generation.asked import Sampling
from fasttrack_validation.generation.sampling import choose, scores, uniform

LOGITS = torch.tensor([0.5, 2.0, -1.0, 2.0, 1.0, 0.0])


def draw(count: int, **how) -> Counter:
    return Counter(choose(LOGITS, Sampling(seed=seed, **how), 3, {}) for seed in range(count))


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        ({}, range(6)),
        ({"temperature": 0.7}, range(6)),
        ({"top_k": 3}, (1, 3, 4)),
        ({"top_p": 0.5}, (1, 3)),
        ({"min_p": 0.3}, (1, 3, 4)),
        ({"bias": ((1, -50.0),)}, (0, 2, 3, 4, 5)),
    ],
)
def test_tokens_come_as_often_as_their_probability_says(how, kept):
    """Chi-squared of 4,000 draws; 5 standard deviations of its distribution away would be another rule."""
    total = 4000
    drawn = draw(total, **how)
    weights = {t: math.exp(LOGITS[t] / how.get("temperature", 1.0)) for t in kept}
    assert set(drawn) <= set(kept)
    expected = {t: total * weight / sum(weights.values()) for t, weight in weights.items()}
    statistic = sum((drawn[t] - e) ** 2 / e for t, e in expected.items())
    freedom = len(expected) - 1
    assert statistic < freedom + 5 * math.sqrt(2 * freedom)


def test_the_likeliest_and_the_lowest_id_of_equals():
    assert {choose(LOGITS, Sampling(temperature=0, seed=s), 0, {}) for s in range(5)} == {1}
    assert set(draw(50, top_k=1)) == set(draw(50, top_p=1e-9)) == {1}
    assert set(draw(50, min_p=1.0)) == {1, 3}  # equals are as likely


def test_penalties_by_hand():
    """2.0 - 0.25 - 2 x 0.5 = 0.75 < 1.0; token 3 the same after one more."""
    sampling = Sampling(temperature=0, presence_penalty=0.25, frequency_penalty=0.5)
    assert choose(LOGITS, sampling, 5, {1: 2}) == 3
    assert choose(LOGITS, sampling, 6, {1: 2, 3: 2}) == 4


def test_random_numbers_belong_to_seed_and_place():
    assert uniform(1, 2) == uniform(1, 2) != uniform(2, 1)
    drawn = [uniform(seed, place) for seed in range(40) for place in range(50)]
    assert len(set(drawn)) == 2000 and 0 <= min(drawn) and max(drawn) < 1
    # Mean 1/2 with standard error 1 / sqrt(12 x 2000).
    assert abs(sum(drawn) / 2000 - 0.5) < 5 / math.sqrt(12 * 2000)


def test_scores_by_hand():
    (one, two) = scores(torch.stack([LOGITS, -LOGITS]), [3, 2], 2)
    norm = math.log(sum(math.exp(x) for x in LOGITS.tolist()))
    assert one.log_prob == pytest.approx(2.0 - norm, abs=1e-12) and one.rank == 1
    assert [token for token, _ in one.top] == [1, 3] and one.top[0][1] == one.top[1][1] == one.log_prob
    assert two.rank == 1 and two.top[0] == (2, two.log_prob) and two.top[1][0] == 5
