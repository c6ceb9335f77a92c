import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasttrack.agents import floor
from fasttrack.agents.space import InFlight, Space, parse
from fasttrack_validation.errors import UserError

PATH = Path("k.space.toml")
TEXT = """\
[parameter.BLOCK]
values = [16, 32, 64]
default = 32

[parameter.fast]
values = [true, 1]
default = true

[[exclude]]
when = { BLOCK = 64, fast = true }
why = "too many registers"

[in_flight]
unit_bytes = 4
tile = ["BLOCK"]
"""


def test_configurations_and_exclusions():
    space = parse(TEXT, PATH)
    found = [(c["BLOCK"], c["fast"]) for c in space.configurations()]
    expected = [(b, f) for b, f in itertools.product((16, 32, 64), (True, 1)) if not (b == 64 and f is True)]
    assert repr(found) == repr(expected)
    assert space.default == {"BLOCK": 32, "fast": True}


def test_true_and_one_are_two_values():
    space = parse(TEXT, PATH)
    assert space.holds({"BLOCK": 64, "fast": 1}) and not space.holds({"BLOCK": 64, "fast": True})
    assert not space.holds({"BLOCK": 64.0, "fast": 1}) and not space.holds({"BLOCK": 16})
    assert not space.holds({"BLOCK": 16, "fast": 1, "more": 1})


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("default = 32", "default = 48", "k.space.toml:1: key 'parameter.BLOCK': default 48 is not among"),
        ("[16, 32, 64]", "[16, 32, 16]", "a value is listed twice"),
        ("[16, 32, 64]", "[]", "k.space.toml:2: key 'parameter.BLOCK.values'"),
        ("why = ", "reason = ", "why' is missing"),
        ("{ BLOCK = 64, fast", "{ BLOCKS = 64, fast", "'BLOCKS', which is not a parameter"),
        ("{ BLOCK = 64, fast", "{ BLOCK = 65, fast", "not among its values"),
        ("{ BLOCK = 64, fast = true }", "{ BLOCK = 32 }", "the default configuration is excluded"),
        ('tile = ["BLOCK"]', 'tile = ["fast"]', "not all positive integers"),
        ('tile = ["BLOCK"]', 'tile = ["none"]', "not a parameter"),
        ("[16, 32, 64]", str(list(range(1, 40_000))), "more than 65536"),
        ("unit_bytes", "unit", "'in_flight.unit_bytes' is missing"),
    ],
)
def test_errors(old, new, text):
    assert old in TEXT
    with pytest.raises(UserError) as error:
        parse(TEXT.replace(old, new, 1), PATH)
    assert text in error.value.what


CARD = floor.Card(bytes_per_second=1e12, multiprocessors=10, latency_seconds=1e-6)
LAYOUT = InFlight(unit_bytes=1024, tile=("BLOCK",), stages=("stages",))


def test_bytes_in_flight_by_hand():
    # Tiles of 16 KiB, two under way: 32 KiB a program. 1 MiB makes 32 programs, which fit into 10 SMs (4 each).
    assert floor.bytes_in_flight({"BLOCK": 16, "stages": 2}, LAYOUT, 2**20, CARD) == (2**20, 32)
    # 64 MiB would make 2048; 40 fit.
    assert floor.bytes_in_flight({"BLOCK": 16, "stages": 2}, LAYOUT, 2**26, CARD) == (40 * 32 * 1024, 40)
    # A program larger than the limit still runs, one to an SM.
    assert floor.bytes_in_flight({"BLOCK": 256, "stages": 1}, LAYOUT, 2**26, CARD) == (10 * 2**18, 10)
    assert floor.bytes_in_flight({"BLOCK": 256, "stages": 1}, LAYOUT, 1000, CARD) == (1000, 1)


def test_floor_by_hand():
    assert floor.floor_microseconds(4_800_000, "h200") == pytest.approx(1.0)
    assert floor.CARDS["h200"].bytes_under_way == pytest.approx(3.84e6)


def space_of(values):
    return Space.model_validate(
        {"parameter": {"BLOCK": {"values": values, "default": values[0]}}, "in_flight": {"unit_bytes": 1024, "tile": ["BLOCK"]}}
    )


def test_seeds_spread_few_bytes_over_all_multiprocessors():
    space = space_of((8, 16, 64, 128))
    # 768 KiB over 132 SMs: BLOCK 8 gives 96 programs, the most; larger tiles idle more.
    assert floor.seeds(space, {"h200": [768 * 1024]}) == [{"BLOCK": 8}]
    # 48 MiB fill every SM with any tile; then the largest tile pays for the fewest starts.
    assert floor.seeds(space, {"h200": [48 * 2**20]}) == [{"BLOCK": 128}]
    assert floor.seeds(space, {"h200": [768 * 1024, 768 * 1024, 48 * 2**20]}) == [{"BLOCK": 8}, {"BLOCK": 128}]
    assert floor.seeds(space.model_copy(update={"in_flight": None}), {"h200": [1024]}) == []


@given(st.integers(1, 2**30), st.sampled_from([1, 8, 64, 512]))
def test_never_more_in_flight_than_there_are_bytes(total, block):
    under_way, programs = floor.bytes_in_flight({"BLOCK": block, "stages": 1}, LAYOUT, total, CARD)
    assert 1 <= programs and 0 < under_way <= total
