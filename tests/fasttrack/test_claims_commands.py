"""The commands under `fasttrack claims`: output and exit codes."""

import json
from pathlib import Path

import claim_records as records
import pytest
import result_files

from fasttrack.cli import run
from fasttrack_validation.claims import readers
from fasttrack_validation.claims.measurement import Measurement


@pytest.fixture
def files(tmp_path):
    def write(name, data):
        path = tmp_path / name
        path.write_text(data if isinstance(data, str) else json.dumps(data))
        return str(path)

    return write


def claim(name, data):
    return {**data, "id": name}


def test_check_by_exit_code(files, capsys):
    good = files("good.json", claim("good", records.simple(1.73)))
    held = files("held.json", claim("held", records.simple(hardware__driver=None)))
    bad = files("bad.json", claim("bad", records.forced_single_stream()))
    for paths, code in (([good], 0), ([good, held], 3), ([good, held, bad], 1), ([files("none.json", "[]")], 4)):
        assert run(["claims", "check", *paths]) == code
        # The other ways to print say the same.
        assert run(["claims", "check", *paths, "--json"]) == code
        assert run(["claims", "check", *paths, "--sarif"]) == code
        capsys.readouterr()
    assert run(["claims", "check", bad]) == 1
    text = capsys.readouterr().out
    assert f"FAIL {bad}:1: claim bad: fails" in text and "P3 replaced: candidate of b1: acceptance forced to 6" in text
    assert "Compare by `step_time`" in text
    assert run(["claims", "check", good, "--json", "--sarif"]) == 2
    assert run(["claims", "check", files("broken.json", "{")]) == 2


def test_check_as_data(files, capsys):
    bad = files("bad.json", claim("bad", records.twice_the_gpus()))
    assert run(["claims", "check", bad, files("t.md", "1.80x [claim:bad]"), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    (item,) = told["items"]
    assert item["metric"] == "tok_s_gpu" and round(item["rows"][0]["ratio"]["value"], 2) == 0.90
    assert round(item["suppressed"][0]["ratio"]["value"], 2) == 1.80
    assert [one["rule"] for one in told["prose"]] == ["prose.mismatch"] and told["exit_code"] == 1


def test_sarif(files, capsys):
    text = files("t.md", "# Notes\n\nDecode is 1.8x faster.\n")
    held = files("held.json", claim("held", records.simple(hardware__driver=None)))
    assert run(["claims", "check", text, held, "--sarif"]) == 1
    told = json.loads(capsys.readouterr().out)
    (sarif,) = told["runs"]
    assert told["version"] == "2.1.0"
    rules = sarif["tool"]["driver"]["rules"]
    assert {rule["id"] for rule in rules} >= {f"P{n}" for n in range(1, 21)} | {"prose.unbacked"}
    assert all(rule["help"]["markdown"] for rule in rules)
    held_result, prose = sarif["results"]
    assert (held_result["ruleId"], held_result["level"]) == ("P1", "warning")
    assert (prose["ruleId"], prose["level"]) == ("prose.unbacked", "error")
    place = prose["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == (text, 3)
    assert all(rules[one["ruleIndex"]]["id"] == one["ruleId"] for one in sarif["results"])


def test_render_and_check_agree(files, capsys):
    data = claim("good", records.simple(1.73))
    path = files("good.json", [data, claim("other", records.whole_range())])
    assert run(["claims", "render", path, "--claim", "good"]) == 0
    text = capsys.readouterr().out
    assert "1.73x (1.73 to 1.73)" in text and "other" not in text
    assert run(["claims", "check", path, files("report.md", f"# Report\n\n{text}")]) == 0
    assert run(["claims", "check", path, files("edited.md", text.replace("1.73x", "1.83x"))]) == 1
    assert run(["claims", "render", path, "--claim", "nobody"]) == 2
    assert run(["claims", "render", files("bad.json", records.decode_only())]) == 1
    assert run(["claims", "render", files("held.json", records.simple(hardware__driver=None))]) == 3
    assert run(["claims", "render", files("none.md", "no claims")]) == 4


@pytest.mark.parametrize("tool", result_files.FILES)
def test_import_gives_records_that_check_reads(files, capsys, tool):
    path = files("result.json", result_files.FILES[tool]())
    side = files("side.toml", '[hardware]\ndriver = "580.95"\n')
    assert run(["claims", "import", path, "--with", side]) == 0
    written = capsys.readouterr().out
    # What the record has no place for is written as well, nulls included.
    (found,) = readers.read(Path(path), conditions=Path(side))
    assert Measurement.model_validate_json(written) == found
    record = files("record.jsonl", written)
    # A failed request is a failed record: AIPerf's and InferenceX's files have one.
    assert run(["claims", "check", record]) == (1 if tool in ("aiperf", "inferencex") else 0)
    text = capsys.readouterr().out
    assert "unknown: " in text and "result.repetitions" in text and "hardware.driver" not in text
    assert run(["claims", "import", path, "--format", "somebody"]) == 2


def test_compare(files, capsys, tmp_path):
    def lines(commit, figures):
        return "".join(
            json.dumps(records.server(v, identity__commit=commit, workload__concurrency=n)) + "\n"
            for n, v in figures.items()
        )

    old = files("old.jsonl", lines("a0", {4: 100, 8: 80, 64: 40}))
    new = files("new.jsonl", lines("a1", {4: 150, 8: 88}))
    worse = files("worse.jsonl", lines("a1", {4: 150, 8: 72}))
    twins = files("twins.jsonl", lines("a0", {4: 100}) + lines("a0", {4: 100.3}))
    out = tmp_path / "claim.json"
    arguments = ["claims", "compare", old, new, "--twins", twins, "--id", "release"]
    assert run([*arguments, "-o", str(out)]) == 0
    text = capsys.readouterr().out
    assert "Worst 1.10x, geometric mean 1.28x, best 1.50x" in text and "Slower: no cell." in text
    assert "In one set only: baseline tp8 b64" in text
    # What it wrote is a claim that check knows, and that a text may quote.
    assert run(["claims", "check", str(out), files("t.md", "1.28x in the geometric mean [claim:release]")]) == 0
    assert run(["claims", "compare", old, worse, "--twins", twins]) == 1
    assert "Slower: b8." in capsys.readouterr().out
    assert run(["claims", "compare", old, new]) == 3
    capsys.readouterr()
    assert run([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["regressions"] == [] and [row["cell"] for row in told["rows"]] == ["b4", "b8"]
    assert run([*arguments, "--metric", "speed"]) == 2 and run([*arguments, "--under-test", "workload"]) == 2
    assert run(["claims", "compare", str(out), new]) == 2


def test_explain(capsys):
    assert run(["claims", "explain"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 20
    assert run(["claims", "explain", "p4"]) == 0
    assert capsys.readouterr().out.startswith("# P4 ")
    assert run(["claims", "explain", "P99"]) == 2


def test_plot(files, capsys, tmp_path):
    pytest.importorskip("matplotlib", reason="drawing needs matplotlib: pip install 'fasttrack[plot]'")
    assert run(["claims", "plot", files("good.json", records.whole_range()), "--out", str(tmp_path / "plots")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "plots/decode-speed-up.svg")
