"""RFCs answer the template's headings, are listed, and say of Kimi K3 what manifest and evidence say."""

import json
import os
import re
from pathlib import Path

import pytest
from fasttrack import model_dir

RFCS = Path(__file__).parent.parent / "rfcs"
MODEL = Path(__file__).parent.parent / "models/kimi_k3"
ALL = sorted(path for path in RFCS.glob("[0-9]*.md") if not path.name.startswith("0000"))
K3 = RFCS / "0003-kimi-k3-decode.md"
# What the lane's own rules rest on is the rest of the repository; who carries something of it asks for more.
RULES = {"Problem", "Proposal", "Drawbacks", "Alternatives"}


def headings(path: Path) -> set[str]:
    return set(re.findall(r"^## (.+)$", path.read_text("utf-8"), re.MULTILINE))


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_an_rfc_answers_the_template_and_is_listed(path):
    text, number = path.read_text("utf-8"), path.name[:4]
    assert (RULES if number < "0003" else headings(RFCS / "0000-template.md")) <= headings(path)
    title = re.match(rf"# RFC {number}: (.+)\n\nStatus: .+", text)
    assert title, "# RFC nnnn: Title, an empty line, Status: ..."
    assert f"- [{number}]({path.name}) {title[1]}" in (RFCS / "README.md").read_text("utf-8").splitlines()


def test_links_of_an_rfc_lead_somewhere():
    for path in (*ALL, RFCS / "README.md"):
        for target in re.findall(r"\]\(([^)#]+)", path.read_text("utf-8")):
            assert "://" in target or (RFCS / target).exists(), (path.name, target)


def test_dates_envelope_and_owner_are_the_manifests():
    manifest, text = model_dir.load("kimi_k3").manifest, " ".join(K3.read_text("utf-8").split())
    assert f"Owner: {manifest.model.owner}. Review by {manifest.model.review_by}:" in text
    assert f"Removal on {manifest.model.remove_by} " in text
    low, high = next(entry.rows for entry in manifest.envelope)
    assert {entry.rows for entry in manifest.envelope} == {(low, high)} and f"{low} to {high} rows a step" in text
    assert {(entry.hardware, entry.tp) for entry in manifest.envelope} == {(h, t) for h in ("h200", "gb300") for t in (8, 16)}
    assert "H200 and GB300; TP 8 and 16" in text and {entry.verify_width for entry in manifest.envelope} == {8}
    assert "1 to 8 tokens a request" in text


def table() -> str:
    """What the kept cells of the grid say, in absolute figures."""
    lines = ["| cell | rank of | rows | stock | specialised | floor | launches |", "| --- | ---: | ---: | --- | --- | ---: | --- |"]
    for path in sorted((MODEL / "evidence/grid/h200").glob("*.json")):
        cell = json.loads(path.read_text("utf-8"))
        spec, outcome = cell["spec"], cell["outcome"]
        scope, _, more = cell["scope"].partition("; ")
        assert scope == "one rank, exchange bytes local, no communication"
        assert more == ("4 sets of weights in turn over 93 layers" if spec["span"] == "step" else "")
        link = f"[{path.stem}](../{path.relative_to(MODEL.parent.parent)})"
        if outcome["kind"] != "measured":
            lines.append(f"| {link} | TP{spec['tp']} | {spec['rows']} | {outcome['kind']} | {outcome['kind']} | | |")
            continue
        times = [
            "{median:.1f} ({low:.1f} to {high:.1f})".format(**outcome[arm]["microseconds"]) for arm in ("stock", "specialised")
        ]
        launches = "{}, {}".format(*(len(outcome[arm]["kernels"]) for arm in ("stock", "specialised")))
        lines.append(
            f"| {link} | TP{spec['tp']} | {spec['rows']} | {times[0]} | {times[1]} | {outcome['target_floor_us']:.1f} | {launches} |"
        )
    return "\n".join(lines)


def test_the_figures_are_those_of_the_evidence():
    text = K3.read_text("utf-8")
    start, end = text.index("draws this table -->\n") + len("draws this table -->\n"), text.index("<!-- end -->")
    if os.environ.get("FASTTRACK_GOLDEN") == "write":
        K3.write_text(f"{text[:start]}\n{table()}\n\n{text[end:]}", "utf-8")
        return
    assert text[start:end].strip() == table(), "the evidence has changed: draw the table again, and read the text beside it"


def test_no_figure_of_speed_stands_outside_of_the_table():
    """Times and multipliers are the table's, which is drawn; the text has none of its own."""
    text = K3.read_text("utf-8")
    prose = text[: text.index("<!-- evidence/grid")] + text[text.index("<!-- end -->") :]
    assert not re.search(r"\d\s*(us|µs|ms|TB/s|GB/s|tok/s)\b|\d(\.\d+)?\s*[x×]\b", prose)
