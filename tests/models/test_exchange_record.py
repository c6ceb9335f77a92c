"""The benchmark of the exchange without a GPU: its time limits, what it makes of lost ranks, and what counts as measured."""

import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "exchange"


@pytest.fixture
def modules(monkeypatch):
    """launch, record and faults, imported as the benchmark imports them."""
    monkeypatch.syspath_prepend(str(FOLDER))
    names = ("launch", "worker", "faults", "record")
    kept = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    yield {name: __import__(name) for name in names}
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(kept)


def test_a_rank_that_hangs_is_stopped_at_the_limit_and_what_it_found_is_kept(modules, monkeypatch, tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(
        "import os, time\n"
        "rank, folder = os.environ['RANK'], os.environ['FOLDER']\n"
        "assert os.environ['NCCL_NVLS_ENABLE'] == '0' and os.environ['TORCH_SYMM_MEM_DISABLE_MULTICAST'] == '1'\n"
        "open(f'{folder}/{rank}.jsonl', 'w').write('{\"right\": true}\\n{\"cut')\n"
        "print('rank', rank)\n"
        "time.sleep(0 if rank == '0' else 600)\n"
    )
    monkeypatch.setattr(modules["launch"], "WORKER", script)
    found = modules["launch"].start("any", [0, 0], {}, 3, tmp_path / "ranks").wait()
    first, second = found["ranks"]
    assert first["ended"] == 0 and "limit of 3 s" in second["ended"]
    assert first["found"] == second["found"] == [{"right": True}] and "rank 1" in second["said"]


def outcome(*events: dict) -> dict:
    return {"ranks": [{"rank": rank, "found": [event] if event else []} for rank, event in enumerate(events)]}


THROUGH, STOPPED = {"event": "through"}, {"event": "stopped", "seconds": 2.1, "said": "rank 0 waited in vain"}


@pytest.mark.parametrize(
    ("scenario", "events", "right"),
    [
        ("none", (THROUGH, THROUGH), True), ("late", (THROUGH, THROUGH), True), ("late", (STOPPED, THROUGH), False),
        ("killed", (STOPPED, {"event": "killed"}), True), ("killed", (THROUGH, {"event": "killed"}), False),
        ("killed", ({**STOPPED, "seconds": 30}, {"event": "killed"}), False), ("killed", (None, None), False),
        ("other batch", (STOPPED, STOPPED), True), ("other batch", (STOPPED, THROUGH), False),
        ("too late", (STOPPED, {"event": "WRONG"}), False), ("stalled", ({"event": "WRONG"}, STOPPED), False),
    ],
)  # fmt: skip
def test_a_lost_rank_has_to_stop_every_other_in_time(modules, scenario, events, right):
    assert modules["faults"].judged(scenario, outcome(*events))["as expected"] is right


def results(mailboxes_right: bool, state: float) -> dict:
    """A run of two ranks: one step examined, one span of each kind timed."""
    step = {
        "stage": "step", "transport": "Mailboxes", "errors": [[0.01 if mailboxes_right else float("nan"), 0.01]],
        "states": {"cache": state}, "right": mailboxes_right,
    }  # fmt: skip
    times = [
        {"stage": "time", "span": span, "rows": 1, "tp": 2, "context": 8, "memory": "ipc", "microseconds": {
            "decode path, mailboxes": {"median": 3.0}, "stock path, NCCL": {"median": 2.0},
        }}
        for span in ("KDA layer", "step")
    ]  # fmt: skip

    def part(name, lines):
        return {"part": name, "ranks": [{"rank": 0, "ended": 0, "found": lines}, {"rank": 1, "ended": 0, "found": []}]}

    return {"devices": [0, 1], "conditions": {}, "parts": [part("model", [step]), part("layers", times)]}


@pytest.mark.parametrize(
    ("right", "state", "outcomes"),
    [(True, 0.01, ("measured", "measured")), (False, 0.01, ("measured", "failed")), (False, float("nan"), ("failed", "failed"))],
)
def test_a_time_counts_only_beside_right_results(modules, tmp_path, right, state, outcomes):
    cells = modules["record"].record(results(right, state), tmp_path)["cells"]
    found = {(cell["what"], cell["path"]): cell for cell in cells if "path" in cell}
    assert (found["layer", "decode path, mailboxes"]["outcome"], found["step", "decode path, mailboxes"]["outcome"]) == outcomes
    # Nobody looked at the stock path's results in this run, so its times are not measured either.
    stock = found["step", "stock path, NCCL"]
    assert stock["outcome"] == "failed" and "not examined" in stock["reason"] and "microseconds" not in stock
    assert {cell["tp"] for cell in cells if cell["outcome"] == "not_run"} == {4, 8}
