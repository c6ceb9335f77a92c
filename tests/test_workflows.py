"""The repository's own workflows: clean under their linters, and the gate's steps, run as they stand."""

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
HERE = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
ZIZMOR, SCHEMA = (shutil.which(name, path=HERE) for name in ("zizmor", "check-jsonschema"))
needs_zizmor = pytest.mark.skipif(ZIZMOR is None, reason="zizmor is not installed (extra: test)")
needs_schema = pytest.mark.skipif(SCHEMA is None, reason="check-jsonschema is not installed (extra: test)")
# Every suppression, with how often it stands there. The reason is the comment above each.
SUPPRESSED = {
    "gate.yml": ["dangerous-triggers"],
    "gpu.yml": ["dangerous-triggers", "self-hosted-runner", "self-hosted-runner"],
}


def zizmor(place: Path) -> subprocess.CompletedProcess[str]:
    """Exit codes: 0 nothing found, 3 nothing collected, 11 to 14 the highest severity that was found."""
    command = [ZIZMOR, "--persona", "auditor", "--offline", "--no-config", "--quiet", "--format", "plain", str(place)]
    return subprocess.run(command, capture_output=True, text=True)


def schema(*files: Path) -> int:
    command = [SCHEMA, "--builtin-schema", "vendor.github-workflows", *map(str, files)]
    return subprocess.run(command, capture_output=True).returncode


@needs_zizmor
def test_zizmor_finds_nothing():
    done = zizmor(ROOT / ".github")
    assert done.returncode == 0, done.stdout


def test_suppressions_are_the_stated_ones():
    found = {path.name: re.findall(r"zizmor: ignore\[([a-z-]+)\]", path.read_text()) for path in WORKFLOWS}
    assert {name: rules for name, rules in found.items() if rules} == SUPPRESSED
    for path in WORKFLOWS:
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines):
            if "zizmor: ignore" in line:
                assert lines[number - 1].strip().startswith("# "), f"{path.name}:{number + 1} gives no reason"


FAULTS = {
    "unpinned-uses": ("actions/checkout@11bd71901bbe5b1630ceea73d27597364c9af683 # v4.2.2", "actions/checkout@v4"),
    "artipacked": ("persist-credentials: false", "persist-credentials: true"),
    "template-injection": ('--head "$HEAD" --body', "--head ${{ github.head_ref }} --body"),
    "dangerous-triggers": ("on: # zizmor: ignore[dangerous-triggers]", "on:"),
    "excessive-permissions": ("permissions: {}\n\nconcurrency", "permissions: write-all\n\nconcurrency"),
}


@needs_zizmor
@pytest.mark.parametrize("rule", FAULTS)
def test_zizmor_sees_a_planted_fault(rule, tmp_path):
    text = (ROOT / ".github/workflows/gate.yml").read_text()
    old, new = FAULTS[rule]
    assert text.count(old) == 1
    place = tmp_path / ".github/workflows/gate.yml"
    place.parent.mkdir(parents=True)
    place.write_text(text.replace(old, new))
    done = zizmor(tmp_path / ".github")
    assert done.returncode >= 11 and rule in done.stdout


@needs_schema
def test_workflows_keep_the_schema(tmp_path):
    assert schema(*WORKFLOWS) == 0
    broken = tmp_path / "broken.yml"
    broken.write_text(WORKFLOWS[0].read_text().replace("runs-on:", "run-on:"))
    assert schema(broken) != 0


def test_code_owners_name_what_is_there():
    """Every rule of the lane has an owner of its own, below the lines that it overrides."""
    lines = (ROOT / ".github/CODEOWNERS").read_text().splitlines()
    rows = [line.split() for line in lines if line[:1] not in ("", "#")]
    paths = [row[0] for row in rows]
    assert paths[:2] == ["*", "/models/"] and all(len(row) > 1 for row in rows)
    assert all((ROOT / path.strip("/")).is_dir() for path in paths[1:])
    from fasttrack.confinement.check import POLICY

    assert {path.strip("/") for path in paths[2:]} == set(POLICY)


# The steps of the gate's workflow, run by a shell as they stand, in a checkout of the base beside a forge.

PULL = "refs/pull/7/head"
MARK = "import pathlib\npathlib.Path('/tmp/never').write_text('ran')\n"


def step(name: str) -> str:
    yaml = pytest.importorskip("yaml")
    steps = yaml.safe_load((ROOT / ".github/workflows/gate.yml").read_text())["jobs"]["gate"]["steps"]
    (found,) = (one["run"] for one in steps if one.get("name") == name)
    return found


def git(where: Path, *arguments: str) -> str:
    person = ["-c", "user.name=A Person", "-c", "user.email=person@example.org"]
    command = ["git", *person, *arguments]
    return subprocess.run(command, cwd=where, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def pull(tmp_path) -> tuple[Path, str]:
    """A checkout of the base whose origin has a pull request: a change that leaves a mark wherever it is imported."""
    source, base = tmp_path / "source", tmp_path / "base"
    (source / "models/alpha").mkdir(parents=True)
    git(source, "init", "--quiet", "-b", "main")
    (source / "models/alpha/fasttrack.toml").write_text("[model]\n")
    git(source, "add", ".")
    git(source, "commit", "--quiet", "-m", "base")
    git(source, "switch", "--quiet", "-c", "change")
    mark = tmp_path / "mark"
    for name in ("models/alpha/k.py", "sitecustomize.py", "fasttrack.py", "conftest.py"):
        (source / name).write_text(MARK.replace("/tmp/never", str(mark)))
    git(source, "add", ".")
    git(source, "commit", "--quiet", "-m", "change")
    head = git(source, "rev-parse", "HEAD")
    git(source, "update-ref", PULL, head)
    git(source, "switch", "--quiet", "main")
    git(source, "branch", "-D", "change")
    git(tmp_path, "clone", "--quiet", "--no-local", str(source), str(base))
    scripts = base / ".venv/bin"
    scripts.mkdir(parents=True)
    # The installed command of the base.
    os.symlink(Path(sysconfig.get_path("scripts"), "fasttrack"), scripts / "fasttrack")
    return base, head


def run_step(name: str, base: Path, head: str, **environment: str) -> subprocess.CompletedProcess[str]:
    summary = base.parent / "summary.md"
    env = {"PATH": os.environ["PATH"], "HOME": str(base.parent), "NUMBER": "7", "HEAD": head,
           "GITHUB_STEP_SUMMARY": str(summary), "RUNNER_TEMP": str(base.parent), "BODY": ""} | environment  # fmt: skip
    # As a runner does: bash --noprofile --norc -eo pipefail
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step(name)]
    return subprocess.run(command, cwd=base, env=env, capture_output=True, text=True)


def test_the_gate_judges_a_head_that_it_never_checks_out(pull):
    base, head = pull
    before = git(base, "rev-parse", "HEAD")
    assert run_step("Fetch the head as objects", base, head).returncode == 0
    done = run_step("Judge", base, head, FAST_TRACK="true")
    assert done.returncode == 1, done.stderr
    assert "file=sitecustomize.py,title=confinement.outside::" in done.stdout
    assert "## Gate: fail" in (base.parent / "summary.md").read_text()
    assert git(base, "rev-parse", "HEAD") == before and git(base, "status", "--porcelain", "-uno") == ""
    assert not (base / "sitecustomize.py").exists() and not (base.parent / "mark").exists()


def test_figures_of_the_pull_requests_text_are_held_against_claims(pull):
    """The text goes through the environment: what looks like a command in it stays text."""
    base, head = pull
    run_step("Fetch the head as objects", base, head)
    mark = base.parent / "ran"
    done = run_step("Judge", base, head, FAST_TRACK="true", BODY=f"$(touch {mark}) `touch {mark}`\n\nNow 2.1x faster.")
    assert not mark.exists() and (base.parent / "body.md").read_text().startswith("$(touch")
    assert done.returncode == 1


def test_a_push_meanwhile_stops_the_run(pull):
    base, head = pull
    done = run_step("Fetch the head as objects", base, "0" * 40)
    assert done.returncode == 1 and "::error::" in done.stdout


def test_without_the_label_the_check_reports_ordinary_review(pull):
    base, head = pull
    assert run_step("Judge", base, head, FAST_TRACK="false").returncode == 0
    assert "ordinary review" in (base.parent / "summary.md").read_text()


@pytest.mark.parametrize(
    ("label", "told"),
    [
        ("gpu/h200/kimi_k3", "hardware=h200\nmodel=kimi_k3\n"),
        ("gpu/h200/../x", None), ("gpu/h200/a b", None), ("gpu/a100/kimi_k3", None), ("gpu/h200/a\nmodel=b", None),
        ("gpu/h200/$(id)", None), ("xgpu/h200/kimi_k3", None),
    ],
)  # fmt: skip
def test_labels_of_gpu_runs(label, told, tmp_path):
    yaml = pytest.importorskip("yaml")
    (one,) = yaml.safe_load((ROOT / ".github/workflows/gpu.yml").read_text())["jobs"]["plan"]["steps"]
    out = tmp_path / "out"
    out.touch()
    env = {"PATH": os.environ["PATH"], "LABEL": label, "GITHUB_OUTPUT": str(out)}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", one["run"]]
    done = subprocess.run(command, env=env, capture_output=True)
    assert (done.returncode, out.read_text()) == ((0, told) if told else (1, ""))


def test_only_regular_files_of_an_artifact_are_signed(tmp_path):
    """What a job of the head produced may hold links, pipes and odd names; the signing job reads regular files alone."""
    yaml = pytest.importorskip("yaml")
    steps = yaml.safe_load((ROOT / ".github/workflows/gpu.yml").read_text())["jobs"]["attest"]["steps"]
    (run,) = (one["run"] for one in steps if one.get("name") == "Sign")
    grid, scripts = tmp_path / "grid", tmp_path / ".venv/bin"
    grid.mkdir()
    scripts.mkdir(parents=True)
    (scripts / "fasttrack").write_text('#!/bin/sh\nfor one; do printf "%s\\0" "$one"; done >> "$OUT"\n')
    (scripts / "fasttrack").chmod(0o755)
    (tmp_path / "secret.json").write_text("{}")
    for name in ("a.json", "b\nc.json", "-rf.json"):
        (grid / name).write_text("{}")
    (grid / "link.json").symlink_to(tmp_path / "secret.json")
    (grid / "folder.json").symlink_to(tmp_path)
    os.mkfifo(grid / "pipe.json")
    env = {"PATH": os.environ["PATH"], "GRID": str(grid), "KEY": "key", "OUT": str(tmp_path / "out")}
    subprocess.run(["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", run], cwd=tmp_path, env=env, check=True)
    told = (tmp_path / "out").read_text().split("\0")[:-1]
    assert told[:6] == ["evidence", "sign", "--kind", "grid", "--key", "key"]
    assert sorted(told[6:]) == sorted(str(grid / name) for name in ("a.json", "b\nc.json", "-rf.json"))
