"""An arm sits an exam through lm-eval against a real local server: what the engine alone would get wrong is right here."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import exam_server as plays
import pytest
import recorded_answers as recorded
from model_server import refuse, say

from fasttrack_validation.accuracy import engine
from fasttrack_validation.accuracy.asking import Pace, seed
from fasttrack_validation.accuracy.engine import sit
from fasttrack_validation.accuracy.frozen import Message
from fasttrack_validation.accuracy.generation import Counters, Generation, InProcess
from fasttrack_validation.accuracy.result import judge
from fasttrack_validation.accuracy.rule import Verdict
from fasttrack_validation.accuracy.server import Server
from fasttrack_validation.errors import UserError

pytest.importorskip("lm_eval", reason="pip install 'fasttrack[exams]'")

EXAM = recorded.exam("sample_choices")
LONG = recorded.exam("mrcr_synthetic", needles=(2,), words=(1000,), items_each=3)
QUICK = Pace(workers=4, attempts=4, first_wait=0.01)
ALL = len(EXAM.items) * 2


def run(server, place, *, exam=EXAM, plan=None, arm="candidate", repeats=2, pace=QUICK, **more):
    plan = plan or plays.plan(exam, repeats)
    return sit(exam, plan, Server(server.url, silence=5), arm, place, repeats=repeats, pace=pace, **more)


def test_an_arm_is_recorded_whole(tmp_path):
    with plays.server(plays.sits(EXAM, 30), {"kda_decode": 7}) as server:
        answers = run(server, tmp_path)
    assert {(a.item, a.repeat) for a in answers.answers} == {(i.id, r) for i in EXAM.items for r in (0, 1)}
    assert all(a.reasoning.startswith("Let me see.") and "Let me see" not in a.text for a in answers.answers)
    assert all(a.finish_reason == "stop" and 100 <= a.tokens < 120 and a.prompt_tokens and a.attempts == 1
               for a in answers.answers)  # fmt: skip
    assert all(a.prompt_sha256 == {i.id: i.prompt_sha256 for i in EXAM.items}[a.item] for a in answers.answers)
    right = sum(a.text.endswith(EXAM.keys[a.item].answer) for a in answers.answers)
    assert sum(a.score for a in answers.answers) == right and 0 < right < ALL


def test_every_repeat_has_its_own_seed_and_all_are_scored(tmp_path):
    """lm-eval sends one constant seed, and its tasks score the first repeat only."""
    plan = plays.plan(EXAM, 3)
    with plays.server(plays.sits(EXAM, 40)) as server:
        answers = run(server, tmp_path, plan=plan, repeats=3)
    seeds = [request["seed"] for request in server.requests]
    assert len(set(seeds)) == len(EXAM.items) * 3
    assert {a.seed for a in answers.answers} == set(seeds)
    texts = {item.id: {a.generation for a in answers.answers if a.item == item.id} for item in EXAM.items}
    assert all(len(held) == 3 for held in texts.values())
    assert any(len({a.score for a in answers.answers if a.item == item.id}) == 2 for item in EXAM.items)
    other = {seed(plan, "baseline", item.id, repeat) for item in EXAM.items for repeat in range(3)}
    assert not other & set(seeds)


def test_all_stop_strings_reach_the_server(tmp_path):
    """lm-eval's chat backend sends the first four."""
    with plays.server(plays.sits(EXAM)) as server:
        answers = run(server, tmp_path)
    assert len(plays.STOPS) > 4 and all(request["stop"] == list(plays.STOPS) for request in server.requests)
    assert answers.arm.stop_sent == plays.STOPS
    body = server.requests[0]
    assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0.7, 0.95, 512)


def test_a_server_that_ignores_its_stop_strings_is_refused_before_a_score(tmp_path):
    """The answer is right, and behind the stop string the server went on."""
    plan = plays.plan(EXAM, 2)

    def goes_on(exchange):
        answer = EXAM.keys[plays.item_of(EXAM, exchange.body).id].answer
        ends = exchange.body["stop"][-1]
        plays.sits(EXAM, text=f"Answer: {answer}\n{ends}The next question")(exchange)

    arms = {}
    for arm, play, kernels in (("baseline", plays.sits(EXAM), {}), ("candidate", goes_on, {"k": 1})):
        with plays.server(play, kernels) as server:
            arms[arm] = run(server, tmp_path / arm, arm=arm, plan=plan)
    assert {answer.score for answer in arms["candidate"].answers} == {1.0}
    result = judge(EXAM, plan, arms["baseline"], arms["candidate"])
    assert result.verdict is Verdict.INVALID and result.paired is None
    assert "stop_ignored" in {one.reason for one in result.findings}
    honest = judge(EXAM, plan, arms["baseline"], arms["baseline"])
    assert "stop_ignored" not in {one.reason for one in honest.findings}


def test_null_content_is_kept_as_such_and_refused_before_a_score(tmp_path):
    """lm-eval makes it an empty string that is scored wrong."""
    with plays.server(plays.sits(EXAM, text=None), {}) as server:
        answers = run(server, tmp_path)
    assert all(a.text is None and a.finish_reason == "stop" for a in answers.answers)
    assert reasons(answers) >= {"null_content"}


def test_truncated_answers_are_told_from_wrong_ones(tmp_path):
    """lm-eval stores no finish reason."""
    with plays.server(plays.sits(EXAM, finish="length"), {}) as server:
        answers = run(server, tmp_path)
    assert all(a.truncated for a in answers.answers)
    assert reasons(answers) == {"truncated"}


def reasons(candidate):
    plan = plays.plan(EXAM, 2)
    honest = {"reasoning": "x", "kernels": {}}
    base = [
        a.model_copy(update={"text": f"Answer: {EXAM.keys[a.item].answer}", "reasoning": f"{honest}{a.item}{a.repeat}",
                             "finish_reason": "stop", "score": None})
        for a in candidate.answers
    ]  # fmt: skip
    arm = candidate.arm.model_copy(update={"kernels": {}, "arm": "baseline"})
    ran = candidate.arm.model_copy(update={"kernels": {"kda_decode": 1}})
    found = judge(
        EXAM, plan, type(candidate)(arm, tuple(base)), type(candidate)(ran, candidate.answers)
    )  # fmt: skip
    assert found.verdict is Verdict.INVALID
    return {one.reason for one in found.findings}


def test_conversations_are_asked_turn_by_turn(tmp_path):
    with plays.server(plays.sits(LONG)) as server:
        answers = run(server, tmp_path, exam=LONG)
    assert all(len(request["messages"]) > 5 for request in server.requests)
    assert all(a.score == 1.0 for a in answers.answers)


def test_options_come_in_the_frozen_order_whatever_the_global_generator_holds(tmp_path):
    """lm-eval shuffles GPQA's options with it."""
    import random

    seen = []
    for value in (1, 2):
        random.seed(value)
        with plays.server(plays.sits(EXAM)) as server:
            run(server, tmp_path / str(value))
        seen.append(sorted(json.dumps(request["messages"]) for request in server.requests))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("fault", [
    refuse(429, "slow down"), refuse(500, "oops"), refuse(503), plays.half, plays.html, plays.nothing, plays.empty,
    plays.garbage, plays.stranger, plays.cut_by_server,
], ids=["429", "500", "503", "half", "html", "nothing", "empty", "garbage", "other_model", "abort"])  # fmt: skip
def test_a_bad_line_costs_retries_not_results(tmp_path, fault):
    line = plays.BadLine(plays.sits(EXAM, 30), fault)
    with plays.server(line) as server:
        answers = run(server, tmp_path)
    with plays.server(plays.sits(EXAM, 30)) as good:
        clean = run(good, tmp_path / "clean")
    strip = {"seconds": None, "attempts": None, "prompt_tokens": None}
    assert [a.model_copy(update=strip) for a in answers.answers] == [a.model_copy(update=strip) for a in clean.answers]
    assert all(a.attempts == 2 for a in answers.answers)
    assert len(line.served) == ALL and set(line.served.values()) == {1}


def test_a_dead_server_ends_the_run_and_it_goes_on_later(tmp_path):
    """What came is kept; only what is missing is asked again."""
    count = Counter()

    def dies(exchange):
        count["asked"] += 1
        (plays.sits(EXAM) if count["asked"] <= 5 else refuse(500))(exchange)

    with plays.server(dies) as server:
        with pytest.raises(UserError, match="no answer to .* in 2 requests: .* answers 500"):
            run(server, tmp_path, pace=Pace(workers=1, attempts=2, first_wait=0.01))
    kept = (tmp_path / "answers.jsonl").read_text().splitlines()
    assert len(kept) == 5
    with plays.server(plays.sits(EXAM)) as server:
        answers = run(server, tmp_path)
    assert len(server.requests) == ALL - 5 and len(answers.answers) == ALL
    with plays.server(refuse(500)) as server:
        again = run(server, tmp_path)
    assert again == answers and server.requests == []


def test_a_request_that_cannot_succeed_is_not_repeated(tmp_path):
    with plays.server(refuse(400, "max_tokens is too large")) as server:
        with pytest.raises(UserError, match="refuses the request \\(400\\): .*max_tokens is too large"):
            run(server, tmp_path, pace=Pace(workers=1, attempts=8, first_wait=0.01))
    assert len(server.requests) == 1


def test_retry_after_is_obeyed(tmp_path):
    line = plays.BadLine(plays.sits(EXAM), refuse(429, Retry_After="0.3"))
    with plays.server(line) as server:
        answers = run(server, tmp_path, repeats=1, pace=Pace(workers=8, attempts=2, first_wait=0.0))
    assert all(0.3 <= a.seconds < 5 for a in answers.answers)


_KILLED = """
import sys
sys.path[:0] = {paths!r}
import exam_server as plays, recorded_answers as recorded
from fasttrack_validation.accuracy.asking import Pace
from fasttrack_validation.accuracy.engine import sit
from fasttrack_validation.accuracy.server import Server
from pathlib import Path
exam = recorded.exam("sample_choices")
sit(exam, plays.plan(exam, 2), Server({url!r}), "candidate", Path({place!r}), repeats=2, pace=Pace(workers=2))
"""


def test_kill_9_loses_nothing_and_repeats_nothing_that_was_kept(tmp_path):
    """Killed in the middle, and with a half-written last line on top."""
    support = str(Path(plays.__file__).parent)

    def slow(exchange):
        time.sleep(0.15)
        plays.sits(EXAM)(exchange)

    with plays.server(slow, {"kda_decode": 5}) as server:
        code = _KILLED.format(paths=[support], url=server.url, place=str(tmp_path))
        process = subprocess.Popen([sys.executable, "-c", code])
        journal = tmp_path / "answers.jsonl"
        while not journal.exists() or journal.read_text().count("\n") < 3:
            assert process.poll() is None
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        kept = journal.read_text().count("\n")
        with journal.open("a") as file:
            file.write('{"item":"choice-free')
        before = len(server.requests)
        server.counters = {"kernels": {"kda_decode": 90}, "acceptance_forced": False}
        answers = run(server, tmp_path)
    assert len(server.requests) - before == ALL - kept
    assert len(answers.answers) == ALL
    # The killed session never said how it ended: its launches are those up to the next one's begin.
    assert answers.arm.kernels == {"kda_decode": 85}


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_run_does_not_wait_for_a_silent_server(tmp_path, how):
    """One answer came, the others are under way at a server that would take an hour over them."""
    patient, first = threading.Event(), threading.Event()

    def once(exchange):
        if first.is_set():
            patient.wait(3600)
        first.set()
        plays.sits(EXAM)(exchange)

    # Both: a shell starts what runs in the background with SIGINT ignored, and children inherit that.
    code = f"import signal\nsignal.signal({int(how)}, signal.default_int_handler)\n" + _KILLED
    with plays.server(once, {"kda_decode": 5}) as server:
        source = code.format(paths=[str(Path(plays.__file__).parent)], url=server.url, place=str(tmp_path))
        process = subprocess.Popen([sys.executable, "-c", source], stderr=subprocess.PIPE, text=True)
        journal = tmp_path / "answers.jsonl"
        while not journal.exists() or not journal.read_text() or len(server.requests) < 3:
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(how)
        _, told = process.communicate(timeout=120)
        kept = journal.read_text()
        assert "KeyboardInterrupt" in told and kept.count("\n") == 1
        patient.set()
        before = len(server.requests)
        server.script = [plays.sits(EXAM)]
        answers = run(server, tmp_path)
    assert len(server.requests) - before == ALL - 1 and journal.read_text().startswith(kept)
    assert len(answers.answers) == ALL


def test_a_long_silence_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("fasttrack_validation.accuracy.asking.TICK", 0.05)
    told = []

    def generate(messages, sampling, chosen):
        while told.count((0, ALL)) < 4:
            time.sleep(0.01)
        return Generation(model="here", text="Answer: A", finish_reason="stop", tokens=5)

    sit(EXAM, plays.plan(EXAM, 2), InProcess("here", generate), "baseline", tmp_path, repeats=2,
        progress=lambda done, of: told.append((done, of)))  # fmt: skip
    assert told[:4] == [(0, ALL)] * 4 and told[-1] == (ALL, ALL)


def test_a_full_disk_is_an_error_and_what_was_kept_stays_whole(tmp_path):
    """lm-eval logs a failed save and exits 0."""
    import resource

    code = (
        "import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))\n" + _KILLED
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    with plays.server(plays.sits(EXAM)) as server:
        source = code.format(paths=[str(Path(plays.__file__).parent)], url=server.url, place=str(tmp_path))
        ended = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
        assert ended.returncode and "cannot write" in ended.stderr
        kept = (tmp_path / "answers.jsonl").read_text()
        assert kept.endswith("\n") and 0 < kept.count("\n") < ALL
        asked = len(server.requests)
        answers = run(server, tmp_path)
    assert len(answers.answers) == ALL and len(server.requests) - asked == ALL - kept.count("\n")


def test_another_run_cannot_go_on_in_its_place(tmp_path):
    with plays.server(plays.sits(EXAM)) as server:
        run(server, tmp_path)
        with pytest.raises(UserError, match="another run: plan_sha256 differs"):
            run(server, tmp_path, plan=plays.plan(EXAM, 2, temperature=0.6))
        with pytest.raises(UserError, match="another run: arm differs"):
            run(server, tmp_path, arm="baseline")


def test_two_processes_cannot_write_one_arm(tmp_path):
    from fasttrack_validation.accuracy.journal import Journal

    with Journal(tmp_path, {"a": 1}), pytest.raises(UserError, match="another run is at work"):
        Journal(tmp_path, {"a": 1})


def test_launches_are_those_of_the_sessions(tmp_path):
    from fasttrack_validation.accuracy.journal import Session, total

    def reading(event, count, forced=False):
        kernels = None if count is None else {"k": count}
        return Session(event=event, counters=Counters(kernels=kernels, acceptance_forced=forced))

    def counted(*readings):
        return total([reading(*one) for one in readings])

    assert counted(("begin", 10), ("end", 25)).kernels == {"k": 15}
    # 100 launches between two sessions are somebody else's.
    assert counted(("begin", 10), ("end", 25), ("begin", 125), ("end", 130)).kernels == {"k": 20}
    # Killed, then a restarted server.
    assert counted(("begin", 10), ("begin", 4), ("end", 6)).kernels == {"k": 6}
    assert counted(("begin", 10), ("end", None)).kernels is None
    assert counted(("begin", 10)).kernels is None
    assert counted(("begin", 1, True), ("end", 1)).acceptance_forced is True
    assert counted(("begin", 1, None), ("end", 1)).acceptance_forced is None


def test_a_model_in_this_process_sits_the_same_exam(tmp_path):
    def generate(messages, sampling, chosen):
        assert isinstance(messages[0], Message) and sampling.stop == plays.STOPS
        item = next(item for item in EXAM.items if item.messages == tuple(messages))
        return Generation(model="here", text=f"Answer: {EXAM.keys[item.id].answer}", finish_reason="stop", tokens=5)

    model = InProcess("here", generate, lambda: Counters(kernels={}, acceptance_forced=False))
    answers = sit(EXAM, plays.plan(EXAM, 2), model, "baseline", tmp_path, repeats=2)
    assert {a.score for a in answers.answers} == {1.0} and answers.arm.kernels == {}


def test_progress_goes_up_to_all(tmp_path):
    told = []
    with plays.server(plays.sits(EXAM)) as server:
        run(server, tmp_path, progress=lambda done, of: told.append((done, of)))
    assert told == [(done, ALL) for done in range(ALL + 1)]


def test_scores_that_the_engine_did_not_give_are_an_error():
    """A sample that is lost, doubled, or has "N/A" for a score; a mean that is "N/A"."""
    good = {
        "samples": {"planned_exam": [{"doc": {"item": i.id}, "scores": [1.0, 0.0]} for i in EXAM.items]},
        "results": {"planned_exam": {"score,every": 0.5}},
    }
    assert engine.collect(good, EXAM, 2)[EXAM.items[0].id] == [1.0, 0.0]
    rows = good["samples"]["planned_exam"]
    for broken in (
        rows[1:], [*rows, rows[0]], [rows[0] | {"scores": ["N/A", 1.0]}, *rows[1:]], [rows[0] | {"scores": [1.0]}, *rows[1:]],
    ):  # fmt: skip
        with pytest.raises(UserError, match="the engine scored"):
            engine.collect(good | {"samples": {"planned_exam": broken}}, EXAM, 2)
    for mean in ("N/A", 0.4, None, float("nan")):
        with pytest.raises(UserError, match="the engine's mean"):
            engine.collect(good | {"results": {"planned_exam": {"score,every": mean}}}, EXAM, 2)
    with pytest.raises(UserError, match="the engine scored"):
        engine.collect(None, EXAM, 2)


def test_no_answer_key_is_asked_logged_or_kept(tmp_path, capfd, caplog):
    """The synthetic exam's answers are long and random: none may be in a request, a log or a file of a run."""
    with plays.server(lambda exchange: say("I do not know", completion=5)(exchange)) as server:
        run(server, tmp_path, exam=LONG)
    told = capfd.readouterr()
    asked = json.dumps(server.requests) + told.out + told.err + caplog.text
    held = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    for key in LONG.keys.values():
        assert key.answer not in asked and key.answer not in held
