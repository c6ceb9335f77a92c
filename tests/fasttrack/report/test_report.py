"""The design report: golden pages, figures that come from evidence only, hostile text, and a real browser."""

import inspect
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fasttrack.confinement.contents import Limits, check_contents
from fasttrack.report import data as d
from fasttrack.report.drawing import draw
from fasttrack.report.render import cell_lines, code, error, link, markdown, microseconds, ratio, render, visible
from fasttrack.report.prose import figure
from fasttrack.report.risks import risky_mechanisms
from fasttrack_validation import contracts
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from report_layers import HOSTILE

GOLDEN = Path(__file__).parent / "golden"


def test_what_a_contract_says_of_its_op_may_stand_in_a_report():
    """A run quotes it as the problem; a figure that is typed there would end the run after its confirmations."""
    contract = contracts.load("kimi_k3")
    for op in contract.ops:
        first = inspect.getdoc(type(contract.op(op))).splitlines()[0]
        assert figure(first) is None, (op, first)
    assert figure("in front of every norm, 187 times a step") == "187 times"


class Outline(HTMLParser):
    """Element counts, text, ids and references of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self.ids, self.refs, self.links, self.text, self.open = [], [], [], [], [], []
        self.headings = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.tags.append(tag)
        if tag not in {"meta", "br", "img", "hr"}:
            self.open.append(tag)
        self.ids += [values["id"]] if "id" in values else []
        self.refs += values.get("aria-labelledby", "").split()
        self.links += [values["href"]] if "href" in values else []
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)


@pytest.mark.parametrize("kind", ["md", "html"])
@pytest.mark.parametrize(("name", "measured"), [("no_gpu", False), ("measured", True)])
def test_golden(make_report, kind, name, measured):
    """FASTTRACK_GOLDEN=write rewrites the pages; read them in a browser before committing."""
    page = dict(zip(("md", "html"), render(make_report(measured_cells=measured)), strict=True))[kind]
    path = GOLDEN / f"{name}.{kind}"
    if os.environ.get("FASTTRACK_GOLDEN") == "write":
        path.write_text(page, "utf-8")
    assert page == path.read_text("utf-8")


def test_notes_of_the_scan_are_quoted_as_data(report):
    from fasttrack_validation.judge.verdict import Note

    note = Note(file="kernels/k.py", line=3, what="addresses a reviewer or a model", text=HOSTILE.replace("\n", " "))
    op = report.ops[0]
    predicate = op.statement.predicate
    predicate = predicate.model_copy(update={"verdict": op.verdict.model_copy(update={"notes": (note,)})})
    statement = op.statement.model_copy(update={"predicate": predicate})
    noted = report.model_copy(update={"ops": (op.model_copy(update={"statement": statement}), *report.ops[1:])})
    text, page = render(noted)
    assert "`kernels/k.py:3` addresses a reviewer or a model: " in text and "they decide nothing" in text
    outline = Outline(page)
    assert outline.open == [] and "img" not in outline.tags and "kernels/k.py:3" in outline.text
    assert "they decide nothing" not in "".join(render(report))


def test_page_is_well_formed_and_accessible(report):
    page = Outline(render(report)[1])
    assert page.open == []
    assert len(set(page.ids)) == len(page.ids)
    assert set(page.refs) <= set(page.ids)
    assert {one[1:] for one in page.links if one.startswith("#")} <= set(page.ids)
    assert page.headings[0] == 1 and page.headings.count(1) == 1
    assert all(later - earlier <= 1 for earlier, later in zip(page.headings, page.headings[1:], strict=False))
    for landmark in ("header", "nav", "main", "footer"):
        assert page.tags.count(landmark) == 1
    assert page.tags.count("caption") == page.tags.count("table") > 5
    assert page.tags.count("title") == 2 and page.tags.count("desc") == page.tags.count("svg") == 1


def test_page_loads_nothing_and_passes_the_lanes_own_rules(report):
    text, page = render(report)
    assert list(check_contents("report/design.html", page.encode(), Limits())) == []
    assert list(check_contents("report/design.md", text.encode(), Limits())) == []
    assert "://" not in page.replace("http://www.w3.org/2000/svg", "") and "@import" not in page
    assert "prefers-color-scheme: dark" in page and "@media print" in page


def test_hostile_text_stays_text(make_report):
    calm, hostile = (Outline(render(make_report(message))[1]) for message in ("x", HOSTILE))
    assert hostile.tags.count("script") == hostile.tags.count("img") == 0
    assert hostile.links == calm.links and hostile.ids == calm.ids and hostile.open == []
    assert "<script>alert(1)</script>" in "".join(hostile.text)
    text, page = render(make_report(HOSTILE))
    for name, rendered in (("report/x.html", page), ("report/x.md", text)):
        assert list(check_contents(name, rendered.encode(), Limits())) == []
    plain = render(make_report("x"))[0]
    assert text.count("\n") == plain.count("\n") and "@everyone" not in text and "https://" not in text
    assert [line for line in text.split("\n") if line.startswith("#")] == [
        line for line in plain.split("\n") if line.startswith("#")
    ]


@given(st.text(max_size=60))
def test_markdown_and_code_keep_one_line_and_one_cell(value):
    for rendered in (markdown(value), code(value)):
        assert "\n" not in rendered and not re.search(r"(?<!\\)\|", rendered.replace("\\\\", ""))
    assert "<" not in markdown(value) and "@" not in markdown(value)
    assert not any(character in visible(value) for character in "\u202e\u200b\x1b")


def test_no_figure_without_its_mark(report):
    text, page = render(report)
    for rendered in (text, page):
        for found in re.finditer(r"7\.43", rendered):
            assert rendered[: found.start()].endswith("modelled ")
        assert "×" not in re.sub(r"\d+ × \d+( × \d+)?", "", rendered)  # grids only: no multiplier
    assert page.count("not measured: no GPU on this machine") == 2
    assert page.count("not measured: no evidence speaks about it") == 14


def test_a_multiplier_needs_two_measurements(make_report):
    text, _ = render(make_report(measured_cells=True))
    # 12/8 = 1.5; bounds 12*0.99/(8*1.01) and 12*1.01/(8*0.99)
    assert "8.00 µs (7.92 µs to 8.08 µs); stock 12.0 µs; 1.50× (1.47 to 1.53)" in text
    assert "no multiplier: stock path not measured: fla-core is not installed" in text
    assert text.count("×") - text.count(" × ") == 1


def test_every_cell_is_there(report):
    (op,) = report.ops
    assert len(report.cells(op)) == 2 * 2 * 4 and report.cell_count == 32 and report.measured == 0
    assert {kind for cell in report.cells(op) for kind, _ in cell_lines(cell)} == {"missing", "modelled"}


def test_untested_is_generated(report):
    assert dict(report.untested) == {
        "kda_decode: speed in 2 of 16 cells": "no GPU on this machine",
        "kda_decode: speed in 14 of 16 cells": "no evidence speaks about it",
        "kda_decode: C19, compute-sanitizer": "no GPU on this machine",
        "front_gemm: everything": "no statement of the judge",
        "exam AIME25": "needs a server of the full model",
        "exam GPQA-Diamond": "needs a server of the full model",
    }


def test_worst_workload_is_shown(report):
    shown = {e.tensor: workload for workload, e in report.ops[0].worst_errors}
    assert shown == {"out": "tp8-b4", "state": "tp8-b1"}


@pytest.mark.parametrize(
    "text", ["1.8x faster", "saves 12 %", "in 7.4 µs", "7us", "two 3-fold", "40 GB", "1,200 tok/s", "2×"]
)
def test_typed_figures_are_refused(report, text):
    for change in ({"problem": text}, {"decisions": [{"question": text, "source": "x"}]}):
        with pytest.raises(ValidationError, match="figures are rendered from evidence"):
            d.ReportData.model_validate(report.model_dump(by_alias=True) | change)
    d.ReportData.model_validate(report.model_dump(by_alias=True) | {"problem": "sm_103, bf16, TP8 and 93 layers"})


def test_data_must_be_about_the_model(report):
    with pytest.raises(ValidationError, match="not a judge's statement about alpha"):
        d.ReportData.model_validate(report.model_dump(by_alias=True) | {"model": "alpha"})
    with pytest.raises(ValidationError, match="reported twice"):
        d.ReportData.model_validate(
            report.model_dump(by_alias=True) | {"ops": [report.ops[0].model_dump(by_alias=True)] * 2}
        )


def test_number_formats():
    assert [microseconds(value) for value in (0.1234, 7.43, 8.0, 123.4, 999.6, 12345.6)] == [
        "0.123 µs",
        "7.43 µs",
        "8.00 µs",
        "123 µs",
        "1,000 µs",
        "12,346 µs",
    ]
    assert [ratio(1.0, 2.0), ratio(0.0, 0.0), ratio(1.0, 0.0)] == ["0.50", "both exact", "plain path exact"]
    assert [error(0.0), error(0.00123)] == ["0", "1.2e-03"]
    assert link('evidence/a b"c.json') == "../evidence/a%20b%22c.json"


def test_drawing_follows_streams_and_buffers(report):
    drawing = draw(report.ops[0].plan)
    assert [box.number for box in drawing.boxes if box.prefetch] == [2]
    assert [lane.stream for lane in drawing.lanes] == ["main", "side"]
    start = {box.number: box.x for box in drawing.boxes}
    joined = sorted((x2, x1) for x1, _, x2, _ in drawing.edges)
    # 1->3 and 3->4 in stream order; 2->4 through the buffer `w`
    assert joined == sorted([(start[3], start[1] + 148), (start[4], start[3] + 148), (start[4], start[2] + 148)])
    assert drawing.description.startswith("1: short_conv, grid 12 × 4 × 1, stream main, compute; 2: warm_l2")


def test_risks_are_found_by_reading(report):
    source = (
        b"import triton.language as tl\n# tl.atomic_add is not used here\n"
        b"tl.atomic_add(p, 1)\nwhile tl.atomic_cas(lock, 0, 1) == 1:\n    pass\nn = tl.num_programs(0)\n"
    )
    found = {(risk.mechanism, risk.where) for risk in risky_mechanisms({"kernels/k.py": source}, [])}
    assert found == {
        ("atomics", "kernels/k.py, line 3, 4"),
        ("cross-block wait", "kernels/k.py, line 4"),
        ("persistent kernel", "kernels/k.py, line 6"),
    }
    assert risky_mechanisms({"kernels/k.py": b"import triton\n"}, []) == ()
    assert {risk.mechanism for risk in risky_mechanisms({}, [report.ops[0].plan])} == {
        "several streams",
        "prefetch launch",
        "early programmatic launch",
    }
