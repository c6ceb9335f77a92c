"""The grid's commands end to end on a copy of the model directory, with a simulated card: run, resume, stale, show."""

import json
import re
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest
from fasttrack import cli, grid_text, model_dir, services
from fasttrack.grid import Standing, summary
from fasttrack_validation.numerics.calibrate import Decision, Ruling
from fasttrack_validation.performance import records
from fasttrack_validation.timing.clocks import Conditions
from fasttrack_validation.timing.comparison import Quad, compare
from fasttrack_validation.timing.session import Method
from fasttrack_validation.timing.statistics import Interval

SOURCE = Path(model_dir.installed_models()) / "kimi_k3"
CELLS = ["--hardware", "h200", "--cell", "tp8-kda_moe-r?"]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with the shipped model directory, without evidence."""
    root = tmp_path / "repo"
    shutil.copytree(SOURCE, root / "models/kimi_k3", ignore=shutil.ignore_patterns("__pycache__", "evidence"))
    (root / ".git").mkdir()
    monkeypatch.chdir(root)
    monkeypatch.setenv("FASTTRACK_HOME", str(tmp_path / "state"))
    return root


def measured(stock=100.0, fast=50.0):
    def path(microseconds):
        return records.Path(
            microseconds=Interval(median=microseconds, low=microseconds, high=microseconds), samples=(microseconds,) * 12,
            kernels=("a", "b", "c"), prepare_seconds=1, first_call_seconds=2, extra_bytes=3,
            rulings=(Ruling(tensor="x", decision=Decision.PASS, message="x: fine"),),
        )  # fmt: skip

    return records.Measured(
        specialised=path(fast), stock=path(stock), comparison=compare([Quad(a1=fast, b1=stock, b2=stock, a2=fast)] * 12),
        target_floor_us=20, physical_floor_us=16, bytes=80, stock_bytes=2 * 80, ceiling_bytes_per_second=4e12,
        method=Method(quads=12, slots=4, cold=0.9, l2_bytes=1), conditions=Conditions(seen=0, unavailable="no NVML"),
        examined_rows=(0,), calls=(records.Call(op="front", kernel="kernels/front.py"),),
    )  # fmt: skip


class Card:
    """A card whose runner answers from `outcomes`; `interrupt_after` cells it is killed."""

    def __init__(self) -> None:
        self.ran, self.outcomes, self.interrupt_after = [], {}, None
        self.machine = {"device": "NVIDIA H200", "torch": "2.11"}

    def run(self, spec):
        if self.interrupt_after is not None and len(self.ran) >= self.interrupt_after:
            raise KeyboardInterrupt
        self.ran.append(spec.key)
        return self.outcomes.get(spec.key, measured())


@pytest.fixture
def card(monkeypatch):
    one = Card()

    @contextmanager
    def runner(*arguments):
        yield one

    monkeypatch.setattr(services, "no_grid_card", lambda hardware: None)
    monkeypatch.setattr(services, "grid_runner", runner)
    return one


def shown(capsys, *arguments):
    assert cli.run(["grid", "show", "kimi_k3", *CELLS, "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("command", ["plan", "run", "show", "compare", "decide", "claim"])
def test_every_command_has_help_with_an_example(command, capsys):
    assert cli.run(["grid", command, "--help"]) == 0
    assert f"Example: `fasttrack grid {command}" in " ".join(capsys.readouterr().out.split())


def test_without_a_gpu_every_cell_says_so_and_nothing_is_kept(checkout, capsys):
    assert cli.run(["grid", "run", "kimi_k3", *CELLS]) == 3
    out = capsys.readouterr().out
    assert "4 cells: 0 kept or excluded, 4 to run" in out and "not run: no GPU here" in out
    assert not (checkout / "models/kimi_k3/evidence").exists()


def test_every_cell_of_the_grid_is_named_with_what_is_known_of_it(checkout, capsys):
    assert cli.run(["grid", "plan", "kimi_k3", "--hardware", "h200", "--json"]) == 0
    cells = {c["cell"]: c for c in json.loads(capsys.readouterr().out)["cells"]}
    # By hand: two TPs, seven plain and four verify sizes, KDA and MLA at three contexts; then two contexts of steps.
    assert len(cells) == 2 * (7 + 4) * (1 + 3) + 2 * 7
    assert cells["tp16-mla_moe-r32-c131072"]["standing"] == "missing"
    assert cells["tp8-kda_moe-r8-v8"]["standing"] == "missing"
    assert cells["tp8-mla_moe-r8-v8-c1024"]["standing"] == "missing"
    assert cells["tp16-step-r1-c1024"]["standing"] == "missing"


def test_measured_cells_are_kept_and_shown_with_their_conditions(checkout, card, capsys):
    assert cli.run(["grid", "run", "kimi_k3", *CELLS]) == 0
    capsys.readouterr()
    assert cli.run(["grid", "show", "kimi_k3", *CELLS]) == 0
    out = capsys.readouterr().out
    assert "tp8-kda_moe-r1" in out and " 2.00 " in out and "3/3" in out
    assert "worst 2.00, geometric mean 2.00, best 2.00 of 4 cells" in out
    assert "one rank, exchange bytes local, no communication" in out and "clocks: no NVML" in out
    assert "device NVIDIA H200" in out
    assert [c["standing"] for c in shown(capsys)["cells"]] == ["measured"] * 4


def test_the_table_of_faster_steps_is_drawn_from_what_is_kept_and_leaves_it_fresh(checkout, card, capsys):
    table = checkout / "models/kimi_k3/dispatch/faster.toml"
    # Layers of 100 us on the stock path; here 50, but for MLA layers of two rows: 69 of 50 and 23 of 300 are more.
    slow = measured(fast=400.0)
    card.outcomes |= {f"tp8-mla_moe-r2-c{context}": slow for context in (1024, 32768, 131072)}
    sizes = ["--hardware", "h200", *(word for n in (1, 2, 4) for kind in ("kda_moe", "mla_moe") for word in ("--cell", f"tp8-{kind}-r{n}*"))]
    assert cli.run(["grid", "run", "kimi_k3", *sizes]) == 0
    before = table.read_bytes()
    capsys.readouterr()
    assert cli.run(["grid", "decide", "kimi_k3", "--hardware", "h200", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    by_size = {(step["tp"], step["tokens"], step["rows"]): step["ratio"] for step in answer["steps"]}
    # By hand: 93 layers, one of them dense and 24 MLA ones.
    assert by_size[8, 1, 1] == pytest.approx(2.0) and by_size[8, 1, 2] == pytest.approx(92 * 100 / (68 * 50 + 24 * 400))
    assert by_size[8, 1, 64] is None and by_size[16, 1, 1] is None
    assert table.read_bytes() == before, "only --write writes"
    assert cli.run(["grid", "decide", "kimi_k3", "--hardware", "h200", "--write"]) == 0
    rows = {(entry.tp, entry.tokens): entry.rows for entry in model_dir.load("kimi_k3").faster().entry}
    assert rows == {(8, 1): 1, (8, 8): 0, (16, 1): 0, (16, 8): 0}
    assert cli.run(["grid", "decide", "kimi_k3", "--hardware", "h200"]) == 0
    out = capsys.readouterr().out
    assert "faster up to 1 rows: TP8\n" in out
    assert "the smallest steps have cells without a figure, so left to the stock path: TP16\n" in out
    assert {c["standing"] for c in shown(capsys)["cells"] if c["cell"] != "tp8-kda_moe-r8"} == {"measured"}


def test_steps_that_are_slower_from_the_first_on_are_left_to_the_stock_path(checkout, card, capsys):
    card.outcomes |= {f"tp8-mla_moe-r1-c{context}": measured(fast=4000.0) for context in (1024, 32768, 131072)}
    sizes = ["--cell", "tp8-kda_moe-r1", "--cell", "tp8-mla_moe-r1-c*"]
    assert cli.run(["grid", "run", "kimi_k3", "--hardware", "h200", *sizes]) == 0
    capsys.readouterr()
    cli.run(["grid", "decide", "kimi_k3", "--hardware", "h200"])
    out = capsys.readouterr().out
    assert "left to the stock path: TP8\n" in out and "so left to the stock path: TP8\n" not in out


def test_a_run_that_was_cut_off_loses_nothing_and_repeats_nothing(checkout, card, capsys):
    card.interrupt_after = 2
    assert cli.run(["grid", "run", "kimi_k3", *CELLS]) == 3
    assert len(list((checkout / "models/kimi_k3/evidence/grid/h200").iterdir())) == 2
    card.interrupt_after = None
    assert cli.run(["grid", "run", "kimi_k3", *CELLS]) == 0
    assert card.ran == [f"tp8-kda_moe-r{rows}" for rows in (1, 2, 4, 8)]
    assert cli.run(["grid", "run", "kimi_k3", *CELLS]) == 0 and len(card.ran) == 4
    assert cli.run(["grid", "run", "kimi_k3", *CELLS, "--fresh"]) == 0 and len(card.ran) == 8


def test_a_failed_cell_is_kept_as_failed_and_tried_again(checkout, card, capsys):
    card.outcomes["tp8-kda_moe-r2"] = records.Failed(stage="results", reason="specialised path: off by 3")
    assert cli.run(["grid", "run", "kimi_k3", *CELLS]) == 1
    assert "failed (results): specialised path: off by 3" in capsys.readouterr().out
    answer = shown(capsys)
    assert answer["summary"] == pytest.approx(
        {"measured": 3, "failed": 1, "not_run": 0, "worst": 2, "best": 2, "geometric_mean": 2}
    )
    del card.outcomes["tp8-kda_moe-r2"]
    assert cli.run(["grid", "run", "kimi_k3", *CELLS]) == 0 and card.ran[-1] == "tp8-kda_moe-r2"


@pytest.mark.parametrize(
    ("file", "old", "new", "stale"),
    [
        ("kernels/front.py", "LATENT = 3584", "LATENT = 3585", "kernels"),
        ("README.md", "# kimi_k3", "# Kimi", None),
        ("executor.py", "Enqueues one call", "Enqueues a call", "decode"),
        ("kernels/mla_core.py", "LATENT = 512", "LATENT = 513", None),
    ],
)
def test_figures_are_stale_once_what_they_are_about_changes_and_only_then(checkout, card, capsys, file, old, new, stale):
    assert cli.run(["grid", "run", "kimi_k3", *CELLS]) == 0
    capsys.readouterr()
    path = checkout / "models/kimi_k3" / file
    path.write_text(path.read_text().replace(old, new))
    cells = shown(capsys)["cells"]
    if stale is None:
        # Another layer's kernel, or no source at all.
        assert {c["standing"] for c in cells} == {"measured"}
        return
    assert {c["standing"] for c in cells} == {"stale"} and f"({stale})" in cells[0]["outcome"]["reason"]
    assert cells[0]["outcome"]["kind"] == "not_run" and cells[0]["machine"] is None


def test_another_configuration_at_the_place_makes_its_cells_stale_alone(checkout, card, capsys):
    assert cli.run(["grid", "run", "kimi_k3", *CELLS]) == 0
    capsys.readouterr()
    path = checkout / "models/kimi_k3/dispatch/routing.toml"
    lines = path.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line == 'hardware = "h200"' and lines[i + 1] == "tp = 8")
    config = next(i for i in range(at, len(lines)) if lines[i].startswith("config"))
    lines[config] = "config = { num_warps = 1 }"
    path.write_text("\n".join(lines) + "\n")
    cells = {c["cell"]: c["standing"] for c in shown(capsys)["cells"]}
    assert cells == {f"tp8-kda_moe-r{rows}": "stale" if rows == 1 else "measured" for rows in (1, 2, 4, 8)}


def test_a_record_that_cannot_be_read_is_named(checkout, card, capsys):
    assert cli.run(["grid", "run", "kimi_k3", *CELLS]) == 0
    capsys.readouterr()
    path = checkout / "models/kimi_k3/evidence/grid/h200/tp8-kda_moe-r1.json"
    path.write_text(path.read_text().replace('"rows": 1,', '"rows": 2,', 1))
    assert cli.run(["grid", "show", "kimi_k3", *CELLS]) == 2
    assert "is about h200 tp8-kda_moe-r2" in capsys.readouterr().err
    path.write_text("{")
    assert cli.run(["grid", "show", "kimi_k3", *CELLS]) == 2
    assert str(path) in capsys.readouterr().err


def test_a_grid_is_held_against_an_earlier_one(checkout, card, capsys, tmp_path):
    """One cell slower, one faster, one gone: by directory, and the earlier one by revision as well."""
    assert cli.run(["grid", "run", "kimi_k3", *CELLS]) == 0
    kept = checkout / "models/kimi_k3/evidence/grid/h200"
    shutil.copytree(kept, tmp_path / "before")
    shutil.rmtree(checkout / ".git")
    for command in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "c"]):
        subprocess.run(["git", *command], cwd=checkout, check=True)
    card.outcomes = {"tp8-kda_moe-r2": measured(fast=55.0), "tp8-kda_moe-r4": measured(fast=45.0)}
    assert cli.run(["grid", "run", "kimi_k3", *CELLS, "--fresh"]) == 0
    (kept / "tp8-kda_moe-r8.json").unlink()
    capsys.readouterr()
    for earlier in (str(tmp_path / "before"), "HEAD"):
        assert cli.run(["grid", "compare", "kimi_k3", "--hardware", "h200", "--with", earlier, "--json"]) == 1
        found = json.loads(capsys.readouterr().out)
        assert found["slower"] == ["tp8-kda_moe-r2"]
        assert {c["cell"][-2:]: c["change"] for c in found["cells"]} == {
            "r1": "same", "r2": "slower", "r4": "faster", "r8": "apart"}  # fmt: skip
    assert cli.run(["grid", "compare", "kimi_k3", "--hardware", "h200", "--with", str(kept)]) == 0
    assert "slower: no cell of 3 compared" in capsys.readouterr().out
    (tmp_path / "empty").mkdir()
    assert cli.run(["grid", "compare", "kimi_k3", "--hardware", "h200", "--with", str(tmp_path / "empty")]) == 4
    assert cli.run(["grid", "compare", "kimi_k3", "--hardware", "h200", "--with", "nothing-of-that-name"]) == 2
    assert "nothing-of-that-name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--hardware", "h201"], "did you mean 'h200'"),
        (["--hardware", "h200", "--cell", "tp4-*"], "no cell is called 'tp4-*'"),
    ],
)
def test_wrong_usage_is_two_lines(checkout, capsys, arguments, text):
    assert cli.run(["grid", "show", "kimi_k3", *arguments]) == 2
    assert text in capsys.readouterr().err


def test_a_drawing_needs_figures_and_says_what_it_cannot_write(checkout, card, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    assert cli.run(["grid", "show", "kimi_k3", *CELLS, "--plot", str(tmp_path / "g.svg")]) == 2
    assert "nothing to draw" in capsys.readouterr().err
    assert cli.run(["grid", "run", "kimi_k3", *CELLS]) == 0
    assert cli.run(["grid", "show", "kimi_k3", *CELLS, "--plot", str(tmp_path / "g.xyz")]) == 2
    assert "name it .svg" in capsys.readouterr().err
    assert cli.run(["grid", "show", "kimi_k3", *CELLS, "--plot", str(tmp_path / "g.svg")]) == 0
    text = (tmp_path / "g.svg").read_text()
    # Black, white and greys alone: whatever has a colour has equal parts of red, green and blue.
    colours = set(re.findall(r"#([0-9a-fA-F]{6})", text))
    assert colours and all(c[:2] == c[2:4] == c[4:] for c in colours)


def test_cells_of_another_driver_are_not_mixed_in(checkout, card, capsys):
    """A grid that a driver's update cut in two: what the old driver measured is run again, and counts in no summary."""
    assert cli.run(["grid", "run", "kimi_k3", *CELLS]) == 0
    kept = checkout / "models/kimi_k3/evidence/grid/h200"
    path = kept / "tp8-kda_moe-r2.json"
    text = path.read_text()
    assert '"torch": "2.11"' in text
    path.write_text(text.replace('"torch": "2.11"', '"torch": "2.10"'))
    capsys.readouterr()
    answer = shown(capsys)
    found = {c["cell"]: (c["standing"], c["outcome"]["kind"]) for c in answer["cells"]}
    assert found["tp8-kda_moe-r2"] == ("apart", "not_run") and answer["summary"]["measured"] == 3
    assert "torch 2.10 and 2.11" in next(c for c in answer["cells"] if c["standing"] == "apart")["outcome"]["reason"]
    assert cli.run(["grid", "run", "kimi_k3", *CELLS]) == 0 and card.ran[4:] == ["tp8-kda_moe-r2"]
    path.unlink()
    card.machine = {**card.machine, "torch": "2.12"}
    assert cli.run(["grid", "run", "kimi_k3", *CELLS]) == 0
    assert "3 kept cells were measured on a machine in another state" in capsys.readouterr().out
    assert sorted(card.ran[5:]) == [f"tp8-kda_moe-r{rows}" for rows in (1, 2, 4, 8)]
    assert [c["standing"] for c in shown(capsys)["cells"]] == ["measured"] * 4


def test_measured_cells_become_a_claim_that_withholds_what_is_unknown(checkout, card, capsys, tmp_path):
    assert cli.run(["grid", "claim", "kimi_k3", *CELLS]) == 2
    assert "nothing to claim" in capsys.readouterr().err
    assert cli.run(["grid", "run", "kimi_k3", *CELLS]) == 0
    out = tmp_path / "rank.json"
    assert cli.run(["grid", "claim", "kimi_k3", *CELLS, "-o", str(out)]) == 0
    capsys.readouterr()
    assert cli.run(["claims", "check", str(out), "--json"]) in (1, 3)
    assert "kimi-k3-h200-rank" in capsys.readouterr().out
    assert cli.run(["claims", "render", str(out)]) in (1, 3)
    rendered = capsys.readouterr().out
    assert "one rank, exchange bytes local, no communication" in rendered and "no multiplier" in rendered


def test_a_summary_names_worst_and_mean_beside_the_best():
    found = summary([measured(100, 50), measured(100, 200), records.NotRun(reason="x")])
    assert found == pytest.approx(
        {"measured": 2, "failed": 0, "not_run": 1, "worst": 0.5, "best": 2.0, "geometric_mean": 1.0}
    )
    assert summary([records.NotRun(reason="x")]) == {"measured": 0, "failed": 0, "not_run": 1}


def test_standings_are_what_the_commands_print():
    assert {str(s) for s in Standing} == {"measured", "failed", "stale", "missing", "excluded", "apart"}


def test_what_a_cell_took_is_told_phase_by_phase():
    begun = [("drawing, and the oracle", 10.0), ("stock path: preparing 4 copies", 12.5), ("timing", 15.0)]
    assert grid_text.phases(begun, 16.25) == "drawing, and the oracle 2.5 s; stock path: preparing 4 copies 2.5 s; timing 1.2 s"
    assert grid_text.phases([], 1.0) == ""
