"""Verdicts on the long rung from made-up errors: what rounding alone leaves says nothing, whatever equal runs make of it."""

import pytest
from fasttrack_validation.numerics.whole_model import long_sections
from fasttrack_validation.numerics.whole_model.checks import Result
from fasttrack_validation.numerics.whole_model.long_rung import Point, judged
from fasttrack_validation.numerics.whole_model.plan import Settings

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


def test_contexts_of_several_lengths_are_judged_apart():
    def at(what, position, own):
        paths = {name: (1e-3,) for name in ("stock", "again-1", "again-2", "again-3")}
        return Point(what=what, at=position, errors={**paths, "candidate": (own,)})

    points = [at("context of 256", n, 1e-3) for n in range(40)] + [at("context of 512", n, 9e-3) for n in range(40)]
    found = judged(points, 48)
    assert {check.name for check in found.checks if check.result is not Result.PASS} == {
        "context of 512, 0-1k, median", "context of 512, 0-1k, largest"
    }  # fmt: skip


def test_one_context_is_written_as_ever_and_several_as_a_list():
    one, several = Settings(context=512), Settings(context=(512, 1024))
    assert one.contexts == (512,) and '"context":512' in one.canonical_json()
    assert several.contexts == (512, 1024) and '"context":[512,1024]' in several.canonical_json()
    assert Settings.model_validate_json(several.canonical_json()) == several
    with pytest.raises(ValueError):
        Settings(context=(512, 8))


def test_attention_over_several_contexts_leaves_points_of_each():
    settings = Settings(candidate="plain:twin", steps=1, context=(256, 320), replicas=2)
    sections = long_sections.plain(settings, None, lambda step: None)
    points = [point for compute in sections.values() for point in compute()]
    assert {point.what for point in points} == {"state", "output", "context of 256", "context of 320"}
    assert max(point.at for point in points if point.what == "context of 320") == 319
    assert judged(points, 48).result is Result.PASS
