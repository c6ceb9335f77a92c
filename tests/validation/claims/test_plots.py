"""Drawings: what is in them, what is left out, and that nothing in them is told by colour."""

import re

import claim_records as records
import pytest
from claim_records import claim, pair, record, server

from fasttrack_validation.claims import plots
from fasttrack_validation.claims.check import check

pytest.importorskip("matplotlib", reason="drawing needs matplotlib: pip install 'fasttrack[plot]'")


def grid(**changes):
    cells = {1: 1.6, 8: 1.2, 64: 0.9}
    return records.parsed(claim(*(
        pair(server(100.0 * ratio, workload__concurrency=n), server(100.0, identity__commit="a0", workload__concurrency=n),
             f"b{n}")
        for n, ratio in cells.items()
    ), **changes))  # fmt: skip


def op(name, microseconds, moved):
    data = server(microseconds, "op_time", "us", scope="op", timed__phase="op", workload__data=name,
                  hardware__sku="h200", validity__floor={"moved_bytes": moved})  # fmt: skip
    return record(data)


def texts(path):
    return re.findall(r">([^<>]+)</text>", path.read_text())


def test_losing_cells_are_visible(tmp_path):
    (path,) = plots.write([grid()], tmp_path)
    found = texts(path)
    assert path.name == "decode-speed-up.svg" and {"b1", "b8", "b64"} <= set(found)
    assert found.count("slower") == 1
    assert any("worst 0.90, best 1.60" in text for text in found)
    assert check(grid()).summary.losing == ("b64",)


def test_a_cell_without_a_change_has_no_point(tmp_path):
    cells = {4: 1.5, 8: 1.0}
    claims = records.parsed(claim(*(
        pair(server(100.0 * ratio, workload__concurrency=n), server(100.0, identity__commit="a0", workload__concurrency=n),
             f"b{n}")
        for n, ratio in cells.items()
    )))  # fmt: skip
    (path,) = plots.write([claims], tmp_path)
    assert texts(path).count("no measurable change") == 1


def test_a_claim_without_multipliers_is_not_drawn(tmp_path):
    assert plots.write([records.parsed(records.simple(hardware__driver=None))], tmp_path) == []


def test_launches_against_their_floor(tmp_path):
    # 48 MB at 4.8 TB/s are 10 us
    launches = plots.launches_of([op("front", 15.0, 48_000_000), op("head", 40.0, 96_000_000)])
    assert [(one.name, round(one.seconds / one.floor_seconds, 6)) for one in launches] == [
        ("front", 1.5),
        ("head", 2.0),
    ]
    (path,) = plots.write([op("front", 15.0, 48_000_000)], tmp_path)
    assert "1.50 of the floor" in texts(path) and "front" in texts(path)
    unknown = record(server(15.0, "op_time", "us", scope="op", timed__phase="op", hardware__sku="a card"))
    assert plots.launches_of([unknown]) == []


def test_only_equal_conditions_share_a_drawing():
    def arm(value, n, **changes):
        return record(server(value, workload__concurrency=n, **changes))

    two = [arm(100, 1), arm(60, 8), arm(150, 1, identity__commit="b"), arm(80, 8, identity__commit="b")]
    (lines,) = plots.frontiers(two)
    # 60 tok/s/user by 8 users over 8 GPUs
    assert [points[1].tok_s_gpu for points in lines.values()] == [pytest.approx(60), pytest.approx(80)]
    assert len(plots.frontiers([*two, arm(100, 1, hardware__driver="550")])) == 2
    assert len(plots.frontiers([*two, arm(100, 1, workload__isl_asked=32768)])) == 2


def test_a_record_that_breaks_a_rule_is_not_drawn(tmp_path):
    assert plots.write([record(server(100.0, result__failed=1))], tmp_path) == []
    assert len(plots.write([record(server(100.0))], tmp_path)) == 1


def test_nothing_is_told_by_colour_and_bytes_are_stable(tmp_path):
    items = [grid(), op("front", 15.0, 48_000_000), record(server(100.0)), record(server(120.0, identity__commit="b"))]
    first, second = plots.write(items, tmp_path / "one"), plots.write(items, tmp_path / "two")
    assert [path.name for path in first] == [
        "decode-speed-up.svg", "launches-against-floor.svg", "user-against-gpu-0.svg",
    ]  # fmt: skip
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
        colours = re.findall(r"#([0-9a-f]{6})\b", one.read_text())
        assert colours and all(c[:2] == c[2:4] == c[4:] for c in colours)
