"""Verdicts on the long rung from made-up errors: what rounding alone leaves says nothing, whatever equal runs make of it."""

import pytest
from fasttrack_validation.numerics.whole_model.checks import Result
from fasttrack_validation.numerics.whole_model.long_rung import Point, judged

HEADS = 8


def point(what, own, noise):
    paths = {name: (noise,) * HEADS for name in ("stock", "again-1", "again-2", "again-3")}
    return Point(what=what, at=1, errors={**paths, "candidate": (noise,) * (HEADS - 1) + (own,)})


@pytest.mark.parametrize(
    "what,own,noise,result",
    [
        ("state", 2.4e-7, 1.0e-7, Result.PASS),  # 4 times 2^-24
        ("state", 6.0e-7, 1.0e-7, Result.FAIL),  # 10 times 2^-24
        ("state", 3.0e-3, 1.6e-3, Result.PASS),
        ("state", 4.0e-3, 1.6e-3, Result.FAIL),
        ("output", 2.4e-7, 1.0e-7, Result.FAIL),  # in bfloat16, where nothing is that near
    ],
)
def test_one_head_is_held_to_the_noise_and_to_what_eight_roundings_leave(what, own, noise, result):
    assert judged([point(what, own, noise)], 48).result is result
