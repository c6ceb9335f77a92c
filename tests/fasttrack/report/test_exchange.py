"""Several ranks with communication, the split of a gain, and what a reader is told first."""

import hashlib
import json

import pytest
from fasttrack.report.exchange import exchanges, findings
from fasttrack.report.headline import asked, extremes, whole
from fasttrack.report.kernels import first_sentence, kernels
from fasttrack.report.render import render, spread
from report_layers import layer, ranks, with_layers

PATH = "evidence/exchange/h200-tp2.json"
SOURCES = {"exchange/a.cu": b"x", "exchange/README.md": b"not a source", "kernels/b.py": b"y", "kernels/sub/c.cuh": b"z"}


def digest(*names: str) -> str:
    """As the benchmark keeps it: names from the repository's root and contents, each ended by a zero byte."""
    return hashlib.sha256(b"".join(f"models/m/{name}\0".encode() + SOURCES[name] + b"\0" for name in names)).hexdigest()


def test_a_record_tells_which_sources_are_others_by_now():
    subject = {"exchange": digest("exchange/a.cu"), "kernels": digest("kernels/b.py", "kernels/sub/c.cuh")}
    files = SOURCES | {PATH: ranks(subject=subject)}
    (same,), (other,) = exchanges(files, "models/m"), exchanges(files | {"kernels/b.py": b"changed"}, "models/m")
    assert (same.changed, other.changed) == ((), ("kernels",))
    page = render(with_layers().model_copy(update={"exchanges": (other,)}))[0]
    assert "About earlier sources: kernels" in page and "39.0 ms" in page and "earlier sources" in page.split("## 1")[0]
    assert "earlier sources" not in render(with_layers().model_copy(update={"exchanges": (same,)}))[0]


def test_paths_are_set_against_stock_where_quartiles_lie_apart():
    (record,) = exchanges({PATH: ranks()}, "models/m")
    step, kda = record.spans
    assert (step.standing, kda.standing) == ("slower", "not compared")
    value = json.loads(ranks())
    for median, standing in ((20000.0, "faster"), (26100.0, "not told apart")):
        value["cells"][1]["microseconds"] = {"median": median, "quarter": median * 0.99, "three quarters": median * 1.01}
        (changed,) = exchanges({PATH: json.dumps(value).encode()}, "models/m")
        assert changed.spans[0].standing == standing
    assert record.conditions == "2 NVIDIA H200; nccl 2.28.9"


def test_failures_stand_first_and_nothing_is_left_out():
    records = exchanges({PATH: ranks(), "evidence/exchange/other.json": ranks()}, "models/m")
    told = findings(records)
    assert [(one.outcome, len(one.cells), len(sources)) for one, sources in told] == [
        ("failed", 2, 2), ("not_run", 8, 2), ("passed", 2, 2)]  # fmt: skip
    assert dict(told[1][0].details)["TP"] == "4, 8" and told[2][0].bound_seconds == 2.0
    for page in render(with_layers()):
        for part in ("failed: states are off", "no reason", "no machine of as many GPUs was at hand", "3.5 / 8.8", "slower"):
            assert part in page
    assert ("latency, layers and steps between GPUs, TP 4, 8", "no machine of as many GPUs was at hand") in with_layers().untested


def test_the_gain_is_split_into_bytes_and_speed():
    outcome = layer(8, 1, 130.0, 104.0).outcome  # a ratio of 1.25, bytes of 5/4
    assert (outcome.by_bytes, outcome.by_speed) == (1.25, 1.0)
    assert outcome.model_copy(update={"stock_bytes": None}).by_speed is None
    assert all("1.25 × 1.00" in page for page in render(with_layers()))


def test_the_first_lines_tell_the_worst_too():
    data = with_layers()
    least, most = extremes(data)
    # 190/180, 130/104, 112/84 and one that failed.
    assert (round(least.outcome.comparison.ratio, 3), round(most.outcome.comparison.ratio, 3)) == (1.056, 1.333)
    first = whole(data)
    assert (first.stock.median, first.fastest.median, first.span.standing) == (26000.0, 39000.0, "slower")
    head = render(data)[0].split("## 1")[0]
    for part in ("1.06", "1.33", "**1 failed**", "**slower**: stock 26.0 ms", "(../evidence/exchange/h200-tp2.json)"):
        assert part in head
    questions = [one.question for one in asked(data)]
    assert len(questions) == 4 and "KDA + MoE layer, TP16, 8 rows" in questions[1]
    assert "gb300" in questions[2] and "h200" not in questions[2] and "slower than stock" in questions[3]
    bare = data.model_copy(update={"layers": (), "exchanges": (), "places": ()})
    assert asked(bare) == bare.decisions and extremes(bare) is None and whole(bare) is None


def test_kernels_are_told_in_their_authors_words():
    files = {"kernels/a.py": b'"""Sums rows in one launch. And more."""\n', "kernels/b.py": b'"""Twice: 3x faster."""\n',
             "kernels/c.py": b"("}  # fmt: skip
    ops = {"one": ("kernels/a.py",), "two": ("kernels/a.py", "kernels/x.py"), "b": ("kernels/b.py",), "c": ("kernels/c.py",)}
    found = kernels(files, ops, (), ("kernels/a.py", "kernels/b.py", "kernels/c.py"))
    assert [(one.path, one.words) for one in found] == [
        ("kernels/a.py", "Sums rows in one launch."), ("kernels/b.py", ""), ("kernels/c.py", "")]  # fmt: skip
    assert found[0].ops == ("one", "two") and kernels(files, ops, (), ()) == ()
    called = layer(8, 1, 2.0, 1.0)
    (only,) = kernels({"kernels/kda_decode.py": b"x = 1\n"}, {"kda_decode": ("kernels/kda_decode.py",)}, (called, called), ())
    assert only.layers == 2
    assert first_sentence(b'"""A\nname\n\nB."""') == "A name"


@pytest.mark.parametrize(
    ("figure", "text"), [((136.0, 135.0, 136.4), "135 to 136"), ((1000.0, 998.0, 1002.0), "998 µs to 1.00")]
)
def test_a_spread_leaves_its_unit_to_the_median(figure, text):
    from fasttrack.report.exchange import Figure

    assert spread(Figure(median=figure[0], low=figure[1], high=figure[2])) == text
