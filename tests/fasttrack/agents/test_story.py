"""status, history and explain: what they say of runs of any agent, and that looking changes nothing."""

import json
import os
from pathlib import Path

import chatting
import lane_fakes as fakes
import pytest
from model_server import ModelServer, write

from fasttrack import cli, lane, services, story
from fasttrack.archive import Archive


@pytest.fixture
def searched(checkout, monkeypatch):
    """A finished search of four rounds."""
    monkeypatch.chdir(checkout)
    chosen = lane.Options(model="toy", op="copy", checkout=checkout, seed=7, rounds=4, hardware=("h200",))
    return lane.propose(chosen, fakes.services(fakes.Judge()), chatting.Ear())


def said(capsys, *arguments):
    assert cli.run(list(arguments)) == 0
    return capsys.readouterr().out


def test_a_search_is_told_too(searched, capsys):
    text = said(capsys, "status")
    assert f"run {searched.run}: toy/copy, agent search; over" in text and "4 of 4 rounds, 4 accepted" in text
    attempts = json.loads(said(capsys, "history", "--json"))
    by_hand = [sum(fakes.microseconds(a["config"], w) for w in ("tp8-r1", "tp8-r4")) for a in attempts]
    assert [a["microseconds"] for a in attempts] == pytest.approx(by_hand) and not any(a["measured"] for a in attempts)
    assert len(said(capsys, "history", searched.run).splitlines()) == 4
    text = said(capsys, "explain", searched.run)
    assert "No paid requests" in text and "is the first that the judge accepts" in text and "Confirmations" in text
    data = json.loads(said(capsys, "status", "--json"))
    assert data["state"] == "over" and data["exit_code"] == 0 and data["bill"]["requests"] == 0


def test_turning_points_are_gains_and_nothing_else(searched):
    told = story.read(Path(searched.directory))
    best, expected = None, []
    for attempt in told.attempts:
        if best is not None and attempt.microseconds < best * 0.995:
            expected.append(f"attempt {attempt.number} ")
        best = attempt.microseconds if best is None else min(best, attempt.microseconds)
    later = told.turning_points[1:]
    assert len(later) == len(expected) and all(line.startswith(start) for line, start in zip(later, expected, strict=True))


def test_a_run_that_is_held_is_running_and_one_that_is_not_has_stopped(searched):
    directory = Path(searched.directory)
    ledger = directory / "ledger.jsonl"
    lines = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(lines[:3]) + lines[3][:20])  # a claim, its close, a claim; and a torn line
    before = ledger.read_bytes()
    told = story.read(directory)
    assert (told.state, len(told.attempts)) == ("stopped", 1) and "was under way" in told.doing
    assert ledger.read_bytes() == before
    with Archive(directory):
        told = story.read(directory)
        assert told.state == "running" and told.doing.startswith("screening of ") and "is under way" in told.doing
    assert story.read(directory).state == "stopped"


def test_looking_does_not_keep_a_run_from_going_on(searched):
    """Whoever looks takes the lock for a moment; who goes on with the run tries again."""
    import threading
    import time

    from fasttrack import archive

    looking = archive._hold(Path(searched.directory))
    threading.Timer(0.1, os.close, [looking]).start()
    started = time.monotonic()
    with Archive(Path(searched.directory)):
        assert time.monotonic() - started > 0.04


def test_watching_ends_with_the_run(searched, capsys):
    assert said(capsys, "status", "--watch").count("agent search; over") == 1


def test_no_runs_and_unknown_runs(checkout, monkeypatch, capsys):
    monkeypatch.chdir(checkout)
    assert cli.run(["status"]) == 2 and "there are no runs" in capsys.readouterr().err
    assert cli.run(["explain", "nope"]) == 2
    monkeypatch.chdir(os.path.dirname(checkout))
    assert cli.run(["history"]) == 2 and "no checkout" in capsys.readouterr().err


def test_auto_is_chat_where_an_endpoint_is_configured(checkout, monkeypatch, capsys):
    monkeypatch.chdir(checkout)
    monkeypatch.setattr(services, "default", lambda **_: fakes.services(chatting.Judge()))
    with ModelServer([write(chatting.RIGHT, config={"BLOCK": 64})]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("FASTTRACK_MODEL", "scripted-1")
        assert cli.run(["propose", "toy", "--rounds", "1", "--hardware", "h200", "--price", "0"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "agent chat: a model endpoint is configured"
    assert f"requests: 1 answers, {server.totals[0]} tokens in, {server.totals[1]} out, $0.0000" in out
