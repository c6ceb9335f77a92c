"""Which steps records show to be faster: sums and orders worked out by hand."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from fasttrack import faster
from fasttrack.faster import Entry, Step, Table
from fasttrack_validation.contracts.grid import CellSpec
from fasttrack_validation.errors import UserError
from fasttrack_validation.performance.records import Measured, NotRun
from fasttrack_validation.timing.statistics import Interval
from hypothesis import given
from hypothesis import strategies as st

LAYERS = {"kda": 3, "mla": 1}


@dataclass
class Cell:
    """What is read of a cell."""

    spec: CellSpec
    outcome: object


def cell(kind="kda", stock=(100.0, 100.0), own=(50.0, 50.0), *, tp=8, rows=1, width=1, context=None, span="layer"):
    spec = CellSpec(span=span, kind=kind, tp=tp, rows=rows, width=width, context=context)
    if stock is None:
        return Cell(spec, NotRun(reason="nothing is kept"))
    path = lambda ends: type("Path", (), {"microseconds": Interval(median=sum(ends) / 2, low=ends[0], high=ends[1])})()
    return Cell(spec, Measured.model_construct(stock=path(stock), specialised=path(own)))


def test_layers_are_added_up_at_the_unfavourable_ends_of_their_intervals():
    cells = [cell(stock=(90, 110), own=(50, 60)), cell("mla", stock=(40, 80), own=(70, 100), context=1024)]
    # (3 * 90 + 1 * 40) / (3 * 60 + 1 * 100)
    (step,) = faster.steps(cells, LAYERS)
    assert step == Step(8, 1, 1, pytest.approx(310 / 280), "at 1024 tokens cached")


def test_the_context_that_gains_least_counts():
    cells = [cell(own=(50, 50)), *(cell("mla", own=(own, own), context=context) for context, own in ((1024, 50), (32768, 170), (131072, 120)))]
    (step,) = faster.steps(cells, LAYERS)
    assert (step.ratio, step.why) == (pytest.approx(400 / 320), "at 32768 tokens cached")


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ([cell(), cell("mla", None, context=1024)], "no figure for tp8-mla-r1-c1024"),
        ([cell()], "no figure for mla"),
        ([cell(stock=None), cell("mla", context=1024)], "no figure for tp8-kda-r1"),
    ],
)
def test_a_kind_without_a_figure_leaves_a_step_unknown(cells, words):
    (step,) = faster.steps(cells, LAYERS)
    assert (step.ratio, step.why) == (None, words)


def test_whole_steps_are_no_layers_and_sizes_come_in_order():
    cells = [cell(rows=8), cell(rows=1), cell("step", span="step", tp=16, rows=1, context=1024), cell(rows=8, width=8)]
    assert [(step.tokens, step.rows) for step in faster.steps(cells, {"kda": 1})] == [(1, 1), (1, 8), (8, 8)]


def step(rows, ratio, tp=8, tokens=1):
    return Step(tp, tokens, rows, ratio, "")


@pytest.mark.parametrize(
    ("ratios", "rows"),
    [
        ([1.5, 1.2, 1.1], 4), ([1.5, 0.9, 1.1], 1), ([1.5, None, 1.1], 1), ([0.9, 1.5, 1.5], 0), ([None], 0),
        ([1.5, 1.01, 1.1], 1),  # no more than the smallest effect is no difference
    ],
)  # fmt: skip
def test_rows_count_from_the_first_on_without_a_gap(ratios, rows):
    found = [step(size, ratio) for size, ratio in zip((1, 2, 4), ratios)]
    assert faster.drawn("h200", reversed(found), 0.01) == (Entry(hardware="h200", tp=8, tokens=1, rows=rows),)


def test_each_tp_and_number_of_tokens_has_an_entry_of_its_own():
    found = [step(1, 1.5), step(1, 1.5, tp=16), step(8, None, tokens=8), step(2, 2.0, tp=16)]
    assert {(entry.tp, entry.tokens): entry.rows for entry in faster.drawn("h200", found, 0.01)} == {
        (8, 1): 1, (8, 8): 0, (16, 1): 2,
    }  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(["h200", "gb300"]), st.integers(1, 16), st.integers(1, 8), st.integers(0, 64)),
                unique_by=lambda row: row[:3]))  # fmt: skip
def test_a_table_survives_being_written(rows):
    table = Table(entry=tuple(Entry(hardware=h, tp=tp, tokens=t, rows=r) for h, tp, t, r in rows))
    again = faster.parse(faster.render(table), Path("faster.toml"))
    assert sorted(again.entry, key=str) == sorted(table.entry, key=str) and faster.render(again) == faster.render(table)


def test_other_hardware_stays_as_it_was():
    mine, other = Entry(hardware="h200", tp=8, tokens=1, rows=1), Entry(hardware="gb300", tp=8, tokens=1, rows=64)
    assert faster.replaced(Table(entry=(mine, other)), "h200", ()).entry == (other,)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"rows": 65}, "rows=65 lies outside"), ({"tokens": 9}, "tokens=9"), ({"tp": 4}, "tp=4"), ({"hardware": "b200"}, "b200"),
    ],
)  # fmt: skip
def test_an_entry_beyond_the_envelope_is_refused(entry, words):
    within = {"hardware": "h200", "tp": 8, "tokens": 8, "rows": 64}
    envelope = [("h200", 8, (1, 64), 8)]
    faster.check_within(Table(entry=(Entry(**within),)), envelope, Path("faster.toml"))
    with pytest.raises(UserError, match=words):
        faster.check_within(Table(entry=(Entry(**within | entry),)), envelope, Path("faster.toml"))


def test_a_place_is_listed_once():
    text = '[[entry]]\nhardware = "h200"\ntp = 8\ntokens = 1\nrows = 1\n'
    with pytest.raises(UserError, match="listed twice"):
        faster.parse(text + text, Path("faster.toml"))


def test_the_gate_reads_the_table_without_torch():
    code = "import sys, fasttrack.gate; print(sorted({'torch', 'triton'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
