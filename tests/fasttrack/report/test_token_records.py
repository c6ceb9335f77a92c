"""Tokens as a report draws them: read from the records beside a verdict, thinned, and told where they are missing."""

import gzip
import hashlib
import json
import re
from pathlib import Path

import kept_tokens
import pytest
from fasttrack.confinement.contents import Limits, check_contents
from fasttrack.report import token_records
from fasttrack.report.model_level import charts, rung_results
from fasttrack.report.render import render
from fasttrack.report.token_charts import token_charts
from fasttrack.report.token_records import COLUMNS, DOTS, GAP, traced
from kept_tokens import SOURCE, kept
from report_layers import HOSTILE, reports

MODEL = Path(__file__).parents[3] / "models" / "kimi_k3"
UNIT = f"{SOURCE.removesuffix('.json')}/unit-0.jsonl.gz"


def one(*units, **more):
    (found,) = traced(kept(units or [kept_tokens.unit()], **more))
    return found


def shown(*found):
    return render(reports().make().model_copy(update={"traced": found}))


def test_every_token_is_there_where_there_are_few():
    found = one(kept_tokens.unit(24, moved=100))
    (trace,) = found.traces
    assert (trace.rung, trace.tp, trace.tokens, found.fault) == ("teacher_forced", 1, 24, "")
    assert [column.first for column in trace.columns] == [*range(16), *range(116, 124)]
    assert [column.first for column in trace.columns if column.behind_gap] == [116]
    assert len(trace.dots) == 24 and [dot.flips for dot in trace.dots].count(True) == 1
    assert all(len(column.ratios) == 4 and column.low <= column.high for column in trace.columns)
    assert found.worst[0].position == 3 and len(found.worst) == 5


def test_tokens_that_the_stock_path_ran_are_not_drawn():
    """The first ten of twenty-four, the one that flips among them."""
    unit = kept_tokens.unit(24)
    steps = [
        step.model_copy(update={"tokens": tuple(token.model_copy(update={"ran": "stock"}) for token in step.tokens)})
        if step.action < 10 else step for step in unit.steps
    ]  # fmt: skip
    found = one(unit.model_copy(update={"steps": tuple(steps)}))
    (trace,) = found.traces
    assert trace.tokens == 14 and trace.columns[0].first == 10 and not any(dot.flips for dot in trace.dots)
    assert min(worst.position for worst in found.worst) >= 10
    nobodys = [step.model_copy(update={"tokens": steps[0].tokens}) for step in unit.steps[:5]]
    assert one(unit.model_copy(update={"steps": tuple(nobodys)})).traces == ()


def test_many_are_thinned_by_a_rule_that_is_told():
    (trace,) = one(kept_tokens.unit(400)).traces
    # 400 positions, 7 in a column: 58. Of the tokens five flip; of 395 others every third is drawn: 132.
    assert len(trace.columns) == 58 <= COLUMNS and {c.last - c.first for c in trace.columns} == {6, 0}
    assert [dot.flips for dot in trace.dots] == [True] * 5 + [False] * 132 and 132 <= DOTS
    position, flips, layers = token_charts(trace)
    assert "up to 7 neighbouring positions in one column, of which the largest counts" in position.caption
    assert "up to 7 neighbouring positions" in layers.caption
    assert "of 395 tokens that do not flip 132 are drawn" in flips.caption


def test_no_column_and_no_band_lies_across_a_gap():
    for moved, broken in ((GAP, False), (GAP + 1, True)):
        (trace,) = one(kept_tokens.unit(400, moved=moved)).traces
        assert any(column.behind_gap for column in trace.columns) == broken
        position, _, layers = token_charts(trace)
        for figure in (position, layers):
            gap = next(path.d for path in figure.paths if path.kind == "gap")
            assert bool(gap) == broken == ("dashed line is a gap of more than 16 positions" in figure.caption)
    # The column of the gap stays empty.
    edges = sorted(float(x) for x in re.findall(r"M([\d.]+) ", position.paths[0].d))
    steps = [right - left for left, right in zip(edges, edges[1:], strict=False)]
    assert sum(step > 1.5 * min(steps) for step in steps) == 1


def test_the_drawings_are_to_scale():
    (trace,) = one().traces
    position, flips, layers = token_charts(trace)
    assert [mark.text for mark in position.up] == sorted((mark.text for mark in position.up), key=float)
    high, low = position.up[-1].at, position.up[0].at
    assert (high, low) == (8, 128)  # the plot's edges
    # Token 3 is the largest change, and stands highest; its ring lies where its dot does.
    dots = [tuple(map(float, dot)) for dot in re.findall(r"M([\d.]+) ([\d.]+)h0", position.paths[2].d)]
    assert min(dots, key=lambda dot: dot[1]) == dots[3]
    (ring,) = flips.rings
    assert f"M{ring[0]:g} {ring[1]:g}h0" in flips.paths[2].d
    assert "1 of 24 tokens flip, 1 of them above the line, 0 on it" in flips.description
    assert [mark.text for mark in layers.up] == [f"layer {n}" for n in range(4)]
    assert "error is as large as the margin" in flips.caption and "third token" in flips.caption


def test_every_path_is_styled():
    """Without a rule of its own a path is filled with black."""
    found = one(kept_tokens.unit(24, moved=100))
    page = shown(found)[1]
    kinds = {path.kind.split()[0] for figure in token_charts(found.traces[0]) for path in figure.paths}
    assert kinds == {"band", "dots", "noise", "line", "gap", "edge", "heat"}
    for kind in kinds:
        assert re.search(rf"svg \.{kind}\b[^}}]*fill:", page), kind


def test_shades_begin_where_it_is_told():
    from fasttrack_validation.numerics.whole_model.tokens import CANDIDATE, STOCK

    unit = kept_tokens.unit(5)
    steps = []
    for step, times in zip(unit.steps, (0.9, 1.5, 3, 9, 20), strict=True):
        token = step.tokens[0]
        streams = dict.fromkeys(token.streams, token.streams[STOCK])
        streams[CANDIDATE] = tuple(times * value for value in token.streams[STOCK])
        steps.append(step.model_copy(update={"tokens": (token.model_copy(update={"streams": streams}),)}))
    (trace,) = one(unit.model_copy(update={"steps": tuple(steps)})).traces
    cells = {path.kind: path.d.count("M") for path in token_charts(trace)[2].paths if path.kind.startswith("heat")}
    assert cells == {"heat h1": 4, "heat h2": 4, "heat h4": 4, "heat h5": 4}


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda files: files.pop(UNIT), "unit-0.jsonl.gz is missing: no token is drawn"),
        (lambda files: files.update({UNIT: b"no"}), "unit-0.jsonl.gz is not what the verdict names"),
        (lambda files: files.update({SOURCE: b'{"rungs": []}'}), "names no records of tokens"),
        (lambda files: files.update({SOURCE: b'{"rungs": [], "evidence": [7]}'}), "names no records of tokens"),
    ],
)
def test_what_is_missing_is_told(spoil, says):
    files = kept([kept_tokens.unit()])
    spoil(files)
    (found,) = traced(files)
    assert says in found.fault and found.traces == found.worst == ()
    text, page = shown(found)
    assert says in page and says.split(" ", 1)[1] in text


HEAD = kept_tokens.unit(2).header.canonical_json().encode() + b"\n"


@pytest.mark.parametrize("data", [
    b"no gzip", gzip.compress(b"{}\n"), gzip.compress(b"[" * 9000 + b"\n"), gzip.compress(b""), gzip.compress(HEAD),
    gzip.compress(HEAD + b"[7]\n"), kept_tokens.packed(kept_tokens.unit())[:-40],
])  # fmt: skip
def test_what_is_damaged_is_told_and_the_others_are_drawn(data):
    """The verdict names these bytes: they are as they were kept, and no records."""
    files = kept([kept_tokens.unit()], {"other.jsonl.gz": hashlib.sha256(data).hexdigest()})
    (found,) = traced(files | {f"{SOURCE.removesuffix('.json')}/other.jsonl.gz": data})
    assert "other.jsonl.gz is damaged, or larger than records are: what follows is drawn without them" in found.fault
    assert len(found.traces) == 1 and list(found.records) == ["unit-0.jsonl.gz"]


def test_records_that_unpack_to_more_than_a_machine_holds_are_damaged(monkeypatch):
    unit = kept_tokens.unit()
    size = len(gzip.decompress(kept_tokens.packed(unit)))
    for room, drawn in ((1000, []), (size + 1000, ["unit-0.jsonl.gz"]), (2 * size + 1, ["unit-0.jsonl.gz", "unit-1.jsonl.gz"])):
        monkeypatch.setattr(token_records, "_MOST", room)
        found = one(unit, unit)
        assert list(found.records) == drawn and ("larger than records are" in found.fault) == (len(drawn) < 2)


def test_numbers_that_are_none_make_no_page_that_is_none():
    unit = kept_tokens.unit(4)
    token = unit.steps[2].tokens[0]
    token = token.model_copy(update={"streams": token.streams | {"candidate": (12345.5, 1e300, 0.0, 1.0)}})
    steps = [*unit.steps[:2], unit.steps[2].model_copy(update={"tokens": (token,)}), *unit.steps[3:]]
    lines = gzip.decompress(kept_tokens.packed(unit.model_copy(update={"steps": tuple(steps)})))
    for number in (b"Infinity", b"NaN", b"-1"):
        data = gzip.compress(lines.replace(b"12345.5", number))
        (found,) = traced({UNIT: data, SOURCE: json.dumps({"evidence": {"unit-0.jsonl.gz": hashlib.sha256(data).hexdigest()}}).encode()})
        assert not re.search(r"(?i)\b(nan|inf)\b", shown(found)[1]) and len(found.traces) == 1


def test_the_digest_of_the_page_is_about_the_records():
    digests = {reports().make().model_copy(update={"traced": (one(kept_tokens.unit(5, seed=seed)),)}).evidence_digest
               for seed in (0, 1)}  # fmt: skip
    assert len(digests) == 2


def test_hostile_records_bring_no_markup():
    text, page = shown(one(kept_tokens.unit(message=HOSTILE)))
    assert "<script>" not in page + text and "<img" not in page + text
    assert list(check_contents("report/design.html", page.encode(), Limits())) == []


def test_the_long_rung_is_told_by_what_it_is():
    def spread(metric, band):
        return {"metric": metric, "band": band, "path": "stock", "values": 8, "median": 1e-3, "p999": 2e-3, "maximum": 2e-3}

    spreads = [spread("state", "1 step"), spread("state", "10 steps"), spread("context", "0-1k"), spread("context", "1k-8k")]
    rung = {"rung": "long_context", "tp": 48, "result": "pass", "tokens": 10, "spreads": spreads}
    rungs = rung_results({SOURCE: json.dumps({"rungs": [rung]}).encode()})
    assert [(chart.metric, chart.by) for chart in charts(rungs)] == [
        ("state", "decade of decode steps"), ("context", "attended position")]  # fmt: skip
    text, page = render(reports().make().model_copy(update={"rungs": rungs}))
    assert "p99.9 of state by decade of decode steps, long_context" in page
    assert "p99.9 of context by attended position, long_context" in page
    for told in (text, page):
        assert "state and output by decode steps done, context by the attended position" in told


def test_the_kept_records_of_this_repository_are_drawn():
    files = {path.relative_to(MODEL).as_posix(): path.read_bytes() for path in (MODEL / "evidence/numerics").rglob("*.*")}
    found = traced(files)
    assert [run.name for run in found] == ["cpu", "h200-layers", "h200"] and not any(run.fault for run in found)
    assert all(run.traces[0].rung == "teacher_forced" and len(run.worst) == 5 for run in found)
    page = shown(*found)[1]
    assert len(page) < 300_000 and page.count("<figure") >= 3 * sum(len(run.traces) for run in found)
