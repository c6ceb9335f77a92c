"""Profiles: published figures, interpolation, and errors that help."""

import pytest

from fasttrack_validation.errors import UserError
from fasttrack_validation.performance.hardware import datasheet, datasheets, profile, profiles


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


def test_cards_that_claims_are_about():
    assert set(datasheets()) == {"h200", "gb300", "b200", "h100", "mi355x"}
    assert all(card.source and card.title for card in datasheets().values())
    # A 72nd of the rack's published 576 TB/s and 130 TB/s of NVLink; an eighth of a board's 7.2 TB/s.
    assert datasheet("gb300").datasheet_bytes_per_second == 576e12 / 72
    assert datasheet("gb300").link_bytes_per_second * datasheet("gb300").link_domain == pytest.approx(130e12, rel=0.005)
    assert datasheet("h100").link_bytes_per_second * datasheet("h100").link_domain == 7.2e12
    # 256 compute units of 4096 flops a clock (dense BF16 MFMA) at 2.4 GHz
    assert datasheet("mi355x").datasheet_flops_bf16 == pytest.approx(256 * 4096 * 2.4e9, rel=1e-3)
    assert datasheet("h100").physical_floor_seconds(3_350_000) == pytest.approx(1e-6)


def test_a_card_that_is_only_known_is_no_profile():
    with pytest.raises(UserError, match="unknown hardware 'b200'"):
        profile("b200")
    with pytest.raises(UserError, match="unknown hardware 'b20'"):
        datasheet("b20")
