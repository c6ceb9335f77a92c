"""Plays for `model_server`: a model that sits a frozen exam over real HTTP, well, badly, or through a bad line."""

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable

from model_server import Exchange, ModelServer, Play, envelope, say

from fasttrack_validation.accuracy.answers import Sampling
from fasttrack_validation.accuracy.draw import Draw
from fasttrack_validation.accuracy.frozen import Exam, Item, Scorer
from fasttrack_validation.accuracy.plan import Plan
from fasttrack_validation.accuracy.rule import Rule

MODEL = "scripted-1"
STOPS = ("<a>", "<b>", "<c>", "<d>", "<e>", "<f>")


def plan(of: Exam, *looks: int, **changes) -> Plan:
    rule = Rule(margin_points=changes.pop("margin_points", 30.0), looks=looks or (2,))
    sampling = Sampling(**{"temperature": 0.7, "top_p": 0.95, "max_tokens": 512, "stop": STOPS, **changes})
    return Plan(exam=of.manifest.exam, exam_sha256=of.digest, items=len(of.items), rule=rule, sampling=sampling)


def item_of(exam: Exam, body: dict) -> Item:
    """The item that a request asks, by what is in its messages and nothing else."""
    found = [i for i in exam.items if [m.model_dump() for m in i.messages] == body["messages"]]
    assert len(found) == 1, "no item, or several, were asked word for word"
    return found[0]


def sits(exam: Exam, wrong_in_100: int = 0, **extra) -> Play:
    """Answers every item; what is wrong depends on the seed. Several repeats of one seed are copies, as at a server."""

    def play(exchange: Exchange) -> None:
        item = item_of(exam, exchange.body)
        draw = Draw("model", json.dumps(exchange.body["seed"]), item.id)
        wrong = draw.below(100) < wrong_in_100
        text = _text(exam, item, wrong=wrong)
        fields = {"reasoning_content": f"Let me see. {draw.letters(60)}", "completion": 100 + draw.below(20), **extra}
        say(fields.pop("text", text), **fields)(exchange)

    return play


def _text(exam: Exam, item: Item, *, wrong: bool) -> str:
    answer = exam.keys[item.id].answer
    if exam.manifest.scorer is Scorer.MRCR:
        return answer if not wrong else answer[: len(item.prefix)] + "nothing"
    if exam.manifest.scorer is Scorer.INTEGER:
        return f"Answer: {int(answer) + wrong}"
    return f"Answer: {answer if not wrong else 'ABCD'[('ABCD'.index(answer) + 1) % 4]}"


def half(exchange: Exchange) -> None:
    """Half an answer, then the connection is gone."""
    exchange.start_stream()
    exchange.chunk({"role": "assistant", "content": "Answer: "})


def html(exchange: Exchange) -> None:
    """A web page with status 200."""
    exchange.raw(200, b"<html><body>Please log in</body></html>", "text/html")


def nothing(exchange: Exchange) -> None:
    """The connection is closed without a byte."""
    exchange.handler.close_connection = True
    exchange.handler.connection.close()


def empty(exchange: Exchange) -> None:
    """Status 200 and no body."""
    exchange.raw(200, b"")


def garbage(exchange: Exchange) -> None:
    """A stream that is no JSON."""
    exchange.start_stream()
    exchange.event("{not json")


def stranger(exchange: Exchange) -> None:
    """A whole answer of another model."""
    exchange.start_stream()
    exchange.event(envelope(choices=[{"index": 0, "delta": {"content": "Answer: 1"}}]) | {"model": "other-2"})
    exchange.event(envelope(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}]) | {"model": "other-2"})
    exchange.event("[DONE]")


def cut_by_server(exchange: Exchange) -> None:
    """An answer that the server gave up on."""
    exchange.start_stream()
    exchange.chunk({"content": "Answer: "}, finish_reason="abort")
    exchange.event("[DONE]")


class BadLine:
    """The first `times` requests for every answer go wrong as `fault` has it; `served` counts the good ones."""

    def __init__(self, good: Play, fault: Callable[[Exchange], None], times: int = 1) -> None:
        self._good, self._fault, self._times = good, fault, times
        self._lock, self._tries = threading.Lock(), Counter()
        self.served: Counter[str] = Counter()

    def __call__(self, exchange: Exchange) -> None:
        wanted = hashlib.sha256(json.dumps([exchange.body["messages"], exchange.body["seed"]]).encode()).hexdigest()
        with self._lock:
            self._tries[wanted] += 1
            bad = self._tries[wanted] <= self._times
            if not bad:
                self.served[wanted] += 1
        (self._fault if bad else self._good)(exchange)


def server(play: Play, kernels: dict[str, int] | None = None, *, forced: bool = False) -> ModelServer:
    """A server with counters; `kernels` {} where it is the stock path."""
    counters = None if kernels is None else {"kernels": kernels, "acceptance_forced": forced}
    return ModelServer([play], counters=counters)
