"""A multiplier exists only between two measurements under equal conditions."""

import pytest
from pydantic import TypeAdapter, ValidationError

from fasttrack_validation.claims.cells import Cell, Measured, Modelled, NotMeasured, Ratio, Withheld, speedup


def measured(us, **changes):
    fields = dict(
        microseconds=us, low=us * 0.98, high=us * 1.02, repetitions=20, method="graph replay, cold L2", hardware="h200"
    )
    return Measured(**{**fields, **changes})


def test_ratio_and_interval_by_hand():
    ratio = speedup(measured(5.0), measured(7.5))
    assert isinstance(ratio, Ratio)
    assert ratio.value == pytest.approx(1.5)
    assert (ratio.low, ratio.high) == (pytest.approx(7.35 / 5.1), pytest.approx(7.65 / 4.9))


def test_a_model_never_becomes_a_ratio():
    estimate = Modelled(microseconds=3.0, model="m/1", hardware="h200", bound="bytes")
    withheld = speedup(NotMeasured(reason="no GPU", modelled=estimate), measured(7.0))
    assert isinstance(withheld, Withheld) and "candidate not measured: no GPU" in withheld.reason


@pytest.mark.parametrize(
    ("changes", "words"), [({"hardware": "gb300"}, "hardware differs"), ({"method": "events"}, "timing method differs")]
)
def test_unequal_conditions_withhold(changes, words):
    assert words in speedup(measured(5.0), measured(7.0, **changes)).reason


def test_not_measured_needs_a_reason():
    with pytest.raises(ValidationError):
        NotMeasured(reason="")


def test_cells_read_back_as_what_they_were():
    adapter = TypeAdapter(Cell)
    for cell in (measured(4.0), NotMeasured(reason="no GPU")):
        assert adapter.validate_json(cell.model_dump_json()) == cell
