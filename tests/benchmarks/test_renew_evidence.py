"""The command that renews a model's evidence: what is done is not done again, what is unfinished is gone on with."""

import importlib.util
import sys
import tarfile
import time
from pathlib import Path

import pytest
from fasttrack_validation.errors import UserError
from fasttrack_validation.numerics.whole_model import stage
from fasttrack_validation.numerics.whole_model.plan import Settings
from fasttrack_validation.numerics.whole_model.verdict import Subject

PATH = Path(__file__).parents[2] / "benchmarks/renew_evidence.py"
LADDER = """
import sys
from pathlib import Path
records, subject, result = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
records.mkdir(exist_ok=True)
if (records / "run.json").exists() and (records / "run.json").read_text() != subject:
    print(f"{records} holds a run of another subject (harness differ)")
    sys.exit(2)
(records / "run.json").write_text(subject)
with (records / "journal").open("a") as journal:
    journal.write("one\\n")
if result == "stopped":
    sys.exit(3)
(records / "verdict.json").write_text(result)
sys.exit({"pass": 0, "fail": 1}[result])
"""


def loaded(monkeypatch):
    spec = importlib.util.spec_from_file_location("renew_evidence", PATH)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "renew_evidence", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def renew(tmp_path, monkeypatch):
    module = loaded(monkeypatch)
    model = tmp_path / "models/kimi_k3"
    for name in ("dispatch", "evidence/numerics"):
        (model / name).mkdir(parents=True)
    monkeypatch.setattr(module, "MODEL", model)

    def run(*groups, minutes="1", about="these", only=()):
        monkeypatch.setattr(module, "groups", lambda packs: iter(groups))
        monkeypatch.setattr(module, "sources", lambda: about)
        chosen = [word for name in only for word in ("--only", name)]
        monkeypatch.setattr(sys, "argv", ["renew", "packs", "--out", str(tmp_path / "out"), "--minutes", minutes, *chosen])
        module.main()

    run.module, run.model, run.out = module, model, tmp_path / "out"
    return run


def script(renew, name, text, *arguments, seconds=30, done=(0,), records=None):
    return renew.module.Part(name, (sys.executable, "-c", text, *map(str, arguments)), seconds, done, records)


def ladder(renew, subject, result):
    records = renew.model / "evidence/numerics/h200"
    return script(renew, "ladder", LADDER, records, subject, result, done=(0, 1, 3), records=records)


def test_what_is_done_is_not_done_again_until_sources_change(renew, tmp_path):
    count = tmp_path / "count"
    part = script(renew, "one", "import sys; open(sys.argv[1], 'a').write('x')", count)
    for about, times in (("these", 1), ("these", 1), ("others", 2)):
        renew((part,), about=about)
        assert count.read_text() == "x" * times
    with tarfile.open(renew.out / "evidence.tar.gz") as tar:
        assert {"done/one", "logs/one.log", "models/kimi_k3/evidence"} <= set(tar.getnames())


def test_what_fails_is_told_and_begun_again(renew, capsys):
    part = script(renew, "one", "print('so it is'); raise SystemExit(4)")
    for _ in range(2):
        renew((part,))
        said = capsys.readouterr().out
        assert "one: exit 4" in said and "so it is" in said


def test_a_ladder_without_a_verdict_is_gone_on_with_and_its_verdict_kept_beside_it(renew):
    records, verdict = renew.model / "evidence/numerics/h200", renew.model / "evidence/numerics/h200.json"
    verdict.write_text("an older one")
    renew((ladder(renew, "a", "stopped"),))
    assert not verdict.exists() and not (renew.out / "done/ladder").exists()
    renew((ladder(renew, "a", "fail"),))
    assert verdict.read_text() == "fail" and (records / "journal").read_text() == "one\n" * 2
    renew((ladder(renew, "a", "pass"),))  # done, whatever it said
    assert verdict.read_text() == "fail"


def test_records_are_packed_by_part(renew):
    renew((ladder(renew, "a", "pass"),))
    with tarfile.open(renew.out / "ladder.tar.gz") as tar:
        names = {name.removeprefix("models/kimi_k3/evidence/numerics/") for name in tar.getnames()}
    assert names == {"h200", "h200/run.json", "h200/journal", "h200.json"}
    with tarfile.open(renew.out / "evidence.tar.gz") as tar:
        assert not [name for name in tar.getnames() if "numerics" in name]
    assert not list(renew.out.glob(".*"))


def test_records_of_other_sources_are_thrown_away_and_no_others(renew):
    records = renew.model / "evidence/numerics/h200"
    renew((ladder(renew, "a", "pass"),))
    renew((ladder(renew, "b", "pass"),), about="others")
    assert (records / "run.json").read_text() == "b" and (records / "journal").read_text() == "one\n"
    assert (records.with_suffix(".json")).read_text() == "pass"


def test_a_part_that_is_stopped_takes_what_it_started_along(renew, tmp_path, capsys):
    beat = tmp_path / "beat"
    child = "import sys, time\nwhile True:\n    open(sys.argv[1], 'w').write(str(time.time()))\n    time.sleep(0.05)"
    text = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        f"subprocess.Popen([sys.executable, '-c', {child!r}, sys.argv[1]])\n"
        "print('begun', flush=True)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "time.sleep(60)"
    )
    renew((script(renew, "one", text, beat, seconds=3),))
    said = capsys.readouterr().out
    assert "one: stopped at its limit" in said and "begun" in said
    last = beat.read_text()
    time.sleep(0.5)
    assert beat.read_text() == last


def test_parts_of_a_group_run_side_by_side_and_those_asked_for_alone(renew, tmp_path):
    wait = (
        "import pathlib, sys, time\npathlib.Path(sys.argv[1]).touch()\n"
        "while not pathlib.Path(sys.argv[2]).exists(): time.sleep(0.05)"
    )
    one, other = tmp_path / "a", tmp_path / "b"
    renew((script(renew, "one", wait, one, other), script(renew, "other", wait, other, one)), (script(renew, "third", "raise SystemExit(9)"),),
          only=("one", "oth*"))  # fmt: skip
    assert sorted(path.name for path in (renew.out / "done").iterdir()) == ["one", "other"]


def test_sources_are_code_and_not_what_the_parts_write(tmp_path, monkeypatch):
    module = loaded(monkeypatch)
    tree = {
        "fasttrack/cli.py": "", "validation/judge.py": "", "models/kimi_k3/kernels/cuda/a.cu": "",
        "models/kimi_k3/dispatch/experts.toml": "", "models/kimi_k3/evidence/grid/run.py": "", "models/kimi_k3/README.md": "",
    }  # fmt: skip
    for name, text in tree.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(module, "HERE", tmp_path / "benchmarks")
    before, changes = module.sources(), []
    for name in tree:
        (tmp_path / name).write_text("changed")
        changes.append(module.sources() != before)
        before = module.sources()
    assert changes == [True, True, True, False, False, False]


def test_every_cell_of_the_grid_comes_after_what_its_figures_rest_on(monkeypatch):
    names = [part.name for group in loaded(monkeypatch).groups(Path("packs")) for part in group]
    assert names[0] == "confirm" and len(set(names)) == len(names) and names[-1] == "grid-rest"


def test_the_ladder_says_of_other_records_what_is_looked_for(tmp_path, monkeypatch):
    subject = Subject(model="m", checkpoint="c", candidate="d", harness="h", settings=Settings())
    stage._claim(tmp_path, subject)
    with pytest.raises(UserError, match=loaded(monkeypatch).OTHER):
        stage._claim(tmp_path, subject.model_copy(update={"harness": "other"}))
