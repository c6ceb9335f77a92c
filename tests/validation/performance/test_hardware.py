"""Profiles: published figures, interpolation, and errors that help."""

import pytest

from fasttrack_validation.errors import UserError
from fasttrack_validation.performance.hardware import profile, profiles


def test_published_peaks():
    assert profile("h200").datasheet_bytes_per_second == 4.8e12
    assert profile("gb300").datasheet_bytes_per_second == 8.0e12
    assert (profile("h200").target, profile("gb300").target) == (90, 103)


def test_physical_floor_by_hand():
    # 88.1 MB at 4.8 TB/s is 18.4 us: the KDA in-projection at TP8 (6144 x 7168 bf16).
    assert profile("h200").physical_floor_seconds(6144 * 7168 * 2) == pytest.approx(18.35e-6, rel=1e-3)


def test_measured_ceiling_interpolates_and_clamps():
    ceiling = profile("h200").ceiling
    assert ceiling.read_rate(32e6) == pytest.approx(3.3e12)
    assert 1.9e12 < ceiling.read_rate(16e6) < 3.3e12
    assert ceiling.read_rate(1e3) == 1.9e12
    assert ceiling.read_rate(1e12) == 4.4e12


def test_a_card_that_was_not_measured_has_no_ceiling():
    assert profile("gb300").ceiling is None


def test_unknown_card_names_the_nearest():
    with pytest.raises(UserError) as caught:
        profile("h20")
    assert "h200" in caught.value.how
    assert set(profiles()) == {"h200", "gb300"}
