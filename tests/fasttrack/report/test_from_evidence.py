"""The pages are a function of the files: rendered again they are the same, and an edit by hand is found."""

import json
import re
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
from fasttrack.report import fresh, record
from fasttrack.report.charts import envelope_map, readable, shortened, timeline, timelines
from fasttrack.report.data import Provenance
from fasttrack.report.layers import layers
from fasttrack.report.page import report_data
from fasttrack.report.render import render
from fasttrack.stages import StageStatus
from fasttrack_validation.errors import UserError
from fasttrack_validation.records import digest_files
from report_layers import layer, ranks, reports, with_layers

STATEMENT = "evidence/statements/kda_decode.judge.json"
CELL = "evidence/grid/h200/tp8-kda_moe-r1.json"
RANKS = "evidence/exchange/h200-tp2.json"
DECODE = {"decode.py": b"A = 1\n"}


def manifest() -> SimpleNamespace:
    model = SimpleNamespace(name="kimi_k3", title="Kimi K3", contract="kimi_k3", owner="the maintainers",
                            review_by="2101-01-01", remove_by="2102-01-01")  # fmt: skip
    place = SimpleNamespace(hardware="h200", tp=8, rows=(1, 16), verify_width=1, dtypes=("bf16",))
    ops = {name: SimpleNamespace(kernels=(f"kernels/{name}.py",)) for name in ("kda_decode", "front")}
    return SimpleNamespace(model=model, ops=ops, envelope=(place,), decode=SimpleNamespace(sources=tuple(DECODE)))


def cell(stock: float = 130.0, decode: dict = DECODE) -> bytes:
    made = layer(8, 1, stock, 104.0)
    value = {name: getattr(made, name).model_dump(mode="json") for name in ("spec", "outcome")}
    return json.dumps(value | {"hardware": "h200", "scope": made.scope, "subject": {"decode": digest_files(decode)}}).encode()


def told(**change) -> record.DesignRecord:
    who = Provenance(agent="search", seed=7, rounds=3, base_commit="2" * 40, author="Ada <ada@example.org>",
                     fallback_identity=False, source="evidence/archive/kda_decode.json")  # fmt: skip
    touched = (record.Touched(path="kernels/kda_decode.py", status="M"), record.Touched(path=CELL, status="A"))
    return record.DesignRecord(**{
        "model": "kimi_k3", "problem": "Launches cost more than bytes.", "switch_off": "decode_backend: stock",
        "ops": (record.RecordedOp(op="kda_decode"),), "touched": touched, "provenance": who} | change)  # fmt: skip


ARCHIVE = {"candidates": [{"candidate": "a" * 64, "config": {"warps": 4}, "round": 0, "status": "rejected", "reason": "C1",
                           "message": "off", "note": "", "picked": False}]}  # fmt: skip


def directory(**change: bytes | None) -> dict[str, bytes]:
    """A model directory with a rendered report. `change` maps paths, "/" written "__", to other contents."""
    statement = reports().make().ops[0].statement.canonical_json().encode()
    files = DECODE | {
        "kernels/kda_decode.py": b"import triton\nx = tl.atomic_add(p, 1)\n", STATEMENT: statement, CELL: cell(), RANKS: ranks(),
        "evidence/archive/kda_decode.json": json.dumps(ARCHIVE).encode(), record.DESIGN: told().text().encode(),
    }  # fmt: skip
    text, page = render(report_data(files, manifest()))
    return files | {record.MARKDOWN: text.encode(), record.PAGE: page.encode()}


CHANGED = ("kernels/kda_decode.py", CELL, record.MARKDOWN, f"{STATEMENT}.sig")


def ids(files, changed=CHANGED) -> list[str]:
    return [one.id for one in fresh.stage(files, manifest(), "models/kimi_k3", changed).reasons]


def test_what_was_rendered_is_up_to_date():
    answer = fresh.stage(directory(), manifest(), "models/kimi_k3", CHANGED)
    assert (answer.status, answer.reasons) == (StageStatus.PASS, ())


def test_a_number_edited_by_hand_is_found_by_line():
    files = directory()
    text = files[record.MARKDOWN].decode()
    assert "130 µs" in text
    (reason,) = fresh.stage(files | {record.MARKDOWN: text.replace("130 µs", "150 µs", 1).encode()}, manifest(),
                            "models/kimi_k3", CHANGED).reasons  # fmt: skip
    lines = text.splitlines()
    assert reason.id == "report.edited" and "150" in reason.message
    assert reason.line == next(n for n, line in enumerate(lines, 1) if "130 µs" in line)


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("report.edited", {record.PAGE: b"<p>fast</p>\n"}),
        ("report.edited", {record.PAGE: None}),
        ("report.edited", {CELL: cell(140.0)}),
        ("report.edited", {"report/owner.md": b"I read it.\n"}),
        ("report.edited", {"decode.py": b"A = 2\n"}),
        ("report.unreadable", {record.DESIGN: None}),
        ("report.unreadable", {record.DESIGN: b"{}"}),
        ("report.unreadable", {record.DESIGN: told(model="beta").text().encode()}),
        ("report.unreadable", {STATEMENT: None}),
        ("report.edited", {RANKS: ranks("another reason")}),
        ("report.unreadable", {RANKS: b"{}"}),
        ("report.unreadable", {CELL: b"[]"}),
        ("report.unreadable", {"evidence/archive/kda_decode.json": b'{"candidates": [1]}'}),
    ],
)
def test_what_evidence_no_longer_gives(reason, change):
    files = {name: data for name, data in (directory() | change).items() if data is not None}
    assert reason in ids(files)


def test_the_list_of_touched_files_is_that_of_the_change():
    assert ids(directory(), [*CHANGED, "kernels/other.py"]) == ["report.touched"]
    assert ids(directory(), ["kernels/kda_decode.py"]) == ["report.touched"]


def test_without_a_report_nothing_ran_and_dropping_one_fails():
    assert fresh.stage({}, manifest(), "d").status is StageStatus.NOT_RUN
    assert [one.id for one in fresh.stage({}, manifest(), "d", (), directory()).reasons] == ["report.dropped"]


def test_words_of_the_record_bring_no_figures():
    with pytest.raises(UserError, match="figures are rendered from evidence"):
        record.read(told().text().replace("cost more", "cost 3x more").encode(), record.DESIGN)


def test_figures_about_other_sources_are_not_shown():
    (fresh_one,), (stale,) = (layers({CELL: cell(), "decode.py": text}, DECODE) for text in (b"A = 1\n", b"A = 2\n"))
    assert fresh_one.measured and not stale.measured and "other sources (decode)" in stale.outcome.reason
    (named,) = layers({CELL: cell()} | DECODE, DECODE, {CELL: "kernels"})
    assert named.outcome.reason.endswith("(kernels)")
    value = json.loads(cell()) | {"outcome": {"kind": "failed", "reason": "wrong result"}}
    for text, told in ((b"A = 1\n", "wrong result"), (b"A = 2\n", "wrong result; that was with other sources (decode)")):
        (failed,) = layers({CELL: json.dumps(value).encode(), "decode.py": text}, DECODE)
        assert (failed.outcome.kind, failed.outcome.reason) == ("failed", told)


class Linked(HTMLParser):
    """Blocks of a page (a table's row with its caption, a list's entry, a paragraph), with text and links."""

    BLOCKS = {"tr", "dd", "p", "li", "figure", "caption"}

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found, self.open, self.tables, self.skip = [], [], [], 0
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag in ("style", "nav", "svg", "header", "footer"):
            self.skip += 1
        if tag == "table":
            self.tables.append(False)
        if tag in self.BLOCKS:
            self.open.append([tag, "", False, len(self.tables)])
        if tag == "a" and not dict(attrs).get("href", "#").startswith("#"):
            for block in self.open:
                block[2] = True
            if self.open and self.open[-1][0] == "caption":
                self.tables[-1] = True

    def handle_endtag(self, tag):
        if tag in ("style", "nav", "svg", "header", "footer"):
            self.skip -= 1
        if tag in self.BLOCKS and self.open:
            block = self.open.pop()
            self.found.append((block[1], block[2] or bool(block[3] and self.tables[-1])))
        if tag == "table":
            self.tables.pop()

    def handle_data(self, data):
        if not self.skip:
            for block in self.open:
                block[1] += data


FIGURE = re.compile(r"(?<!p)(?<!\d)\d[\d.,\u202f]*\s*(µs|×|e-\d\d|bytes)|(?<!p)(?<!\d)\d+\.\d")


@pytest.mark.parametrize("data", [with_layers, lambda: report_data(directory(), manifest())])
def test_every_figure_stands_beside_a_link_to_its_file(data):
    figures = [(text, linked) for text, linked in Linked(render(data())[1]).found if FIGURE.search(text)]
    assert len(figures) > 5
    assert [text for text, linked in figures if not linked] == []


def test_links_lead_to_files_of_the_directory():
    files = directory()
    for page in (files[record.PAGE].decode(), files[record.MARKDOWN].decode()):
        for target in re.findall(r'(?:href="|\]\()\.\./([^"#)]+)', page):
            assert target in files or target == "fasttrack.toml" or any(name.startswith(f"{target}/") for name in files)


def test_a_timeline_is_to_scale():
    drawn = timeline(layer(8, 1, 120.0, 60.0))
    stock, mine = drawn.bars
    lengths = [sum(tick.width for tick in bar.ticks) for bar in (stock, mine)]
    assert lengths[1] == pytest.approx(lengths[0] / 2, abs=0.5)
    # The floor of the fixture is half of the specialised path's time: a quarter of the longest bar.
    assert drawn.floor_x == pytest.approx(stock.ticks[0].x + lengths[0] / 4, abs=0.5)
    assert "stock: 120.0 µs, 5 launches" in drawn.description and "target floor: 30.0 µs" in drawn.description
    assert len(timelines(with_layers())) == 1


def test_the_envelope_tells_measured_from_claimed_from_outside():
    found = envelope_map(report_data(directory(), manifest()))
    assert found.rows == (1, 2, 4, 8, 16)
    ((name, spots),) = found.places
    assert name == "h200, TP8" and [spot.state for spot in spots] == ["measured", *["missing"] * 4]
    assert envelope_map(with_layers()).places[1][1][3].text == "1 failed"


def test_kernel_names_are_readable():
    assert readable("_ZN8cublasLt19splitKreduce_kernelILi32EEvPf") == "cublasLt::splitKreduce_kernel"
    assert readable("_Zweird") == "_Zweird" and readable("_fused") == "_fused"
    assert shortened(["a", "b", "b", "b", "a"]) == "a, b (3 in turn), a"


@pytest.mark.parametrize("name", ["report/summary.html", "report/extra.md", "report/deep/er.html", "report/design.html.old"])
def test_another_page_beside_the_report_is_no_page_of_evidence(name):
    """It would be read as one of the report's, be held against nothing, and stand in no list of touched files."""
    page = {name: b"<p>It is 5x faster than stock.</p>\n"}
    assert ids(directory() | page) == ["report.other"] and ids(page) == ["report.other"]
    assert ids(directory() | {"report/owner.md": b"I answer for it.\n"}) != ["report.other"]
    # What stood there at the base is no reason against the change.
    before = directory() | page
    assert fresh.stage(before, manifest(), "models/kimi_k3", CHANGED, before).status is StageStatus.PASS
