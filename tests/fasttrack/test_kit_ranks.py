"""A kit of one rank's share: written for hardware that the model claims, and its records held against sources and samples."""

import json
import shutil
import subprocess
from pathlib import Path

import grid_records
import pytest
from fasttrack import cli, grid, model_dir, services
from fasttrack.kit import known, machine, sealing
from fasttrack.kit.plan import Kit
from fasttrack.kit.write import write
from fasttrack_validation import digests
from fasttrack_validation.contracts.kimi_k3.grid import KimiK3Grid
from fasttrack_validation.errors import UserError
from fasttrack_validation.performance.records import Subject
from fasttrack_validation.records import digest_files

CELL = "tp8-kda_moe-r1"
CARD = {"device": "NVIDIA H200", "torch": "2.11.0+cu130", "triton": "3.6.0", "driver": "13000"}


def git(root, *arguments):
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(["git", *who, *arguments], cwd=root, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(checkout whose commit has a harness of its own, a kit for one cell, written there)."""
    root, place = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("kits")
    source, skip = model_dir.installed_models() / "kimi_k3", shutil.ignore_patterns("__pycache__", "evidence")
    shutil.copytree(source, root / "models/kimi_k3", ignore=skip)
    shutil.copytree(Path(digests.__file__).parent, root / "validation", ignore=shutil.ignore_patterns("__pycache__"))
    runner = root / "validation/performance/runner.py"
    runner.write_text(runner.read_text() + "# another harness than the installed one\n")
    (root / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    (root / "constraints.txt").write_text("torch==2.13.0\ntriton==3.6.0\n")
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "c")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        write("kimi_k3", "h200", place / "kit", gpus=None, rehearsal=False, cells=[CELL])
    return root, place / "kit"


def subject(root):
    """What a cell's record names as its sources, had it run from the checkout's commit: digests by hand."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        directory = model_dir.load("kimi_k3")
        here = grid.Grid(directory, services.contract("kimi_k3"), "h200")
        spec = next(cell.spec for cell in here.cells([CELL]))
        installed = here.subject(spec)
    validation, stock = root / "validation", root / "validation/contracts/kimi_k3"
    files = [*(validation / "performance").rglob("*.py"), *(validation / "timing").rglob("*.py"), validation / "contracts/grid.py"]
    files += [stock / f"{name}.py" for name in ("grid", "graph", "compared_shard", "rank_shard", "rows_examined", "step_shard")]
    files += [*(stock / "stock").rglob("*.py"), *(stock / "stock").rglob("*.cu")]
    harness = digest_files({path.relative_to(validation).as_posix(): path.read_bytes() for path in files})
    assert harness != installed.harness
    return Subject(**{**installed.model_dump(), "harness": harness})


def record(of, **changes):
    """The cell as a run leaves it: twelve quads, samples that wander, a floor from its bytes."""
    fast, stock = ([value * (1 + 0.001 * (n % 5)) for n in range(24)] for value in (50.0, 100.0))
    one = grid_records.record(samples=fast, stock_samples=stock, machine=CARD)
    quads = [grid_records.Quad(a1=fast[n], a2=fast[n + 1], b1=stock[n], b2=stock[n + 1]) for n in range(0, 24, 2)]
    outcome = one.outcome.model_copy(update={"comparison": grid_records.compare(quads), "target_floor_us": 80 / 4e12 * 1e6})
    return json.loads(one.model_copy(update={"subject": of, "outcome": outcome, **changes}).model_dump_json())


@pytest.fixture
def back(made, tmp_path, monkeypatch):
    """The kit as it comes back, in the checkout; afterwards the model directory is as before."""
    root, kit = made
    monkeypatch.chdir(root)
    folder = tmp_path / "back"
    shutil.copytree(kit, folder)
    (folder / "results/rank").mkdir(parents=True)
    (folder / f"results/rank/{CELL}.json").write_text(json.dumps(record(subject(root))))
    (folder / "results/machine.json").write_text(json.dumps({"facts": {"gpu": "NVIDIA H200"}}))
    (folder / "conditions.toml").write_text("[hardware]\nclocks_locked = false\n")
    yield folder
    shutil.rmtree(root / "models/kimi_k3/evidence", ignore_errors=True)


def imported(folder, capsys, *options):
    """(exit code, what was printed as JSON) of sealing `folder` and importing that."""
    file = folder.parent / "sealed.tar.gz"
    sealing.seal(folder, file, None)
    capsys.readouterr()
    code = cli.run(["evidence", "import", str(file), "--json", *options])
    return code, json.loads(capsys.readouterr().out)


def test_a_kit_for_hardware_without_a_grid_of_servers(made, tmp_path, monkeypatch):
    root, folder = made
    monkeypatch.chdir(root)
    kit = Kit.model_validate_json((folder / "kit.json").read_bytes())
    assert [step.id for step in kit.steps] == ["versions", "rank", "rank-claims"] and kit.cells == (CELL,) and kit.pairs == ()
    assert all(known.why_not(command.arguments) is None for step in kit.steps for command in step.commands)
    assert kit.validation == digest_files(
        {p.relative_to(root / "validation").as_posix(): p.read_bytes() for p in (root / "validation").rglob("*") if p.is_file()}
    )
    assert kit.left_out == {"servers": "the grid of servers of kimi_k3 is about gb300"}
    assert kit.requirement.gpus == 1 and kit.requirement.stated == () and "vllm" not in kit.requirement.programs
    assert not (folder / "serve.sh").exists() and not (folder / "servers").exists()
    run, readme = (folder / "run.sh").read_text(), (folder / "README.md").read_text()
    subprocess.run(["bash", "-n"], input=run, text=True, check=True)
    assert "[cuda,gpu]" in run and "PIP_NO_INDEX" in readme and "SPECIALISED_ARGS" not in readme
    with pytest.raises(UserError, match="no cell is called"):
        write("kimi_k3", "h200", tmp_path / "other", gpus=None, rehearsal=False, cells=["tp8-none"])
    with monkeypatch.context() as patch, pytest.raises(UserError, match="no such cell can be run: too wide"):
        patch.setattr(KimiK3Grid, "excluded", lambda self, spec, width: "too wide" if spec.width > 1 else None)
        write("kimi_k3", "h200", tmp_path / "other", gpus=None, rehearsal=False, cells=["*-v8-c*"])
    with pytest.raises(UserError, match="no grid of servers to rehearse on h200"):
        write("kimi_k3", "h200", tmp_path / "other", gpus=None, rehearsal=True)
    every = write("kimi_k3", "h200", tmp_path / "every", gpus=None, rehearsal=False)
    # By hand: two TPs, seven sizes and four of verify steps, KDA and MLA at three contexts; two contexts of steps.
    assert len(every.cells) == 2 * (7 + 4) * (1 + 3) + 2 * 7 and every.requirement.memory_gb > kit.requirement.memory_gb


def test_a_machine_of_one_gpu_says_of_its_clocks_and_no_more(made, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "kit"
    shutil.copytree(made[1], folder)
    card = [{"gpu": "NVIDIA H200", "driver": "580.159.04", "sm_clock": "345", "memory_clock": "3201", "throttled": "false"}]
    monkeypatch.setattr(machine, "nvidia_smi", lambda: card)
    monkeypatch.setattr(machine, "memory_gb", lambda: 33)
    monkeypatch.delenv("KEY", raising=False)
    monkeypatch.delenv("CLOCKS_LOCKED", raising=False)
    kit = json.loads((folder / "kit.json").read_text())
    kit["requirement"] |= {"disk_gb": 0}
    (folder / "kit.json").write_text(json.dumps(kit))
    assert machine.main([], folder) == 1 and "clocks locked: not said" in capsys.readouterr().out
    assert "clocks_locked" not in (folder / "conditions.toml").read_text()
    monkeypatch.setenv("CLOCKS_LOCKED", "false")
    assert machine.main([], folder) == 0
    assert (folder / "conditions.toml").read_text().splitlines()[1:] == ["[hardware]", "clocks_locked = false"]
    monkeypatch.setenv("KEY", "id_ed25519")
    monkeypatch.setattr(machine.shutil, "which", lambda name: None if name == "ssh-keygen" else f"/bin/{name}")
    assert machine.main([], folder) == 1 and "FAIL ssh-keygen is missing" in capsys.readouterr().out


def test_what_comes_back_is_filed_of_the_commit_that_it_measured(back, made, capsys):
    """The installed harness is another one than the commit's: what is measured counts for the commit, and is stale here."""
    options = ("kimi_k3", "--hardware", "h200", "--records", str(back / "results/rank"))
    assert cli.run(["grid", "plan", *options, "--json"]) == 0
    assert {c["standing"] for c in json.loads(capsys.readouterr().out)["cells"] if c["cell"] == CELL} == {"stale"}
    code, found = imported(back, capsys)
    assert (code, found["faults"], found["measured"]) == (0, [], [CELL])
    commit = git(made[0], "rev-parse", "HEAD")[:12]
    assert any(note.startswith(f"it is about commit {commit}") for note in found["notes"])
    assert f"measured with torch 2.11.0+cu130 (2.13.0 is pinned): {CELL}" in found["notes"]
    kept = made[0] / f"models/kimi_k3/evidence/grid/h200/{CELL}.json"
    assert kept.read_bytes() == (back / f"results/rank/{CELL}.json").read_bytes()
    # Once the commit is no ancestor, nobody here can say what it held.
    git(made[0], "checkout", "-q", "--orphan", "other")
    git(made[0], "commit", "-qm", "another history")
    try:
        code, found = imported(back, capsys, "--check")
        assert code == 1 and "the history here has no commit" in found["faults"][0]
    finally:
        git(made[0], "checkout", "-q", "-f", "master" if "master" in git(made[0], "branch") else "main")


def _outcome(**changes):
    return lambda kept: {**kept, "outcome": {**kept["outcome"], **changes}}


def _of(part, **changes):
    return lambda kept: {**kept, "outcome": {**kept["outcome"], part: {**kept["outcome"][part], **changes}}}


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (_of("comparison", ratio=2.5), "the ratio is not what the samples give"),
        (_of("comparison", alpha=0.5), "the ratio is not what the samples give"),
        (_of("comparison", standing="slower"), "the ratio is not what the samples give"),
        (_of("specialised", samples=[40.0] * 24), "the specialised path's time is not what its samples give"),
        (_of("specialised", samples=[50.1] * 23), "its samples, bytes and rates are none"),
        (_of("specialised", samples=[0.0] * 24), "its samples, bytes and rates are none"),
        (_of("stock", microseconds={"median": 100.2, "low": 90.0, "high": 101.0}), "stock path's interval is none of its samples"),
        (_outcome(target_floor_us=49.0), "the floor is not what the bytes give"),
        (_outcome(ceiling_bytes_per_second=0.0), "its samples, bytes and rates are none"),
        (lambda kept: {**kept, "machine": {**CARD, "device": "NVIDIA H100"}}, "was measured on NVIDIA H100"),
        (lambda kept: {**kept, "hardware": "gb300"}, "is about gb300, the kit about h200"),
        (lambda kept: {**kept, "spec": {**kept["spec"], "width": 8, "rows": 8}}, "is about tp8-kda_moe-r8-v8"),
        (lambda kept: {**kept, "spec": {**kept["spec"], "width": 4, "rows": 8}}, "tp8-kda_moe-r8-v4 is no cell of the grid"),
        (lambda kept: {**kept, "subject": {**kept["subject"], "kernels": "0" * 64}}, "about other sources than the kit (kernels)"),
    ],
)  # fmt: skip
def test_a_record_that_was_edited_is_found(back, capsys, edit, says):
    path = back / f"results/rank/{CELL}.json"
    path.write_text(json.dumps(edit(json.loads(path.read_text()))))
    code, found = imported(back, capsys)
    assert code == 1 and any(says in fault for fault in found["faults"]), found["faults"]
    assert found["filed"] == []


def test_claims_of_one_rank_are_derived_again(back, made, capsys):
    """With the installed harness: a kit that was written here, of what is here."""
    folder, root = back.parent / "own", made[0]
    runner = root / "validation/performance/runner.py"
    other = runner.read_text()
    shutil.copytree(back, folder)
    kit = json.loads((folder / "kit.json").read_text())
    (folder / "kit.json").write_text(json.dumps({**kit, "validation": digests.package_digest()}))
    own = grid.Grid(model_dir.load("kimi_k3"), services.contract("kimi_k3"), "h200")
    spec = next(cell.spec for cell in own.cells([CELL]))
    (folder / f"results/rank/{CELL}.json").write_text(json.dumps(record(own.subject(spec))))
    claims = folder / "results/rank-claims.json"
    assert cli.run(["grid", "claim", "kimi_k3", "--hardware", "h200", "--records", str(folder / "results/rank"), "--with",
                    str(folder / "conditions.toml"), "-o", str(claims)]) == 0  # fmt: skip
    code, found = imported(folder, capsys, "--check")
    assert (code, found["faults"]) == (0, []) and runner.read_text() == other
    held = json.loads(claims.read_text())
    held[0]["pairs"][0]["candidate"]["result"]["step_time"]["value"] *= 0.99
    claims.write_text(json.dumps(held))
    code, found = imported(folder, capsys, "--check")
    assert code == 1 and "not what the records give" in found["faults"][0]
    for text, says in (("[hardware]\ndriver = 'x'\n", "was measured"), ("[", "cannot be held"), ("hardware = 5", "cannot be held")):
        (folder / "conditions.toml").write_text(text)
        code, found = imported(folder, capsys, "--check")
        assert code == 1 and any(says in fault for fault in found["faults"]), found["faults"]


def test_doctor_holds_installed_versions_against_pins(tmp_path, capsys):
    from importlib.metadata import version

    have = version("pydantic")
    (tmp_path / "pins.txt").write_text(f"# a comment\npydantic=={have}\nno-such-package==1\n")
    cli.run(["doctor", "--pins", str(tmp_path / "pins.txt"), "--json"])
    lines = {line["name"]: line for line in json.loads(capsys.readouterr().out)}
    assert set(lines) == {"python", "triton", "torch", "pins"}
    assert (lines["pins"]["state"], lines["pins"]["what"]) == ("ok", "1 packages have the pinned version, 0 another")
    (tmp_path / "pins.txt").write_text("pydantic==0.1\n")
    assert cli.run(["doctor", "--pins", str(tmp_path / "pins.txt")]) == 1
    out = capsys.readouterr().out
    assert f"1 another: pydantic {have} (0.1 is pinned)\n     pip install pydantic==0.1\n" in out
    assert cli.run(["doctor", "--pins", str(tmp_path / "none.txt")]) == 2
