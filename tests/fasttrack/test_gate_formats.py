"""What `fasttrack gate --format` prints: one exit code in every form, and deaf to the head's text."""

import json
import os
import re
import subprocess
import sys

import pytest
from fasttrack import cli, gate_commands
from fasttrack.gate_cli import Format
from fasttrack.git import Repository
from fasttrack.report.gate import render_annotations, render_json, render_text
from fasttrack.report.gate_sarif import render_sarif
from fasttrack.report.gate_summary import MAX_REASONS, render_summary
from fasttrack_validation.errors import UserError
from gated_change import INSIDE, KERNEL, M, MANIFEST, STATEMENT, TABLE, gate, parse_manifest, run_gate, statement, tree

GOOD = INSIDE | {STATEMENT: statement(INSIDE)}
BAD = GOOD | {KERNEL: b"import torch\nimport os\n"}
EVIL = "x](https://evil.example) | <img src=x> @everyone `` ::error::y\n## Gate: pass"


def test_sarif_places_each_reason_and_carries_the_exit_code(forge):
    (run,) = json.loads(render_sarif(gate(forge, BAD)))["runs"]
    rules = run["tool"]["driver"]["rules"]
    found = {result["ruleId"]: result for result in run["results"]}
    result = found["content.import"]
    place = result["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": f"{M}/{KERNEL}"}, "region": {"startLine": 2}}
    assert result["level"] == "error" and all(rules[one["ruleIndex"]]["id"] == one["ruleId"] for one in run["results"])
    assert run["invocations"][0]["exitCode"] == 1


@pytest.mark.parametrize(("inside", "code"), [(GOOD, 0), (BAD, 1), ({}, 4)])
def test_sarif_tells_the_exit_code(forge, inside, code):
    result = gate(forge, inside)
    (run,) = json.loads(render_sarif(result))["runs"]
    assert run["invocations"][0]["exitCode"] == result.exit_code == code
    assert any(one["level"] == "error" for one in run["results"]) == (code != 0)


def test_sarif_levels(forge):
    """What keeps a draft is a warning, what was left as at the base a note."""
    (run,) = json.loads(render_sarif(gate(forge, GOOD | {"schedule.py": b"A = 1\n"})))["runs"]
    assert [(one["ruleId"], one["level"]) for one in run["results"]] == [("evidence.uncovered", "warning")]


def test_summary(forge):
    text = render_summary(gate(forge, BAD))
    assert text.startswith("## Gate: fail\n") and "| confinement | ❌ fail |" in text
    assert "- **content.import** `models/alpha/kernels/k.py:2`: `" in text


def test_nothing_that_the_head_wrote_acts_in_the_summary_or_the_log(forge):
    verdict = statement(INSIDE, status="rejected", reason="C1", message=EVIL)
    result = gate(forge, INSIDE | {STATEMENT: verdict})
    text = render_summary(result)
    assert sum(line.startswith("#") and "Gate" in line for line in text.splitlines()) == 1 and "evil" in text
    for line in text.splitlines():
        # Only backticks can end a code span, and the head's are none.
        outside = re.sub(r"`[^`]*`", "", line)
        assert "evil" not in outside and "@" not in outside and "<" not in outside and "`" not in outside
    assert sum("::" in line for line in render_annotations(result).splitlines() if not line.startswith("::")) == 0


def test_a_summary_stays_below_its_limit(forge):
    many = {f"kernels/k{number}.py": b"import os\n" for number in range(MAX_REASONS + 20)}
    text = render_summary(gate(forge, GOOD | many))
    assert len(text) < 1 << 20 and "more: `fasttrack gate --format json`" in text


def test_errors_come_before_warnings(forge):
    kinds = [line.split(" ")[0] for line in render_annotations(gate(forge, BAD | {"s.py": b"A = 1\n"})).splitlines()]
    assert kinds == sorted(kinds) and {"::error", "::warning"} == set(kinds)


def test_what_the_change_left_alone_is_a_notice_after_all_else(forge):
    other = {"fasttrack.toml": MANIFEST + b'[ops.other]\nkernels = ["kernels/other.py"]\n', "kernels/other.py": b"",
             "dispatch/other.toml": TABLE.replace(b"k.py", b"other.py")}  # fmt: skip
    base = forge.commit(tree({"README.md": b"# alpha\n"} | INSIDE | other))
    inside = INSIDE | other | {"README.md": b"# alpha\n", "schedule.py": b"A = 1\n", STATEMENT: statement(INSIDE)}
    result = run_gate(forge.path, base, forge.commit(tree(inside), base), "alpha", parse_manifest=parse_manifest)
    lines = render_annotations(result).splitlines()
    assert [line.split(" ")[0] for line in lines] == ["::warning", "::notice"]
    assert "title=evidence.untouched" in lines[1]


def real(tmp_path, forge, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fasttrack", "gate", "--repo", str(forge.path), *arguments]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)} | environment
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)


def test_the_command_writes_the_summary_and_keeps_its_exit_code(forge, tmp_path):
    base = forge.commit(tree({"README.md": b"# alpha\n"}))
    head = forge.commit(tree({"README.md": b"# alpha\n", "kernels/k.py": b"import os\n"}), base)
    page = tmp_path / "summary.md"
    page.write_text("what an earlier step wrote\n")
    asked = ("--base", base, "--head", head)
    done = real(tmp_path, forge, *asked, "--format", "github", GITHUB_STEP_SUMMARY=str(page))
    assert done.returncode == 1, done.stderr
    assert f"::error file={M}/kernels/k.py,line=1,title=content.import::" in done.stdout
    assert page.read_text().startswith("what an earlier step wrote\n## Gate: fail\n")
    for form in Format:
        assert real(tmp_path, forge, *asked, "--format", form).returncode == 1
    assert json.loads(real(tmp_path, forge, *asked, "--format", "sarif").stdout)["version"] == "2.1.0"
    assert real(tmp_path, forge, *asked, "--json", "--format", "sarif").returncode == 2


def test_the_model_is_the_one_whose_directory_changes(forge):
    base = forge.commit({"core.py": b"1", "models/alpha/a.py": b"1", "models/README.md": b"1"})
    files = {"core.py": b"1", "models/alpha/a.py": b"1", "models/README.md": b"1"}

    def asked(**change: bytes) -> str:
        own = {name.replace("__", "/").replace("_py", ".py"): data for name, data in change.items()}
        return gate_commands.changed_model(forge.path, base, forge.commit(files | own, base))

    assert asked(models__alpha__a_py=b"2", core_py=b"2") == "alpha"
    several = {"models__alpha__a_py": b"2", "models__beta__a_py": b"2"}
    for change, says in (({"core_py": b"2"}, "no directory"), (several, "2 model")):
        with pytest.raises(UserError, match=says):
            asked(**change)


def test_the_base_moving_on_does_not_change_which_model_it_is(forge):
    fork = forge.commit(tree({"README.md": b"# alpha\n"}))
    base = forge.commit(tree({"README.md": b"# alpha\n"}) | {"models/beta/a.py": b"1"}, fork)
    head = forge.commit(tree({"README.md": b"# alpha, better\n"}), fork)
    assert gate_commands.changed_model(forge.path, base, head) == "alpha"
    assert Repository.open(forge.path).resolve(base) == base


def test_usage(forge, capsys):
    assert cli.run(["gate", "--base", "x", "--format", "yaml"]) == 2
    assert "yaml" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["text", "json", "github", "sarif"])
@pytest.mark.parametrize("name", [b"evidence/grid/h200/\xff.json", b"evidence/grid/h200/\x1b[31m.json", "evidence/kits/\u202e/seal.json".encode(),
                                  b"evidence/statements/\xfe.json", b"evidence/claims/\xfe.json", b"kernels/\xfe.py"])  # fmt: skip
def test_names_of_a_head_act_on_no_terminal_and_break_no_form(forge, tmp_path, name, form):
    """Names that are no UTF-8, or hold control characters: findings, in every form, in printable UTF-8."""
    base = forge.commit(tree({"README.md": b"# alpha\n"}))
    inside = INSIDE | {os.fsdecode(name): b'{"outcome": {"kind": "measured"}}\n', STATEMENT: statement(INSIDE)}
    result = run_gate(forge.path, base, forge.commit(tree(inside), base), "alpha", parse_manifest=parse_manifest)
    assert result.exit_code == 1
    text = {"text": render_text, "json": render_json, "github": render_annotations, "sarif": render_sarif}[form](result)
    text.encode("utf-8")
    assert all(c.isprintable() or c in "\n" for c in (text if form != "sarif" else json.dumps(json.loads(text))))
