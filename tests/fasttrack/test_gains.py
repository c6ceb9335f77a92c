"""What searches on a GPU gained follows from their kept traces, by a second derivation."""

import gzip
import itertools
import json
import math
import re
import statistics
import sys
from pathlib import Path

import pytest

from fasttrack import gains
from fasttrack.model_dir import load
from fasttrack_validation.errors import UserError

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "models/kimi_k3/evidence/search"
TRACES = sorted((FOLDER / "h200").glob("*.jsonl.gz"))


def told() -> dict[str, list[str]]:
    """Cells of the README's table by op."""
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", (FOLDER / "README.md").read_text("utf-8"), re.MULTILINE)
    return {op: cells.split(" | ") for op, cells in rows}


def raw(path: Path) -> tuple[dict, list[tuple[dict, dict]]]:
    """The request and (claim, verdict) of each evaluation, without the code that wrote them."""
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    closed = {line["number"]: line["verdict"] for line in lines if line.get("event") == "close"}
    return lines[0], [(line, closed[line["number"]]) for line in lines if line.get("event") == "claim"]


def timing(verdict: dict) -> dict | None:
    """The one timed cell of a verdict."""
    cells = [cell for cell in verdict["cells"] if cell.get("timing")]
    assert all((cell["hardware"], cell["workload"]) == ("h200", "tp8-b1") for cell in cells)
    return cells[0] if cells else None


def test_the_table_is_drawn_from_the_traces(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import search_gains

    try:
        assert search_gains.table(FOLDER / "h200") in (FOLDER / "README.md").read_text("utf-8")
    finally:
        sys.modules.pop("search_gains")


def test_how_much_of_each_space_was_tried():
    text = (FOLDER / "README.md").read_text("utf-8")
    said = dict(re.findall(r"^- `(\w+)`: .*?\b(\d+ of \d+)\b", text, re.MULTILINE | re.DOTALL))
    for op in ("kda_decode", "mla_query"):
        size = len(list(load("kimi_k3", ROOT).space(op).configurations()))
        assert said[op] == f"{told()[op][7]} of {size}"
    for op in ("routing", "attn_res_norm"):
        assert int(told()[op][7]) == len(list(load("kimi_k3", ROOT).space(op).configurations()))


def test_there_are_three_ops_at_least_and_none_is_worse():
    assert len(TRACES) == len(told()) >= 3
    assert {cells[5] for cells in told().values()} <= {"improved", "matched"}


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name.split("-")[0])
def test_a_row_follows_from_the_raw_samples(path):
    request, evaluated = raw(path)
    assert (request["agent"], request["hardware"], request["workloads"]) == ("search", ["h200"], ["tp8-b1"])
    cells = told()[request["op"]]
    looks = {c["candidate"]: timing(v) for c, v in evaluated if c["stage"] == "screen"}
    assert int(cells[7]) == len(looks) and all(v["status"] == "accepted" for _, v in evaluated)
    assert all(v["executor"] == "gpu: NVIDIA H200 (sm_90)" and v["sandbox"] for _, v in evaluated)
    hand = evaluated[0][0]["candidate"]
    assert evaluated[0][0]["note"] == "a configuration of the dispatch table"
    confirmed = {c["candidate"]: (v, timing(v)) for c, v in evaluated if c["stage"] == "confirm" and timing(v)}
    best = min(looks, key=lambda digest: looks[digest]["cell"]["microseconds"])
    assert set(confirmed) == {hand, best}

    def samples(digest: str) -> tuple[list[float], list[float]]:
        found = confirmed[digest][1]["timing"]["samples"]
        return found["candidate"], found["stock"]

    def shown(cell: str) -> list[float]:
        return [float(number) for number in re.findall(r"\d+\.\d+", cell)]

    for cell, digest in ((cells[1], hand), (cells[3], best)):
        assert shown(cell)[0] == pytest.approx(statistics.median(samples(digest)[0]), abs=0.006)
        # All checks ran when it was confirmed, the sanitizers too.
        assert all(check["outcome"] == "pass" for check in confirmed[digest][0]["checks"])
    assert shown(cells[6])[0] == pytest.approx(statistics.median(samples(best)[1]), abs=0.006)
    # The ratio without the stock path between them, as a plain reader would take it, is near the one that is shown.
    ratio, low, high = shown(cells[4])
    plain = statistics.median(samples(hand)[0]) / statistics.median(samples(best)[0])
    assert low < ratio < high and ratio == pytest.approx(plain, rel=0.025)
    assert cells[5] == ("improved" if low > 1.01 else "matched" if low > 1 / 1.01 else "")


def test_bounds_invert_the_exact_rank_sum_test():
    """By enumeration: of all orders of four and three samples, at most so many have a bound above a shift of zero."""
    values = [1.0, 2.5, 4.5, 7.0, 11.5, 13.0, 20.0]
    above = below = 0
    for chosen in itertools.combinations(range(7), 4):
        ours = [values[i] for i in chosen]
        theirs = [value for i, value in enumerate(values) if i not in chosen]
        low, estimate, high = gains.shift(ours, theirs, alpha=0.06)
        assert low <= estimate <= high
        above += low > 0
        below += high < 0
    # 35 orders are equally likely: two of them (0.057) reach the rank sums beyond which three (0.086) would lie.
    assert (above, below) == (2, 2)


def test_bounds_shift_with_the_samples_mirror_and_need_enough_of_them():
    ours, theirs = [3.0, 3.1, 3.3, 3.6, 4.0, 4.5], [1.0, 1.2, 1.5, 1.9, 2.4, 3.0]
    low, estimate, high = gains.shift(ours, theirs)
    assert gains.shift(theirs, ours) == (-high, -estimate, -low)
    moved = gains.shift([value + 5 for value in ours], theirs)
    assert moved == pytest.approx((low + 5, estimate + 5, high + 5))
    assert gains.shift([1.0, 2.0], [0.0]) == (-math.inf, 1.5, math.inf)


def edited(path: Path, old: str, new: str, target: Path) -> Path:
    text = gzip.decompress(path.read_bytes()).decode()
    assert old in text
    target.write_bytes(gzip.compress(text.replace(old, new).encode()))
    return target


def test_a_trace_whose_sources_were_edited_is_refused(tmp_path):
    path = next(path for path in TRACES if "routing" in path.name)
    assert gains.read(path).request.op == "routing"
    with pytest.raises(UserError, match="is not of the sources there"):
        gains.read(edited(path, "tl.load", "tl.load ", tmp_path / "edited.jsonl.gz"))
    with pytest.raises(UserError, match="is no trace of a search"):
        gains.read(edited(path, '"event":"claim"', '"event":"clam"', tmp_path / "broken.jsonl.gz"))


def test_without_a_confirmed_time_of_both_nothing_is_compared():
    trace = gains.read(next(path for path in TRACES if "routing" in path.name))
    with pytest.raises(UserError, match="no confirmed time of the table's configuration at h200 tp8-b2"):
        gains.gain(trace, "h200", "tp8-b2")
