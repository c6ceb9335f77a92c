"""Sealed files from somebody who means harm, or whose disk does: refused or filed in their place, and never a traceback."""

import io
import json
import shutil
import subprocess
import tarfile

import pytest
import server_grids
from fasttrack import cli, model_dir, strict_json
from fasttrack.kit import filing, sealing
from fasttrack.kit.plan import Kit
from fasttrack.kit.write import write
from fasttrack_validation.errors import UserError

CELL = "tp8-mixed_prefill-b4-i1024-off"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(checkout with the shipped model, a kit that was run)."""
    root, place = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("kits")
    source = model_dir.installed_models() / "kimi_k3"
    shutil.copytree(source, root / "models/kimi_k3", ignore=shutil.ignore_patterns("__pycache__", "evidence"))
    (root / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    (root / "constraints.txt").write_text("numpy==1.2.3\n")
    for command in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "c"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        write("kimi_k3", "gb300", place / "kit", gpus=16, rehearsal=False)
    run = place / "run"
    shutil.copytree(place / "kit", run)
    kit = Kit.model_validate_json((run / "kit.json").read_bytes())
    record = server_grids.record(subject=kit.subject, hardware="gb300")
    side = server_grids.side("specialised", [0.006] * 6, kit.commit, **{"identity.commit": kit.commit})
    record = record.model_copy(update={"outcome": record.outcome.model_copy(update={"specialised": side})})
    (run / "results/grid").mkdir(parents=True)
    (run / f"results/grid/{CELL}.json").write_text(record.model_dump_json() + "\n")
    (run / "results/machine.json").write_text(json.dumps({"facts": {"gpu": "NVIDIA GB300"}}))
    return root, run


@pytest.fixture
def back(made, tmp_path, monkeypatch):
    """A copy of the kit that was run, in the checkout; afterwards the model directory is as before."""
    root, run = made
    monkeypatch.chdir(root)
    shutil.copytree(run, tmp_path / "back")
    yield tmp_path / "back"
    evidence = root / "models/kimi_k3/evidence"
    evidence.unlink() if evidence.is_symlink() else shutil.rmtree(evidence, ignore_errors=True)


def imported(folder, capsys, *options):
    """(exit code, what was printed as JSON) of sealing `folder` and importing that."""
    file = folder.parent / "sealed.tar.gz"
    sealing.seal(folder, file, None)
    code = cli.run(["evidence", "import", str(file), "--json", *options])
    return code, json.loads(capsys.readouterr().out)


def edited(folder, **changes):
    path = folder / "kit.json"
    kit = json.loads(path.read_text())
    for key, value in changes.items():
        kit[key] = {**kit[key], **value} if isinstance(value, dict) else value
    path.write_text(json.dumps(kit))


def test_what_the_kit_asks_of_its_machine_is_taken_from_here(back, capsys):
    edited(back, requirement={"gpu": None})
    assert imported(back, capsys, "--check")[1]["faults"] == []  # the machine is a GB300 all the same
    (back / "results/machine.json").write_text('{"facts": {"gpu": "NVIDIA H200"}}')
    code, found = imported(back, capsys, "--check")
    assert code == 1 and found["faults"] == ["it was taken on NVIDIA H200, the kit is for GB300"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hardware": "../../../x"}, "the kit is for ../../../x, the grid of servers of kimi_k3 is about gb300"),
        ({"hardware": "h200"}, "the kit is for h200, the grid of servers of kimi_k3 is about gb300"),
        ({"pairs": [{"tp": 1, "speculation": "off"}]}, "the kit names tp1-off"),
        ({"validation": "0" * 64}, "about other exams or another harness than its commit"),
        ({"subject": "0" * 64}, "about other sources of kimi_k3 than its commit"),
        ({"subject": "0" * 64, "commit": "0" * 40}, "the history here has no commit '000000000000'"),
        ({"subject": "0" * 64, "commit": "HEAD"}, "the history here has no commit 'HEAD'"),
    ],
)
def test_a_kit_whose_own_words_were_edited(back, capsys, change, says):
    edited(back, **change)
    code, found = imported(back, capsys)
    assert code == 1 and any(says in fault for fault in found["faults"]) and found["filed"] == []


DEEP = "[" * 100_000
FILES = [
    ("results/claims.json", DEEP, "nested too deeply"),
    ("results/claims.json", '[{"id": "kimi-k3-gb300-server-mixed-prefill", "pairs": 5}]', "cannot be held against"),
    ("results/claims.json", '[{"id": "kimi-k3-gb300-server-mixed-prefill"}]', "not what the records give"),
    ("results/claims.json", '[["id"]]', "cannot be held against"),
    ("results/numerics/verdict.json", '{"result": "pass"}', "no verdict about two servers"),
    ("results/numerics/verdict.json", DEEP, "no verdict about two servers"),
    ("results/machine.json", DEEP, "no record of a machine"),
    ("results/machine.json", '{"facts": [1]}', "no record of a machine"),
    ("results/grid/more.json", DEEP, "nested too deeply"),
    ("results/grid/more.json", '{"a": 1, "a": 2}', "given twice"),
    ("results/grid/more.json", '{"a": NaN}', "not a number"),
    ("results/grid/more.json", '{"a": 1e999}', "larger than any number"),
]


@pytest.mark.parametrize(("name", "text", "says"), FILES)
def test_files_that_are_no_such_files_are_faults(back, capsys, name, text, says):
    (back / name).parent.mkdir(exist_ok=True)
    (back / name).write_text(text)
    code, found = imported(back, capsys, "--check")
    assert code == 1 and any(says in fault for fault in found["faults"]), found["faults"]


@pytest.mark.parametrize("text", ["exams,²,x\n", f"exams,{'9' * 5000},x\n", "\x00,,\n"])
def test_a_list_of_steps_that_is_none_says_that_they_did_not_run(back, capsys, text):
    (back / "results/steps.csv").write_text(text)
    code, found = imported(back, capsys, "--check")
    assert code == 0 and "step claims: not run" in found["notes"]


@pytest.mark.parametrize("name", [".git/config.json", "con.json", "conftest.json/package.json", "é.json"])
def test_names_that_evidence_may_not_have_are_left_out(back, capsys, name):
    for one in (name, "log.json"):
        (back / "results/numerics" / one).parent.mkdir(parents=True, exist_ok=True)
        (back / "results/numerics" / one).write_text("{}")
    code, found = imported(back, capsys)
    assert code == 0 and any("is not filed" in note for note in found["notes"])
    assert [path for path in found["filed"] if "numerics" in path] == [
        path for path in found["filed"] if path.endswith("numerics/log.json")] != []  # fmt: skip


def test_nothing_is_written_through_a_symbolic_link(back, made, tmp_path, capsys):
    outside = tmp_path / "outside"
    outside.mkdir()
    (made[0] / "models/kimi_k3/evidence").symlink_to(outside)
    code, found = imported(back, capsys)
    assert code == 2 and "is a symbolic link" in found["error"]["what"] and list(outside.iterdir()) == []


@pytest.mark.parametrize("figure", ["tok_s_user", "tpot", "ttft", "latency", "tok_s_system"])
def test_a_figure_that_the_kept_requests_do_not_give(back, capsys, figure):
    path = back / f"results/grid/{CELL}.json"
    record = json.loads(path.read_text())
    record["outcome"]["specialised"]["rounds"][3]["figures"][figure] *= 1.01
    path.write_text(json.dumps(record))
    code, found = imported(back, capsys, "--check")
    assert code == 1 and len(found["faults"]) == 1 and "specialised, round 3: " in found["faults"][0]
    record["outcome"]["specialised"]["rounds"][3]["figures"][figure] /= 1.01
    path.write_text(json.dumps(record))
    assert imported(back, capsys, "--check")[1]["faults"] == []


def test_other_evidence_is_not_overwritten_unasked(back, made, capsys):
    assert imported(back, capsys)[0] == 0
    assert imported(back, capsys)[0] == 0  # the same again is no other evidence
    record = made[0] / f"models/kimi_k3/evidence/grid/gb300/server/{CELL}.json"
    kept = {path: path.read_bytes() for path in sorted(record.parents[3].rglob("*")) if path.is_file()}
    path = back / f"results/grid/{CELL}.json"
    path.write_text(path.read_text() + "\n")
    code, found = imported(back, capsys)
    assert code == 2 and "other evidence lies there already" in found["error"]["what"]
    assert kept == {path: path.read_bytes() for path in kept}
    assert imported(back, capsys, "--replace")[0] == 0 and record.read_bytes() == path.read_bytes()


def test_damage_anywhere_in_the_file_is_told(back, capsys):
    file = back.parent / "sealed.tar.gz"
    sealing.seal(back, file, None)
    data = file.read_bytes()
    for at in range(0, len(data) - 8, len(data) // 60):
        file.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        try:
            sealing.open_sealed(file)  # a header's unused bytes change nothing of what is inside
        except UserError:
            pass
        file.write_bytes(data[:at])
        with pytest.raises(UserError):
            sealing.open_sealed(file)


def test_a_small_file_that_unpacks_to_much_takes_no_memory(back, monkeypatch, capsys):
    monkeypatch.setattr(sealing, "KEPT", 1 << 16)
    raw = back / "results/numerics/raw.json"
    raw.parent.mkdir(parents=True)
    raw.write_bytes(b" " * (1 << 17))
    file = back.parent / "sealed.tar.gz"
    sealing.seal(back, file, None)
    found = sealing.open_sealed(file)
    assert found.long == ("results/numerics/raw.json",) and not set(found.long) & set(found.files)
    assert "results/numerics/raw.json is not filed: of a kind or a size that evidence in a repository may not have" in (
        filing.check(found, None).notes)  # fmt: skip
    monkeypatch.setattr(sealing, "MAX_KEPT", 1 << 10)
    with pytest.raises(UserError, match="records take more than"):
        sealing.open_sealed(file)
    # Digested all the same: a long file that was changed is found.
    monkeypatch.setattr(sealing, "MAX_KEPT", 1 << 30)
    with tarfile.open(file) as archive:
        members = {entry.name: archive.extractfile(entry).read() for entry in archive}
    members["results/numerics/raw.json"] = b"!" + members["results/numerics/raw.json"][1:]
    with tarfile.open(file, "w:gz") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    with pytest.raises(UserError, match="not what its seal says"):
        sealing.open_sealed(file)


def test_a_key_that_is_none(back, capsys):
    key, file = back.parent / "key", back.parent / "sealed.tar.gz"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    sealing.seal(back, file, key)
    (back.parent / "none.pub").write_bytes(b"\xff\xfe")
    for name, code in (("key.pub", 0), ("none.pub", 2), ("absent.pub", 2), (".", 2)):
        assert cli.run(["evidence", "import", str(file), "--from", str(back.parent / name), "--check"]) == code
        assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("text", [b"[NaN]", b"[-Infinity]", b"[1e400]", b'{"a":1,"a":1}', b"[" * 99_999, b"\xff", b"", b"9" * 9999])
def test_strict_json_raises_value_errors_alone(text):
    with pytest.raises(ValueError):
        strict_json.loads(text)
    assert strict_json.loads(b'{"a": [1, 2.5, null, "x"]}') == {"a": [1, 2.5, None, "x"]}
