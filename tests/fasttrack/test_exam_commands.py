"""The commands under `fasttrack exam`: output and exit codes."""

import json

import pytest
import recorded_answers as recorded

from fasttrack.cli import run
from fasttrack_validation.accuracy.family import Family

PLAN = """
exam = "sample_integers"
exam_sha256 = "{digest}"
items = 8
[rule]
margin_points = 3.0
looks = [{looks}]
"""


@pytest.fixture
def place(tmp_path):
    """A frozen exam, a plan with one look at 32 repeats, and answers by share of wrong ones."""
    assert run(["exam", "build", "sample_integers", "-o", str(tmp_path / "exam")]) == 0
    exam = recorded.exam("sample_integers")
    plan = recorded.plan(exam, 32)
    (tmp_path / "plan.toml").write_text(PLAN.format(digest=exam.digest, looks=32))
    for name, arm, wrong in (("stock", "baseline", 0), ("same", "candidate", 0), ("worse", "candidate", 40),
                             ("unsure", "candidate", 4)):  # fmt: skip
        text = recorded.sitting(exam, plan, arm, repeats=32, wrong_in_100=wrong).dump()
        (tmp_path / f"{name}.jsonl").write_text(text)
    return tmp_path


def decide(place, candidate, *more, baseline="stock"):
    return run(["exam", "decide", str(place / "exam"), "--plan", str(place / "plan.toml"), "--baseline",
                str(place / f"{baseline}.jsonl"), "--candidate", str(place / f"{candidate}.jsonl"), *more])  # fmt: skip


def test_decide_by_exit_code(place, capsys):
    capsys.readouterr()
    for candidate, verdict, code in (("same", "pass", 0), ("worse", "fail", 1), ("unsure", "inconclusive", 3)):
        assert decide(place, candidate) == code
        assert f"sample_integers: {verdict}" in capsys.readouterr().out
        assert decide(place, candidate, "--json") == code
        assert json.loads(capsys.readouterr().out)["verdict"] == verdict
    # The baseline handed in as the candidate.
    assert decide(place, "stock") == 1
    assert "arms: the file given as candidate" in capsys.readouterr().out


def test_calibrate(place, capsys):
    exam = recorded.exam("sample_integers")
    plan = recorded.plan(exam, 32)
    paths = [place / "one.jsonl", place / "two.jsonl"]
    for path, seed in zip(paths, ("one", "two"), strict=True):
        path.write_text(recorded.sitting(exam, plan, "baseline", repeats=32, wrong_in_100=20, run=seed).dump())
    common = ["exam", "calibrate", str(place / "exam"), "--plan", str(place / "plan.toml")]
    capsys.readouterr()
    assert run([*common, "--first", str(paths[0]), "--second", str(paths[1])]) == 0
    assert "the rule states at most 5%" in capsys.readouterr().out
    assert run([*common, "--first", str(paths[0]), "--second", str(paths[0])]) == 1
    assert "copies" in capsys.readouterr().out


def test_a_plan_made_after_the_fact_is_another_one(place, capsys):
    (place / "plan.toml").write_text((place / "plan.toml").read_text().replace("3.0", "30.0"))
    assert decide(place, "unsure") == 1
    assert "other_plan" in capsys.readouterr().out


def test_answers_that_cannot_be_read_name_the_line_and_quote_nothing(place, capsys):
    text = (place / "same.jsonl").read_text()
    (place / "cut.jsonl").write_text(text[:-20])
    assert decide(place, "cut") == 2
    assert "is cut off" in capsys.readouterr().err
    (place / "odd.jsonl").write_text(text.replace('"repeat":3', '"repeat":"SECRET"', 1))
    assert decide(place, "odd") == 2
    error = capsys.readouterr().err
    assert "odd.jsonl:5: repeat" in error and "SECRET" not in error


def test_verify_and_what_build_refuses(place, capsys):
    capsys.readouterr()
    assert run(["exam", "verify", str(place / "exam"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []
    assert run(["exam", "build", "sample_integers", "-o", str(place / "exam")]) == 2
    assert run(["exam", "build", "gpqa_emerald", "-o", str(place / "other")]) == 2
    assert run(["exam", "build", "mrcr_synthetic", "--needles", "two", "-o", str(place / "other")]) == 2
    assert run(["exam", "verify", str(place / "nowhere")]) == 2
    capsys.readouterr()
    (place / "exam" / "key.jsonl").write_text((place / "exam" / "key.jsonl").read_text().replace("18", "19"))
    assert run(["exam", "verify", str(place / "exam")]) == 1
    assert "file_changed" in capsys.readouterr().out
    assert decide(place, "same") == 2  # nothing is decided on a changed exam


def test_build_mrcr_and_power(place, capsys):
    out = place / "mrcr"
    capsys.readouterr()
    assert run(["exam", "build", "mrcr_synthetic", "--needles", "2,8", "--words", "1000,2000", "--items-each", "2",
                "-o", str(out), "--json"]) == 0  # fmt: skip
    assert json.loads(capsys.readouterr().out)["items"] == 2 * 2 * 2
    assert run(["exam", "verify", str(out)]) == 0
    capsys.readouterr()
    assert run(["exam", "power", str(place / "plan.toml"), "--within", "0.1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    # By the normal approximation 0.1 * 6.1826 / (8 * 0.0009) = 86 repeats; t with 7 degrees of freedom takes more.
    assert 86 < told["repeats_needed"] < 130 and 0 < told["power"]["32"] < 0.8
    assert run(["exam", "plan-digest", str(place / "plan.toml")]) == 0
    assert capsys.readouterr().out.strip() == recorded.plan(recorded.exam("sample_integers"), 32).digest()


TOGETHER = """
[family]
rule = "each"
exams = ["sample_integers", "sample_choices"]
"""


def test_a_family_is_decided_from_files(tmp_path, capsys):
    kinds, listed = ("sample_integers", "sample_choices"), []
    family = Family(exams=kinds)
    for kind in kinds:
        exam = recorded.exam(kind)
        plan = recorded.plan(exam, 32, family=family)
        assert run(["exam", "build", kind, "-o", str(tmp_path / kind)]) == 0
        text = PLAN.format(digest=exam.digest, looks=32).replace("sample_integers", kind)
        (tmp_path / f"{kind}.toml").write_text(text + "fail_tests = 2\n" + TOGETHER)
        for name, wrong in (("baseline", 0), ("candidate", 0), ("worse", 40)):
            arm = "baseline" if name == "baseline" else "candidate"
            sat = recorded.sitting(exam, plan, arm, repeats=32, wrong_in_100=wrong)
            (tmp_path / f"{kind}.{name}").write_text(sat.dump())
        listed.append(f'[[sat]]\nexam = "{kind}"\nplan = "{kind}.toml"\nbaseline = "{kind}.baseline"\n'
                      f'candidate = "{kind}.candidate"\n')  # fmt: skip
    file = tmp_path / "family.toml"
    file.write_text("".join(listed))
    capsys.readouterr()
    assert run(["exam", "decide-family", str(file)]) == 0
    assert "together (each): pass" in capsys.readouterr().out
    file.write_text("".join(listed).replace("choices.candidate", "choices.worse"))
    assert run(["exam", "decide-family", str(file), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "fail" and [one["verdict"] for one in told["results"]] == ["pass", "fail"]
    # An exam of the family left out, or handed in twice.
    for some in (listed[:1], [listed[0], listed[0]]):
        file.write_text("".join(some))
        assert run(["exam", "decide-family", str(file)]) == 2
    # Decided together by plans that say "alone".
    for kind in kinds:
        path = tmp_path / f"{kind}.toml"
        path.write_text(path.read_text().replace(TOGETHER, "").replace("fail_tests = 2", ""))
    file.write_text("".join(listed))
    assert run(["exam", "decide-family", str(file)]) == 2
    assert "same family" in capsys.readouterr().err
