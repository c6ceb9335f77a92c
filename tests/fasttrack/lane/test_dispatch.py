import string
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasttrack import dispatch
from fasttrack.dispatch import Entry, Table
from fasttrack_validation.errors import UserError

PATH = Path("dispatch/x.toml")
ENVELOPE = [("h200", 8, (1, 64))]


def entry(low, high, hardware="h200", tp=8, **changes):
    values = {"hardware": hardware, "tp": tp, "rows": (low, high), "kernel": "k.py", "basis": "modelled"}
    return Entry(**{**values, **changes})


def table(*ranges):
    return Table(entry=tuple(entry(*r) if isinstance(r, tuple) else r for r in ranges))


@pytest.mark.parametrize(
    ("ranges", "text"),
    [
        ([(1, 64)], None),
        ([(5, 64), (1, 4)], None),
        ([(1, 4), (6, 64)], "has no entry for rows 5"),
        ([(2, 64)], "has no entry for rows 1"),
        ([], "has no entry for rows 1"),
        ([(1, 63)], "has no entry for rows 64"),
        ([(1, 8), (8, 64)], "overlaps rows"),
        ([(1, 64), (3, 5)], "overlaps rows"),
        ([(1, 65)], "outside the envelope's rows"),
        ([(1, 64), entry(1, 64, tp=16)], "outside the envelope"),
        ([(1, 64), entry(1, 64, hardware="gb300")], "outside the envelope"),
    ],
)
def test_cover(ranges, text):
    if text is None:
        dispatch.check_cover(table(*ranges), ENVELOPE, PATH)
        return
    with pytest.raises(UserError, match=text) as error:
        dispatch.check_cover(table(*ranges), ENVELOPE, PATH)
    assert str(PATH) in error.value.what


@pytest.mark.parametrize(
    ("ranges", "text"),
    [
        ([(1, 8)], None),
        ([(33, 64), (1, 4)], None),
        ([], None),
        ([(1, 8), (8, 16)], "overlaps rows"),
        ([(1, 65)], "outside the envelope"),
        ([(1, 4), entry(1, 4, tp=16)], "outside the envelope"),
        ([(1, 4), entry(1, 4, hardware="gb300")], "outside the envelope"),
    ],
)
def test_a_table_of_fused_ops_may_leave_places_out_but_not_name_one_twice(ranges, text):
    if text is None:
        dispatch.check_within(table(*ranges), ENVELOPE, PATH)
        return
    with pytest.raises(UserError, match=text) as error:
        dispatch.check_within(table(*ranges), ENVELOPE, PATH)
    assert str(PATH) in error.value.what


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=5))
def test_cover_accepts_exactly_what_counting_rows_accepts(pairs):
    ranges = [(low, high) for low, high in pairs if low <= high]
    if not ranges:
        return
    counts = [sum(low <= row <= high for low, high in ranges) for row in range(1, 13)]
    exact = counts[:8] == [1] * 8 and not any(counts[8:])
    try:
        dispatch.check_cover(table(*ranges), [("h200", 8, (1, 8))], PATH)
        accepted = True
    except UserError:
        accepted = False
    assert accepted == exact


def test_buckets_by_hand():
    assert dispatch.buckets([4, 1, 16], (1, 16)) == ((1, 1), (2, 4), (5, 16))
    assert dispatch.buckets([1, 4, 16], (2, 10)) == ((2, 4), (5, 10))
    assert dispatch.buckets([8], (1, 8)) == ((1, 8),)
    with pytest.raises(ValueError, match="largest declared workload has 16"):
        dispatch.buckets([1, 16], (1, 17))
    with pytest.raises(ValueError):
        dispatch.buckets([], (1, 1))


@given(st.sets(st.integers(1, 100), min_size=1), st.data())
def test_buckets_partition_the_span(sizes, data):
    high = data.draw(st.integers(1, max(sizes)))
    low = data.draw(st.integers(1, high))
    ranges = dispatch.buckets(sorted(sizes), (low, high))
    assert [row for a, b in ranges for row in range(a, b + 1)] == list(range(low, high + 1))
    # No range reaches past the declared size that answers for it.
    assert all(min(s for s in sizes if s >= b) == min(s for s in sizes if s >= a) for a, b in ranges)


text = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
value = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | text
entries = st.builds(
    entry, st.just(1), st.just(64), config=st.dictionaries(text, value, max_size=4), kernel=text,
    microseconds=st.none() | st.floats(1e-6, 1e9), evidence=st.none() | st.just("evidence/a.json"),
)  # fmt: skip


@given(st.lists(entries, max_size=3))
def test_render_is_read_back_and_is_stable(found):
    # Python takes True for 1; the written form must not.
    rendered = dispatch.render(Table(entry=tuple(found)))
    back = dispatch.parse(rendered, PATH)
    assert dispatch.render(back) == rendered == dispatch.render(Table(entry=tuple(found)))
    assert repr(sorted(map(repr, back.entry))) == repr(sorted(repr(e) for e in map(_sorted, found)))


def _sorted(found):
    return found.model_copy(update={"config": {key: found.config[key] for key in sorted(found.config)}})


def test_render_looks_as_people_would_write_it():
    rendered = dispatch.render(table(entry(1, 4, config={"b": True, "BLOCK": 64}, microseconds=2.0)))
    assert rendered == (
        '[[entry]]\nhardware = "h200"\ntp = 8\nrows = [1, 4]\nkernel = "k.py"\n'
        'config = { BLOCK = 64, b = true }\nbasis = "modelled"\nmicroseconds = 2.0\n'
    )
    assert tomllib.loads(rendered)["entry"][0]["config"] == {"BLOCK": 64, "b": True}


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('basis = "guessed"', "x.toml:6: key 'entry.0.basis'"),
        ('basis = "measured"', "needs microseconds and evidence"),
        ('basis = "modelled"\nspeedup = 2.0', "x.toml:7: key 'entry.0.speedup' is unknown"),
        ('basis = "modelled"\nmicroseconds = -1.0', "x.toml:7: key 'entry.0.microseconds'"),
        ('basis = "modelled"\nmicroseconds = inf', "x.toml:7: key 'entry.0.microseconds'"),
        ('basis = "modelled"\nconfig = { a = nan }', "not finite"),
        ('basis = "modelled"\nevidence = "../elsewhere"', "x.toml:7"),
        ('basis = "modelled"\n[[entry]]', "x.toml:7: key 'entry.1.hardware' is missing"),
    ],
)
def test_parse_names_file_key_and_line(line, text):
    good = '[[entry]]\nhardware = "h200"\ntp = 8\nrows = [1, 4]\nkernel = "k.py"\n'
    with pytest.raises(UserError) as error:
        dispatch.parse(good + line + "\n", PATH)
    assert text in error.value.what


def test_a_lookup_outside_the_table_is_none():
    found = table((1, 4), (5, 64))
    assert found.at("h200", 8, 5).rows == (5, 64)
    assert found.at("h200", 8, 65) is found.at("h200", 4, 5) is found.at("gb300", 8, 5) is None


@given(st.text(string.printable, max_size=60))
def test_any_text_is_a_table_or_a_user_error(garbage):
    try:
        dispatch.parse(garbage, PATH)
    except UserError:
        pass
