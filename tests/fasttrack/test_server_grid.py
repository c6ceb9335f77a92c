"""The server's grid by its commands, on real local servers: every cell with its reason, resume, staleness, claims."""

import json
import shutil
from pathlib import Path

import pytest
import server_grids
from fasttrack import cli, model_dir
from fasttrack.grid import Standing
from fasttrack.server_grid import ServerGrid
from load_server import LoadServer

from fasttrack_validation.claims.documents import read
from fasttrack_validation.load import runner
from fasttrack_validation.performance.serving_grid import serving_grid

SOURCE = Path(model_dir.installed_models()) / "kimi_k3"
COMMON = ["--hardware", "cpu", "--scope", "server"]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory with a small grid, and no tool but our own on the path."""
    (tmp_path / "grid.toml").write_text(server_grids.SMALL)
    turns = [{"text": f"turn {number}", "output_tokens": 6} for number in range(3)]
    (tmp_path / "sessions.jsonl").write_text(json.dumps({"turns": turns}))
    monkeypatch.setenv("FASTTRACK_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fasttrack_validation.load.tools.shutil.which", lambda name: None)
    return tmp_path


@pytest.fixture
def two():
    with LoadServer(first_s=0.01, step_s=0.016) as stock, LoadServer(first_s=0.01, step_s=0.008) as fast:
        yield stock, fast


def servers(place, stock, fast, driver="580", speculation="off"):
    blocks = "".join(
        f'[[server]]\narm = "{arm}"\nurl = "{one.url}"\nmodel = "tiny"\ntp = 1\nspeculation = "{speculation}"\n'
        f'[server.conditions.identity]\ncommit = "{arm}-1"\n[server.conditions.hardware]\ndriver = "{driver}"\n'
        for arm, one in (("stock", stock), ("specialised", fast))
    )
    path = place / "servers.toml"
    path.write_text(f'hardware = "cpu"\n[load]\nrounds = 5\nrequests_each = 1\nsessions = "sessions.jsonl"\n{blocks}')
    return str(path)


def grid(command, *arguments):
    return cli.run(["grid", command, "kimi_k3", *COMMON, "--grid", "grid.toml", "--records", "kept", *arguments])


def cells(capsys, command="show"):
    assert grid(command, "--json") == 0
    return {one["cell"]: one for one in json.loads(capsys.readouterr().out)["cells"]}


def test_a_grid_from_the_plan_to_its_claims(place, two, capsys):
    assert {one["standing"] for one in cells(capsys, "plan").values()} == {"missing"}
    assert grid("run", "--servers", servers(place, *two), "--raw", "raw") == 3
    out = capsys.readouterr().out
    assert "no server of TP 1 with forced speculation is named for: stock, specialised" in out
    found = cells(capsys)
    kinds = {key: one["outcome"]["kind"] for key, one in found.items()}
    assert kinds == {
        "tp1-decode_only-b1-i16-off": "measured", "tp1-decode_only-b1-i16-forced": "not_run",
        "tp1-mixed_prefill-b2-i16-off": "measured", "tp1-agentic-b1-trace-off": "measured",
    }  # fmt: skip
    one = found["tp1-decode_only-b1-i16-off"]["outcome"]
    assert len(one["stock"]["rounds"]) == len(one["specialised"]["rounds"]) == 5
    # both arms were asked the same in a round, and never the same twice
    seeds = [[r["seed"] for r in one[arm]["rounds"]] for arm in ("stock", "specialised")]
    assert seeds[0] == seeds[1] and len(set(seeds[0])) == 5
    assert len(list((place / "raw").glob("*.jsonl.gz"))) == 3
    assert grid("claim", "-o", "claims.json") == 0
    _, items = read(Path("claims.json"))
    assert [item.value.id for item in items] == [f"kimi-k3-cpu-server-{n}" for n in ("decode-only", "mixed-prefill", "agentic")]
    decode = items[0].value
    # No mixed cell has its concurrency, so that it has no end-to-end row.
    assert decode.end_to_end == ()
    assert decode.pairs[0].candidate.identity.engine_version == "9.9"
    capsys.readouterr()
    # Most conditions are unknown: absolute values, and no multiplier anywhere.
    assert cli.run(["claims", "check", "claims.json", "--json"]) in (1, 3)
    assert not [row for one in json.loads(capsys.readouterr().out)["items"] for row in one.get("rows", ()) if row.get("ratio")]


def test_a_run_that_is_cut_off_goes_on_and_repeats_nothing(place, two, capsys, monkeypatch):
    file, real, ran = servers(place, *two), runner.Runner.run, []

    def cut(self, cell):
        if len(ran) == 1:
            raise KeyboardInterrupt
        ran.append(cell.key)
        return real(self, cell)

    off = ["--cell", "*-off"]
    monkeypatch.setattr(runner.Runner, "run", cut)
    assert grid("run", "--servers", file, *off) == 3 and len(list(Path("kept").iterdir())) == 1
    monkeypatch.setattr(runner.Runner, "run", lambda self, cell: (ran.append(cell.key), real(self, cell))[1])
    assert grid("run", "--servers", file, *off) == 0
    assert len(ran) == 3 == len(set(ran))
    assert grid("run", "--servers", file, *off) == 0 and len(ran) == 3
    # The same servers under another driver: nothing of before stands beside what they give now.
    assert grid("run", "--servers", servers(place, *two, driver="590"), "--cell", "*-b1-*-off") == 0
    capsys.readouterr()
    assert grid("show", "--json") == 0
    found = {one["cell"]: one for one in json.loads(capsys.readouterr().out)["cells"]}
    apart = sorted(key for key, one in found.items() if one["standing"] == "apart")
    assert len(ran) == 5 and len(apart) == 1 and "hardware.driver" in found[apart[0]]["outcome"]["reason"]
    assert found[apart[0]]["outcome"]["kind"] == "not_run"
    assert grid("run", "--servers", servers(place, *two, driver="590"), *off) == 0 and len(ran) == 6
    capsys.readouterr()
    assert sum(one["standing"] == "measured" for one in cells(capsys).values()) == 3


def test_a_failing_server_fails_its_cells_and_says_how(place, two, capsys):
    stock, fast = two
    fast.faults = {number: "status" for number in range(3, 300)}
    only = ["--cell", "tp1-mixed*"]
    assert grid("run", "--servers", servers(place, stock, fast), *only) == 1
    out = capsys.readouterr().out
    assert "failed (load): specialised, round 1:" in out and "HTTP 503" in out
    fast.faults = {}
    fast.model = "another"
    assert grid("run", "--servers", servers(place, stock, fast), *only) == 1
    assert "serves another, not tiny" in capsys.readouterr().out
    fast.model = "tiny"
    assert grid("run", "--servers", servers(place, stock, fast), *only) == 0


def test_two_grids_cell_by_cell(place, two, capsys):
    stock, fast = two
    only = ["--cell", "tp1-decode*-off"]
    assert grid("run", "--servers", servers(place, stock, fast), *only) == 0
    shutil.copytree("kept", "before")
    fast.step_s = 0.016
    assert grid("run", "--servers", servers(place, stock, fast), *only, "--fresh") == 0
    capsys.readouterr()
    code = grid("compare", "--with", "before", "--json")
    found = json.loads(capsys.readouterr().out)
    told = [one for one in found["cells"] if one["change"] != "apart"]
    # A busy machine may move the stock arm, which is a reason to compare nothing; where it stands, slower is seen.
    assert code == (1 if told else 4) and found["slower"] == [one["cell"] for one in told]
    assert all(one["ratio"]["value"] < 0.7 for one in told)


def test_what_the_published_grid_needs(capsys):
    assert cli.run(["grid", "plan", "kimi_k3", "--hardware", "gb300", "--scope", "server", "--gpus", "8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["cells"]
    assert len(found) == 184
    assert {one["reason"] for one in found if one["cell"].startswith("tp16")} == {"needs 16 gb300, this machine has 8"}
    assert cli.run(["grid", "plan", "kimi_k3", "--hardware", "h200", "--scope", "server", "--json"]) == 0
    assert {one["standing"] for one in json.loads(capsys.readouterr().out)["cells"]} == {"excluded"}


def test_figures_are_stale_once_the_sources_change(tmp_path, monkeypatch):
    root = tmp_path / "repo"
    shutil.copytree(SOURCE, root / "models/kimi_k3", ignore=shutil.ignore_patterns("__pycache__", "evidence"))
    (root / ".git").mkdir()
    monkeypatch.chdir(root)

    def one():
        return ServerGrid(model_dir.load("kimi_k3"), serving_grid("kimi_k3"), "gb300", 8)

    kept = server_grids.record(subject=one().subject)
    one().keep(kept)
    standing = {cell.spec.key: cell.standing for cell in one().cells()}
    assert standing[kept.cell.key] is Standing.MEASURED
    path = root / "models/kimi_k3/executor.py"
    path.write_text(path.read_text() + "\n# another\n")
    assert {cell.spec.key: cell.standing for cell in one().cells()}[kept.cell.key] is Standing.STALE


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "--servers", "servers.toml", "--tool", "wrk"], "no tool 'wrk'"),
        (["run"], "--servers is missing"),
        (["show", "--plot", "x.svg"], "drawn from its claims"),
        (["plan", "--cell", "tp3-*"], "no cell is called 'tp3-*'"),
    ],
)
def test_wrong_usage_is_named(place, two, capsys, arguments, said):
    servers(place, *two)
    assert grid(*arguments) == 2 and said in capsys.readouterr().err
    assert cli.run(["grid", "plan", "kimi_k3", "--hardware", "h200", "--gpus", "4"]) == 2
    assert "--scope server" in capsys.readouterr().err
