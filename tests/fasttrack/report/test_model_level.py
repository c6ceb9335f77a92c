"""Exams and errors over positions, as a report reads and shows them."""

import json

import pytest
from fasttrack.confinement.contents import Limits, check_contents
from fasttrack.pull_request import leave_draft_blockers
from fasttrack.report.model_level import charts, exam_results, rung_results, servers_results
from fasttrack.report.render import render
from fasttrack_validation.errors import UserError
from report_layers import reports

RESULT = {"verdict": "pass", "paired": {"items": 198, "repeats": 6, "difference": -0.012, "se": 0.008, "clusters": 198},
          "decision": {"lower": -0.0252, "minimum_detectable_loss": 0.03}, "truncated": [0.01, 0.02]}  # fmt: skip
ACCURACY = {"format": "fasttrack.accuracy/1", "outcome": {"exams": [
    {"plan": {"exam": "GPQA-Diamond", "rule": {"margin_points": 3.0}}, "result": RESULT}]}}  # fmt: skip


def spread(path: str, band: str, p999: float) -> dict:
    return {"metric": "log_prob", "band": band, "path": path, "values": 1000, "median": p999 / 10, "p999": p999, "maximum": p999 * 2}


RUNGS = {"rungs": [{"rung": "teacher_forced", "tp": 8, "result": "pass", "tokens": 4096, "spreads": [
    spread("candidate", "0-1k", 1e-3), spread("candidate", "1k-8k", 1e-2), spread("noise", "0-1k", 1e-3), spread("noise", "1k-8k", 1e-3)]}]}  # fmt: skip
FILES = {"evidence/accuracy/gpqa.json": json.dumps(ACCURACY).encode(), "evidence/numerics/tp8.json": json.dumps(RUNGS).encode()}


def data():
    return reports().make().model_copy(update={"sat": exam_results(FILES), "rungs": rung_results(FILES)})


def test_exams_are_told_in_points():
    (one,) = exam_results(FILES)
    # -0.012 / 0.008 = -1.5
    assert one.standing == ("d -1.20 points, SE 0.80, d/SE -1.50; lower bound -2.52, margin 3.00, detectable loss 3.00; "
                            "198 items, 6 repeats")  # fmt: skip
    text, page = render(data())
    for shown in (text, page):
        assert "198 items, 6 repeats" in shown and "1 pass" in shown
    assert "GPQA-Diamond: not run" not in text and "AIME25: not run" in text


def test_an_exam_that_did_not_pass_keeps_it_a_draft():
    failed = json.dumps(ACCURACY).replace('"pass"', '"inconclusive"').encode()
    held = data().model_copy(update={"sat": exam_results({"evidence/accuracy/gpqa.json": failed})})
    assert "exam GPQA-Diamond: inconclusive" in leave_draft_blockers(held, None, head="f" * 40)


def test_the_chart_is_logarithmic():
    (chart,) = charts(rung_results(FILES))
    (_, mine), (_, noise) = chart.lines
    # p99.9 from 1e-3 to 1e-2: the whole height of the plot.
    assert mine[0].y - mine[1].y == 110 and noise[0].y == noise[1].y == mine[0].y
    assert "candidate: 0-1k 1.0e-03, 1k-8k 1.0e-02" in chart.description
    assert charts(()) == ()


def test_words_beside_lines_that_end_together_can_all_be_read():
    paths = ["candidate", "stock", "again-1", "again-2", "again-3"]
    for last in (1e-3, 1e-2):
        rung = RUNGS["rungs"][0] | {"spreads": [
            spread(path, band, p999) for path in paths for band, p999 in (("0-1k", 1e-2 + 1e-3 - last), ("1k-8k", last))]}  # fmt: skip
        (chart,) = charts(rung_results({"evidence/numerics/a.json": json.dumps({"rungs": [rung]}).encode()}))
        heights = sorted(label.y for label in chart.labels)
        assert all(lower - upper >= 12 for upper, lower in zip(heights, heights[1:], strict=False))
        assert 14 <= heights[0] and heights[-1] <= 14 + 110 + 12
        assert [label.value for label in chart.labels] == [last] * 5


def test_flips_and_the_first_thing_that_is_not_right_are_told():
    flips = {"tokens": 104, "flips": {"candidate": 3, "stock": 2, "again-1": 4}, "ties": 2, "bugs": 1, "margin_limit": 5.0}
    first = {"unit": "teacher_forced-tp8-stream", "layer": 4, "position": 57, "request": 0, "pool": "recurrent_state"}
    rung = RUNGS["rungs"][0] | {"result": "fail", "flips": flips, "first": first, "text": "router of layer 4: 9 <times> the noise"}
    told = rung_results({"evidence/numerics/a.json": json.dumps({"rungs": [rung]}).encode()})
    said = ("top-1 flips: candidate 3 (2 ties, 1 bugs), stock path 2; first out: layer 4, position 57, recurrent_state, "
            "teacher_forced-tp8-stream: router of layer 4: 9 <times> the noise")  # fmt: skip
    assert told[0].standing == said
    text, page = render(data().model_copy(update={"rungs": told}))
    assert "candidate 3 (2 ties, 1 bugs)" in text and "candidate 3 (2 ties, 1 bugs)" in page
    assert "9 &lt;times&gt; the noise" in page and "<times>" not in page
    assert rung_results(FILES)[0].standing == ""


def test_the_page_stays_within_the_rules_of_the_lane():
    text, page = render(data())
    assert list(check_contents("report/design.html", page.encode(), Limits())) == []
    assert "Error against position" in page and "teacher" in text


def test_servers_of_a_kit_are_told_with_their_noise_and_flips():
    kept = reports().servers()
    files = {reports().KIT: json.dumps(kept).encode(), "evidence/kits/gb300-1/numerics/other.json": b"{}"}
    (one,) = servers_results(files)
    assert (one.kit, one.result) == ("gb300-25539c8aaaaa", "inconclusive")
    assert one.standing == ("131072 tokens against stock; noise: again; top-1 flips: candidate 40, again 37, of the candidate's "
                            "39 ties and 1 bugs")  # fmt: skip
    made = reports().make()
    for shown in render(made.model_copy(update={"servers": (one,)})):
        assert "gb300-25539c8aaaaa" in shown and "40, again 37" in shown and "1.1e-02" in shown
    for shown in render(made):
        assert "Server against server" not in shown
    assert made.evidence_digest != made.model_copy(update={"servers": (one,)}).evidence_digest


@pytest.mark.parametrize(
    "path", ["evidence/accuracy/x.json", "evidence/numerics/x.json", "evidence/kits/gb300-1/numerics/verdict.json"]
)
@pytest.mark.parametrize("data", [b"{}", b"[]", b"no", b"[" * 9000])
def test_what_is_no_record_is_an_error(path, data):
    with pytest.raises(UserError, match="is no record of stage"):
        exam_results({path: data}), rung_results({path: data}), servers_results({path: data})
