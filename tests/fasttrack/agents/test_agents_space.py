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
op = "copy"
entry = "copy.py"

[parameters]
BLOCK = [16, 32, 64]
fast = [true, 1]

[default]
BLOCK = 32
fast = true

[[exclude]] # too many registers
BLOCK = 64
fast = true

[[in_flight]]
unit_bytes = 4
tile = ["BLOCK"]
"""


def test_configurations_and_exclusions():
    space = parse(TEXT, PATH)
    found = [(c["BLOCK"], c["fast"]) for c in space.configurations()]
    expected = [(b, f) for b, f in itertools.product((16, 32, 64), (True, 1)) if not (b == 64 and f is True)]
    assert repr(found) == repr(expected)
    assert repr(space.default) == repr({"BLOCK": 32, "fast": True})


def test_true_and_one_are_two_values():
    space = parse(TEXT, PATH)
    assert space.holds({"BLOCK": 64, "fast": 1}) and not space.holds({"BLOCK": 64, "fast": True})
    assert not space.holds({"BLOCK": 64.0, "fast": 1}) and not space.holds({"BLOCK": 16})
    assert not space.holds({"BLOCK": 16, "fast": 1, "more": 1})


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("BLOCK = 32", "BLOCK = 48", "the default does not give each parameter one of its values"),
        ("BLOCK = 32\n", "", "the default does not give each parameter one of its values"),
        ("fast = true\n\n[[ex", "fast = true\nmore = 1\n\n[[ex", "the default does not"),
        ("[16, 32, 64]", "[16, 32, 16]", "or one of them twice"),
        ("[16, 32, 64]", "[]", "has no values"),
        ("[16, 32, 64]", "16", "k.space.toml:5: key 'parameters.BLOCK'"),
        ("BLOCK = 64\nfast = true", "BLOCKS = 64", "BLOCKS = 64 is not a parameter with one of its values"),
        ("BLOCK = 64\nfast = true", "BLOCK = 65", "BLOCK = 65 is not a parameter with one of its values"),
        ("BLOCK = 64\nfast = true", "BLOCK = 32", "or is excluded"),
        ("BLOCK = 64\nfast = true", "", "leaves nothing to try"),
        ('tile = ["BLOCK"]', 'tile = ["fast"]', "not a parameter of positive integers"),
        ('tile = ["BLOCK"]', 'tile = ["none"]', "not a parameter of positive integers"),
        ("[16, 32, 64]", str(list(range(1, 40_000))), "more than 65536"),
        ("unit_bytes", "unit", "'in_flight.0.unit_bytes' is missing"),
        ('op = "copy"', 'op = "copy"\nops = 1', "k.space.toml:2: key 'ops' is unknown"),
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


def test_a_program_that_walks_its_share_counts_once():
    # 64 KiB a program, two tiles of 16 KiB under way: 1 MiB is 16 programs with 32 KiB each.
    layout = InFlight(unit_bytes=1024, tile=("BLOCK",), ahead=2, program_bytes=2**16)
    assert floor.bytes_in_flight({"BLOCK": 16}, layout, 2**20, CARD) == (16 * 2**15, 16)


def space_of(values):
    return Space.model_validate(
        {
            "op": "copy", "entry": "copy.py", "parameters": {"BLOCK": values, "walk": [True, False]},
            "default": {"BLOCK": values[0], "walk": True},
            "in_flight": [{"when": {"walk": False}, "unit_bytes": 1024, "tile": ["BLOCK"]}],
        }
    )  # fmt: skip


def test_seeds_spread_few_bytes_over_all_multiprocessors():
    space = space_of((8, 16, 64, 128))
    # 768 KiB over 132 SMs: BLOCK 8 gives 96 programs, the most; larger tiles idle more.
    assert floor.seeds(space, {"h200": [768 * 1024]}) == [{"BLOCK": 8, "walk": False}]
    # 48 MiB fill every SM with any tile; then the largest tile pays for the fewest starts.
    assert floor.seeds(space, {"h200": [48 * 2**20]}) == [{"BLOCK": 128, "walk": False}]
    assert floor.seeds(space, {"h200": [768 * 1024, 768 * 1024, 48 * 2**20]}) == [
        {"BLOCK": 8, "walk": False}, {"BLOCK": 128, "walk": False}]  # fmt: skip
    assert floor.seeds(space.model_copy(update={"in_flight": ()}), {"h200": [1024]}) == []


@given(st.integers(1, 2**30), st.sampled_from([1, 8, 64, 512]))
def test_never_more_in_flight_than_there_are_bytes(total, block):
    under_way, programs = floor.bytes_in_flight({"BLOCK": block, "stages": 1}, LAYOUT, total, CARD)
    assert 1 <= programs and 0 < under_way <= total
