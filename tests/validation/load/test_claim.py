"""Cells of a server's grid become complete records, and their claim says what follows from the figures and no more."""

import pytest
from server_grids import record

from fasttrack_validation.claims.check import check
from fasttrack_validation.claims.conditions import missing
from fasttrack_validation.claims.findings import Effect, Status
from fasttrack_validation.errors import UserError
from fasttrack_validation.load import claim, compare


def test_a_cell_with_everything_stated_has_a_ratio():
    """100 against 166.67 tok/s/user; provisional, for a grid has no exams."""
    (made,) = claim.claims("k3", "Decode", [record()])
    found = check(made)
    assert made.id == "k3-mixed-prefill" and [one.rule for one in found.findings] == ["P12"]
    assert found.findings[0].effect is Effect.PROVISIONAL and found.status is Status.WITHHELD
    (row,) = found.rows
    assert row.ratio.value == pytest.approx(10 / 6, rel=1e-3) and row.ratio.low <= row.ratio.value <= row.ratio.high
    assert row.ratio.repetitions == 6 and row.baseline == pytest.approx(100, rel=1e-3)


@pytest.mark.parametrize("path", ["hardware.driver", "identity.build", "engine.prefix_cache", "hardware.clocks_locked"])
def test_what_nobody_stated_is_unknown_and_blocks(path):
    (made,) = claim.claims("k3", "Decode", [record(**{path: None})])
    found = check(made)
    assert all(row.ratio is None for row in found.rows)
    assert "P1" in {one.rule for one in found.findings}
    assert path in missing(made.pairs[0].candidate, made.metric)


def test_decode_only_carries_the_end_to_end_row():
    alone, beside = (claim.claims("k3", "Decode", [record(load="decode_only"), *more])[0] for more in ([], [record()]))
    assert "no end-to-end row" in next(one.message for one in check(alone).findings if one.rule == "P6")
    found = check(beside)
    assert next(one for one in found.findings if one.rule == "P6").effect is Effect.QUALIFIED
    assert beside.pairs[0].candidate.timed.share == pytest.approx(0.5)
    assert found.whole.rows[0].ratio.value == pytest.approx(10 / 6, rel=1e-3)
    # half of the time becomes 10/6 faster: 1 / (0.5 + 0.5 * 0.6)
    assert found.implied[0].ratio.value == pytest.approx(1.25, rel=1e-3)


def test_a_place_that_favours_is_seen():
    """The arm that goes first in a round is 2 % faster: stock in even rounds, specialised in odd ones."""
    one = record(noise=0.0)
    sides = {}
    for name, fast in (("stock", 0), ("specialised", 1)):
        side = getattr(one.outcome, name)
        rounds = tuple(
            r.model_copy(update={"figures": r.figures.model_copy(update={
                "tpot": r.figures.tpot * (0.98 if n % 2 == fast else 1), "tok_s_user": r.figures.tok_s_user / (0.98 if n % 2 == fast else 1),
            })})
            for n, r in enumerate(side.rounds)
        )  # fmt: skip
        sides[name] = side.model_copy(update={"rounds": rounds})
    biased = one.model_copy(update={"outcome": one.outcome.model_copy(update=sides)})
    (made,) = claim.claims("k3", "Decode", [biased])
    assert made.pairs[0].swap.bias == pytest.approx(1 / 0.98 - 1, rel=1e-6)
    assert "P16" in {f.rule for f in check(made).findings}
    (fair,) = claim.claims("k3", "Decode", [record(noise=0.0)])
    assert fair.pairs[0].swap.bias == pytest.approx(0, abs=1e-12)


def test_nothing_measured_is_no_claim():
    with pytest.raises(UserError, match="nothing to claim"):
        claim.claims("k3", "Decode", [])


def test_grids_are_compared_cell_by_cell_with_the_stock_arm_as_control():
    def change(before, after):
        (found,) = compare.compare({"c": before}, {"c": after})
        return found

    slower = change(record(fast=0.006), record(fast=0.007))
    assert slower.change == "slower" and slower.ratio.value == pytest.approx(6 / 7, rel=1e-3)
    assert slower.ratio.low < slower.ratio.value < slower.ratio.high < 1
    assert change(record(fast=0.006), record(fast=0.005)).change == "faster"
    assert change(record(), record()).change == "same"
    assert "stock arm's TPOT moved" in change(record(), record(stock=0.011)).reason
    for condition, value in (("hardware.driver", "590"), ("hardware.sm_clock_mhz", 1500)):
        apart = change(record(), record(**{condition: value}))
        assert apart.change == "apart" and condition in apart.reason
    assert change(record(), record(hardware="h200")).change == "apart"
    assert "no measurement" in compare.compare({"c": record()}, {})[0].reason


def test_cells_of_another_machine_state_are_not_mixed_in():
    three = {"a": record(), "b": record(load="decode_only"), "c": record(**{"hardware.driver": "590"})}
    found = compare.apart(three)
    assert set(found) == {"c"} and "hardware.driver 590 against 580.95" in found["c"]
    assert compare.apart({name: three[name] for name in "ab"}) == {} == compare.apart({})
    # Another commit of the specialised arm alone
    other = three["a"].model_copy(update={"outcome": three["a"].outcome.model_copy(update={
        "specialised": three["a"].outcome.specialised.model_copy(update={
            "conditions": {**three["a"].outcome.specialised.conditions, "identity": {"commit": "b9"}}})})})  # fmt: skip
    assert set(compare.apart({"a": three["a"], "b": three["b"], "d": other})) == {"d"}
