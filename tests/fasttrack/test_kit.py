"""Kits: what is written can be run, machines are checked first, and what comes back is checked and filed or refused."""

import gzip
import io
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
import recorded_answers as recorded
import server_grids
from fasttrack import cli, model_dir
from fasttrack.attestation import Grade, attest
from fasttrack.kit import known, machine, plan, sealing
from fasttrack.kit.plan import Kit
from fasttrack.kit.write import write
from fasttrack.report.model_level import exam_results, servers_results
from long_tests import long
from report_layers import reports

from fasttrack_validation.accuracy import campaign
from fasttrack_validation.accuracy.result import judge
from fasttrack_validation.errors import UserError
from fasttrack_validation.load import servers
from fasttrack_validation.performance.serving_grid import serving_grid
from fasttrack_validation.records import sha256

SOURCE = Path(model_dir.installed_models()) / "kimi_k3"
SUPPORT = Path(__file__).parent.parent / "support"
GRID = serving_grid("kimi_k3")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A repository with the shipped model directory and nothing else, committed."""
    root = tmp_path_factory.mktemp("checkout")
    shutil.copytree(SOURCE, root / "models/kimi_k3", ignore=shutil.ignore_patterns("__pycache__", "evidence"))
    (root / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    (root / "constraints.txt").write_text("# pinned\nnumpy==1.2.3\n")
    for command in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "c"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    return root


@pytest.fixture
def here(checkout, tmp_path, monkeypatch):
    monkeypatch.chdir(checkout)
    monkeypatch.setenv("FASTTRACK_HOME", str(tmp_path / "state"))
    return tmp_path


def test_pairs_of_servers_and_their_hours():
    fits, left_out = plan.pairs(GRID, 72)
    assert [pair.name for pair in fits] == [f"tp{tp}-{s}" for tp in (8, 16) for s in ("off", "natural", "forced")]
    assert left_out == {}
    small, left_out = plan.pairs(GRID, 16)
    assert {pair.tp for pair in small} == {8} and set(left_out) == {"tp16-off", "tp16-natural", "tp16-forced"}
    assert "takes 32 GPUs of 16" in left_out["tp16-off"]
    # By hand: batch 1, 1024 in and out: (1 + 6) loads of 2 arms, 1024 steps of 8.2 ms and 51 ms of prefill each
    (one,) = [c for c in GRID.cells if c.key == "tp8-decode_only-b1-i1024-off"]
    assert plan.cell_hours(one, GRID) == pytest.approx(14 * (1024 * 0.0082 + 1024 / 20000) / 3600)


def test_every_command_of_a_kit_is_one_that_this_version_runs(here):
    for rehearsal in (False, True):
        kit = write("kimi_k3", "gb300", here / f"kit-{rehearsal}", gpus=None, rehearsal=rehearsal)
        for step in kit.steps:
            assert [known.why_not(command.arguments) for command in step.commands] == [None] * len(step.commands)
        grids, ranks = [f"grid-{pair.name}" for pair in kit.pairs], ["versions", "rank", "rank-claims"]
        assert [step.id for step in kit.steps] == [
            *([] if rehearsal else ranks), "exams", "numerics", "accuracy", *grids, "claims"]  # fmt: skip
        assert kit.left_out == ({"rank": "one rank's share is measured on a GPU"} if rehearsal else {})
        text = (here / f"kit-{rehearsal}" / "run.sh").read_text()
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)
        subprocess.run(["bash", "-n", str(here / f"kit-{rehearsal}" / "serve.sh")], check=True)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("fasttrack grid run kimi_k3 --hardware gb300 --scope server", None),
        ("fasttrack grid run kimi_k3 --hardwire gb300", "--hardwire"),
        ("fasttrack grid walk kimi_k3", "no `fasttrack grid walk`"),
        ("fasttrack grid run", "does not take it"),
        ("fasttrack grid run kimi_k3 --hardware gb300 --quads many", "valid integer"),
        ("fasttrack", "no `fasttrack `"),
    ],
)
def test_a_command_that_nobody_can_run_is_seen(command, said):
    why = known.why_not(command.split())
    assert why is None if said is None else said in why


def test_a_step_that_this_version_cannot_run_is_left_out_with_why(here, monkeypatch):
    steps = plan.steps

    def more(*arguments, **options):
        command = plan.Command(arguments=("fasttrack", "exam", "mark", "--hard"))
        return (*steps(*arguments, **options), plan.Step(id="marks", title="Marks", hours=0.0, commands=(command,)))

    monkeypatch.setattr("fasttrack.kit.plan.steps", more)
    kit = write("kimi_k3", "gb300", here / "kit", gpus=None, rehearsal=True)
    assert kit.left_out["marks"] == "this version has no `fasttrack exam mark`" and "marks" not in {s.id for s in kit.steps}
    assert "marks (this version has no `fasttrack exam mark`)" in (here / "kit/README.md").read_text()


def test_a_stopped_kit_ends_its_command_and_goes_on(here):
    """SIGTERM to run.sh alone, as a scheduler sends it: the command under way is told, and nothing is marked as done."""
    write("kimi_k3", "gb300", here / "kit", gpus=None, rehearsal=True)
    program = here / "bin/fasttrack"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nimport os, signal, sys, time\n"
        "def stop(*_):\n    open('told', 'w').close()\n    sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, stop)\nopen('under-way', 'w').close()\ntime.sleep(3600)\n"
    )
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    folder = here / "kit"
    process = subprocess.Popen(["./run.sh", "exams"], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    while not (folder / "under-way").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "run it again to go on" in out
    assert (folder / "told").exists() and not (folder / "results/done/exams").exists()


def test_what_a_kit_brings(here, checkout):
    kit = write("kimi_k3", "gb300", here / "kit", gpus=32, rehearsal=False)
    assert Kit.model_validate_json((here / "kit/kit.json").read_bytes()) == kit
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert kit.commit == head and kit.pins == ("numpy==1.2.3",)
    with tarfile.open(here / "kit/fasttrack-source.tar.gz") as archive:
        assert "fasttrack-source/models/kimi_k3/fasttrack.toml" in archive.getnames()
    readme = (here / "kit/README.md").read_text()
    assert all(step.id in readme for step in kit.steps) and "estimated and not measured" in readme and head[:12] in readme
    lines = [json.loads(line) for line in (here / "kit/inputs/tokens.jsonl").read_text().splitlines()]
    assert sum(len(line["tokens"]) for line in lines) == 16 * (256 + 1024 + 4096 + 16384) and len({x["id"] for x in lines}) == 64
    serve = (here / "kit/serve.sh").read_text()
    assert '"synthetic_acceptance_length": 3.84' in serve and "SPECIALISED_ARGS" in serve
    assert (here / "kit/run.sh").stat().st_mode & stat.S_IXUSR
    # Without the word how the engine takes the path in, nothing pretends to be specialised.
    done = subprocess.run(["./serve.sh", "specialised", "8", "off", "1"], cwd=here / "kit", capture_output=True, text=True)
    assert done.returncode != 0 and "SPECIALISED_ARGS" in done.stderr
    with pytest.raises(UserError, match="is there already"):
        write("kimi_k3", "gb300", here / "kit", gpus=32, rehearsal=False)
    with pytest.raises(UserError, match="kimi_k3 has no grid on mi355x"):
        write("kimi_k3", "mi355x", here / "other", gpus=None, rehearsal=False)
    with pytest.raises(UserError, match="no pair of servers fits 4 GPUs"):
        write("kimi_k3", "gb300", here / "other", gpus=4, rehearsal=False)
    path = checkout / "models/kimi_k3/README.md"
    text = path.read_text()
    try:
        path.write_text(text + "\nchanged\n")
        with pytest.raises(UserError, match="not committed"):
            write("kimi_k3", "gb300", here / "other", gpus=None, rehearsal=False)
    finally:
        path.write_text(text)
    assert not (here / "other").exists()


def smi(folder, line):
    folder.mkdir(exist_ok=True)
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'E'\n{line}\nE\n")
    program.chmod(0o755)


GOOD = "NVIDIA GB300, 580.95.05, 1920, 3996, Not Active, 288000"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (GOOD, None), (GOOD.replace("GB300", "H200"), "GPU NVIDIA H200, wanted a GB300"),
        (GOOD.replace("580.95", "570.12"), "driver 570.12.05"), (GOOD.replace("Not Active", "Active"), "hardware slowdown: true"),
        (f"{GOOD}\n{GOOD.replace('580.95', '590.1')}", "driver None"),
    ],
)  # fmt: skip
def test_the_machine_is_checked_first(here, monkeypatch, capsys, line, said):
    write("kimi_k3", "gb300", here / "kit", gpus=32, rehearsal=False)
    kit = json.loads((here / "kit/kit.json").read_text())
    kit["requirement"] |= {"disk_gb": 0, "memory_gb": 0, "programs": []}
    (here / "kit/kit.json").write_text(json.dumps(kit))
    smi(here / "bin", line)
    monkeypatch.setenv("PATH", f"{here / 'bin'}{os.pathsep}{os.environ['PATH']}")
    for name, value in (("CLOCKS_LOCKED", "true"), ("ENGINE_BUILD", "image@sha256:1"), ("MODEL_REVISION", "r1"), ("INTERCONNECT", "nvlink5"), ("NODES", "8")):
        monkeypatch.setenv(name, value)
    code = machine.main(["--gpus", "72"], here / "kit")
    out = capsys.readouterr().out
    assert (code, "FAIL" in out) == ((0, False) if said is None else (1, True))
    assert said is None or f"FAIL {said}" in out
    found = servers.read(here / "kit/servers/tp8-off.toml")
    hardware = found.server[0].conditions["hardware"]
    assert hardware["clocks_locked"] is True and found.server[1].conditions["identity"]["commit"] == kit["commit"]
    if said is None:
        assert hardware == {"gpus": 8, "driver": "580.95.05", "sm_clock_mhz": 1920, "memory_clock_mhz": 3996,
                            "clocks_locked": True, "throttled": False, "interconnect": "nvlink5", "nodes": 8}  # fmt: skip
    declared = json.loads((here / "kit/inputs/declare.json").read_text())
    assert declared["stock"]["revision"] == "r1" and declared["stock"]["build"] != declared["candidate"]["build"]
    if "590" in line:
        assert "driver" not in hardware  # two drivers are none that the record could name
    monkeypatch.delenv("CLOCKS_LOCKED")
    monkeypatch.delenv("MODEL_REVISION")
    assert machine.main(["--gpus", "4"], here / "kit") == 1
    out = capsys.readouterr().out
    assert "revision of the weights: not said" in out and "clocks locked: not said" in out and "4 GPUs, 32 needed" in out


def new_key(path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", path], check=True)
    return path


def returned(folder, kit_folder, *, key=None, records=None, **conditions):
    """A kit as if it had been run: records of the grid, and a machine."""
    shutil.copytree(kit_folder, folder)
    kit = Kit.model_validate_json((folder / "kit.json").read_bytes())
    grid = folder / "results/grid"
    grid.mkdir(parents=True)
    if records is None:
        changes = {"identity.commit": kit.commit, **conditions}
        made = server_grids.record(subject=kit.subject, hardware=kit.hardware)
        side = server_grids.side("specialised", [0.006] * 6, kit.commit, **changes)
        records = [made.model_copy(update={"outcome": made.outcome.model_copy(update={"specialised": side})})]
    for one in records:
        (grid / f"{one.cell.key}.json").write_text(one.model_dump_json() + "\n")
    (folder / "results/machine.json").write_text(json.dumps({"facts": {"gpu": "NVIDIA GB300"}}))
    (folder / "results/steps.csv").write_text("".join(f"{step.id},0,2026-09-20T00:00:00Z\n" for step in kit.steps))
    sealed = folder.parent / f"{folder.name}.tar.gz"
    sealing.seal(folder, sealed, key)
    return sealed


def sat(folder):
    """Exams that were sat, in a kit as it comes back: the stage's record, and the answers that it is about."""
    exam = recorded.exam("sample_choices")
    by, place = recorded.plan(exam, 4, margin_points=30.0), folder / "results/accuracy"
    held, arms = {arm: recorded.sitting(exam, by, arm) for arm in ("baseline", "candidate")}, {}
    (place / "sample_choices").mkdir(parents=True)
    for arm, answers in held.items():
        data = answers.dump().encode()
        (place / f"sample_choices/{arm}.jsonl").write_bytes(data)
        arms[arm] = campaign.ArmRecord(file=f"sample_choices/{arm}.jsonl", sha256=sha256(data), model="nano",
                                       cost=campaign.cost(answers.answers))  # fmt: skip
    result = judge(exam, by, held["baseline"], held["candidate"])
    one = campaign.ExamRecord(plan=by, result=result, look=4, **arms)
    outcome = campaign.Outcome(verdict=result.verdict, exams=(one,))
    record = {"format": "fasttrack.accuracy/1", "model": "kimi_k3", "outcome": json.loads(outcome.model_dump_json()), "not_run": []}
    (place / "accuracy.json").write_text(json.dumps(record))
    (place / "accuracy.md").write_text("# Exams\n")
    (folder / "results/numerics").mkdir()
    (folder / "results/numerics/verdict.json").write_text(json.dumps(reports().servers()))


def imported(capsys, *arguments):
    code = cli.run(["evidence", "import", *map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_what_comes_back_is_filed_and_attested(here, checkout, capsys):
    kit = write("kimi_k3", "gb300", here / "kit", gpus=16, rehearsal=False)
    key = new_key(here / "partner")
    file = returned(here / "back", here / "kit", key=key)
    sat(here / "back")
    sealing.seal(here / "back", file, key)
    code, found = imported(capsys, file, "--from", f"{key}.pub", "--check")
    assert (code, found["faults"], found["filed"]) == (0, [], []) and found["signer"] == "partner.pub"
    model = checkout / "models/kimi_k3"
    try:
        code, found = imported(capsys, file, "--from", f"{key}.pub")
        assert code == 0 and found["measured"] == ["tp8-mixed_prefill-b4-i1024-off"]
        assert cli.run(["grid", "show", "kimi_k3", "--hardware", "gb300", "--scope", "server", "--json"]) == 0
        shown = {c["cell"]: c["standing"] for c in json.loads(capsys.readouterr().out)["cells"]}
        assert shown["tp8-mixed_prefill-b4-i1024-off"] == "measured" and sum(v == "measured" for v in shown.values()) == 1
        files = {p.relative_to(model).as_posix(): p.read_bytes() for p in (model / "evidence").rglob("*") if p.is_file()}
        # The report finds the exams; answers, which may quote items, are not filed.
        (shown,) = exam_results(files)
        assert (shown.exam, shown.verdict, shown.margin) == ("sample_choices", "pass", 0.3)
        assert shown.source == f"evidence/accuracy/gb300-{kit.commit[:12]}.json"
        (compared,) = servers_results(files)
        assert (compared.kit, compared.result) == (f"gb300-{kit.commit[:12]}", "inconclusive")
        assert not [path for path in files if path.endswith(("baseline.jsonl", "candidate.jsonl", "answers.jsonl"))]
        public = Path(f"{key}.pub").read_text().strip()
        allowed = f'partner@x namespaces="evidence@fasttrack.dev" {public}\n'.encode()
        graded = {one.path: one for one in attest(files, {}, {}, allowed)}
        record = next(one for path, one in graded.items() if path.startswith("evidence/grid/"))
        assert record.grade is Grade.ATTESTED and record.signer == "partner@x" and "sealed in evidence/kits/" in record.message
        # A record that the seal does not name has nobody's word, and so has one under a seal that nobody signed.
        other = {**files, record.path: files[record.path] + b" "}
        assert {o.path: o.grade for o in attest(other, {}, {}, allowed)}[record.path] is Grade.SELF_REPORTED
        bare = {path: data for path, data in files.items() if not path.endswith(".sig")}
        assert {one.grade for one in attest(bare, {}, {}, allowed)} == {Grade.SELF_REPORTED}
    finally:
        shutil.rmtree(model / "evidence", ignore_errors=True)


def test_what_does_not_hold_is_not_filed(here, checkout, capsys):
    write("kimi_k3", "gb300", here / "kit", gpus=16, rehearsal=False)
    kit = Kit.model_validate_json((here / "kit/kit.json").read_bytes())
    key, stranger = new_key(here / "partner"), new_key(here / "stranger")
    good = server_grids.record(subject=kit.subject)
    cases = {
        "signature does not count": returned(here / "a", here / "kit", key=stranger),
        "nobody signed it": returned(here / "b", here / "kit"),
        "measured with commit a1": returned(here / "c", here / "kit", key=key, records=[good]),
        "about other sources than the kit": returned(
            here / "d", here / "kit", key=key, records=[server_grids.record(subject="9" * 64)]
        ),
        "is about h200, the kit about gb300": returned(
            here / "e", here / "kit", key=key, records=[server_grids.record(subject=kit.subject, hardware="h200")]
        ),
    }
    for said, file in cases.items():
        code, found = imported(capsys, file, "--from", f"{key}.pub")
        assert code == 1 and any(said in fault for fault in found["faults"]), (said, found["faults"])
        assert found["filed"] == [] and not (checkout / "models/kimi_k3/evidence").exists()
    # Claims that the records do not give
    file = returned(here / "f", here / "kit", key=key)
    assert cli.run(["grid", "claim", "kimi_k3", "--hardware", "gb300", "--scope", "server", "--records",
                    str(here / "f/results/grid"), "-o", str(here / "f/results/claims.json")]) == 0  # fmt: skip
    sealing.seal(here / "f", file, key)
    capsys.readouterr()
    assert imported(capsys, file, "--from", f"{key}.pub", "--check")[0] == 0
    claims = json.loads((here / "f/results/claims.json").read_text())
    claims[0]["pairs"][0]["candidate"]["result"]["tok_s_user"]["value"] *= 1.001
    (here / "f/results/claims.json").write_text(json.dumps(claims))
    sealing.seal(here / "f", file, key)
    code, found = imported(capsys, file, "--from", f"{key}.pub", "--check")
    assert code == 1 and "not what the records give" in found["faults"][0]
    # Exams whose answers are others, whose record is cut, or that are about another model
    sat(here / "f")
    (here / "f/results/claims.json").unlink()
    record = here / "f/results/accuracy/accuracy.json"
    whole, answers = record.read_text(), here / "f/results/accuracy/sample_choices/candidate.jsonl"
    for path, text, said in (
        (record, whole[:-20], "is no record of stage accuracy"),
        (record, whole.replace("kimi_k3", "another"), "is about another, the kit about kimi_k3"),
        (answers, answers.read_text() + "\n", "is not about the answers in results/accuracy/sample_choices/candidate.jsonl"),
        (record, whole, None),
    ):  # fmt: skip
        before = path.read_bytes()
        path.write_text(text)
        sealing.seal(here / "f", file, key)
        code, found = imported(capsys, file, "--from", f"{key}.pub", "--check")
        assert (code, found["faults"] == []) == ((0, True) if said is None else (1, False))
        assert said is None or said in found["faults"][0]
        path.write_bytes(before)
    # Sources that went on since: its commit is in the history here, and what it measured is kept as stale.
    path = checkout / "models/kimi_k3/executor.py"
    text = path.read_text()
    try:
        path.write_text(text + "\n# later\n")
        code, found = imported(capsys, returned(here / "g", here / "kit", key=key), "--from", f"{key}.pub")
        assert code == 0 and f"it is about commit {kit.commit[:12]}: what was measured of sources" in found["notes"][0]
        assert cli.run(["grid", "plan", "kimi_k3", "--hardware", "gb300", "--scope", "server", "--json"]) == 0
        shown = {c["cell"]: c["standing"] for c in json.loads(capsys.readouterr().out)["cells"]}
        assert shown["tp8-mixed_prefill-b4-i1024-off"] == "stale"
    finally:
        path.write_text(text)
        shutil.rmtree(checkout / "models/kimi_k3/evidence", ignore_errors=True)


def repacked(source, target, change):
    """A sealed file with its members changed: name -> data."""
    with tarfile.open(source) as archive:
        members = {entry.name: archive.extractfile(entry).read() for entry in archive}
    members = change(members)
    with tarfile.open(target, "w:gz") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return target


def test_a_sealed_file_that_was_touched_is_refused(here, capsys):
    write("kimi_k3", "gb300", here / "kit", gpus=16, rehearsal=False)
    file = returned(here / "back", here / "kit")
    changes = {
        "is not what its seal says": lambda m: {**m, "results/machine.json": b"{}"},
        "is not in its seal": lambda m: {**m, "results/more.json": b"{}"},
        "in its seal and not inside": lambda m: {n: d for n, d in m.items() if n != "results/machine.json"},
        "no plain file inside it": lambda m: {**m, "../outside.json": b"{}"},
        "has no seal.json": lambda m: {n: d for n, d in m.items() if n != "seal.json"},
    }
    for number, (said, change) in enumerate(changes.items()):
        bad = repacked(file, here / f"bad{number}.tar.gz", change)
        assert cli.run(["evidence", "import", str(bad)]) == 2 and said in capsys.readouterr().err
    with tarfile.open(here / "link.tar.gz", "w:gz") as archive:
        entry = tarfile.TarInfo("results/link")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(entry)
    assert cli.run(["evidence", "import", str(here / "link.tar.gz")]) == 2
    (here / "short.tar.gz").write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert cli.run(["evidence", "import", str(here / "short.tar.gz")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert not (here.parent / "outside.json").exists()
    again = here / "again.tar.gz"
    sealing.seal(here / "back", again, None)
    assert again.read_bytes() == file.read_bytes() and gzip.decompress(again.read_bytes())


def moved(folder):
    """A kit whose servers listen where nobody else's do."""
    free = {str(port): str(10_100 + 2 * (os.getpid() % 10_000) + n) for n, port in enumerate(plan.PORTS.values())}
    for path in (folder / "run.sh", folder / "servers/tp1-off.toml.in"):
        path.write_text(re.sub("|".join(free), lambda found: free[found[0]], path.read_text()))


def with_program(here):
    """An environment in which `fasttrack` is this one."""
    program = here / "bin/fasttrack"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m fasttrack "$@"\n')
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}", "CLOCKS_LOCKED": "false",
            "PYTHONPATH": f"{SUPPORT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", "OMP_NUM_THREADS": "1"}  # fmt: skip


@long
@pytest.mark.slow
def test_the_whole_kit_runs_with_the_small_model(here, capsys):
    """Nothing in place of anything: two servers of the nano model, numerics, exam, grid, claims, seal, import."""
    pytest.importorskip("lm_eval", reason="pip install 'fasttrack[exams]'")
    kit, folder = write("kimi_k3", "gb300", here / "kit", gpus=None, rehearsal=True), here / "kit"
    moved(folder)
    done = subprocess.run(["./run.sh"], cwd=folder, env=with_program(here), capture_output=True, text=True)
    logs = "".join(f"{path.name}:\n{path.read_text()[-2000:]}" for path in (folder / "results/logs").glob("*.log"))
    codes = dict(line.split(",")[:2] for line in (folder / "results/steps.csv").read_text().splitlines())
    assert codes == {"machine": "0", "exams": "0", "numerics": "3", "accuracy": "1", "grid-tp1-off": "0", "claims": "1",
                     "seal": "0"}, done.stdout + done.stderr + logs  # fmt: skip
    assert set(codes) == {"machine", "seal"} | {step.id for step in kit.steps}
    verdict = json.loads((folder / "results/numerics/verdict.json").read_text())
    assert verdict["result"] == "inconclusive" and verdict["deterministic"] and verdict["tokens"] > 200
    (exam,) = json.loads((folder / "results/accuracy/accuracy.json").read_text())["outcome"]["exams"]
    assert [one["reason"] for one in exam["result"]["findings"]] == ["kernels_inactive"]
    assert exam["baseline"]["cost"]["answers"] == exam["candidate"]["cost"]["answers"] == 8
    assert "withheld" in (folder / "results/logs/claims.log").read_text()
    code, found = imported(capsys, folder / "sealed.tar.gz")
    assert code == 0 and found["rehearsal"] and len(found["measured"]) == 2 and found["filed"] == [] == found["faults"]


@long
@pytest.mark.slow
def test_a_rehearsal_from_the_kit_to_the_import(here, capsys):
    """run.sh itself, with servers of a test in place of a model: machine, steps, a cut, the rest, the seal, the import."""
    kit = write("kimi_k3", "gb300", here / "kit", gpus=None, rehearsal=True)
    folder = here / "kit"
    moved(folder)
    (folder / "serve.sh").write_text(
        "#!/usr/bin/env bash\nstep=0.02; [ $1 = specialised ] && step=0.01\n"
        f'exec {sys.executable} {SUPPORT / "load_server_process.py"} "$4" $step kimi_k3-nano\n'
    )
    environment = with_program(here)

    def run(*steps):
        return subprocess.run(["./run.sh", *steps], cwd=folder, env=environment, capture_output=True, text=True)

    listed = run("--list").stdout
    assert all(step.id in listed for step in kit.steps)
    # Cut off in the middle of the grid: its servers end with it.
    cut = subprocess.Popen(["./run.sh", "machine", "grid-tp1-off"], cwd=folder, env=environment, start_new_session=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    deadline = time.monotonic() + 120
    while not list((folder / "results/grid").glob("*.json")) and time.monotonic() < deadline and cut.poll() is None:
        time.sleep(0.1)
    if cut.poll() is None:
        os.killpg(cut.pid, signal.SIGINT)
    cut.wait(60)
    kept = {path.name: path.read_bytes() for path in (folder / "results/grid").glob("*.json")}
    assert kept
    done = run("grid-tp1-off")
    assert "grid-tp1-off: done" in done.stdout, done.stdout + (folder / "results/logs/grid-tp1-off.log").read_text()
    cells = {path.name: path.read_bytes() for path in (folder / "results/grid").glob("*.json")}
    assert len(cells) == 2 and all(cells[name] == data for name, data in kept.items())
    done = run("claims", "seal")
    assert (folder / "results/claims.json").is_file(), done.stdout
    steps = (folder / "results/steps.csv").read_text().splitlines()
    # Most conditions of a rehearsal are unknown: its claims are withheld, and the kit says so and goes on.
    assert [line.split(",")[:2] for line in steps][-2][0] == "claims"
    code, found = imported(capsys, folder / "sealed.tar.gz")
    assert code == 0 and found["rehearsal"] and len(found["measured"]) == 2 and found["filed"] == [] == found["faults"]
