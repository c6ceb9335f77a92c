"""A server under load, over real HTTP: streams as many tokens as asked, at a pace of its own, and counts as vLLM does."""

import json
import random
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

from local_http import LocalServer, answer

WORDS = [a + b for a in ("ba", "de", "ki", "lo", "mu", "na", "po", "ri", "sa", "tu") for b in ("ba", "ne", "ki", "ro", "zu")]


@dataclass
class LoadServer(LocalServer):
    """Use as a context manager. `faults`: request number -> what goes wrong with it: status, cut, no_usage, hang, error."""

    first_s: float = 0.002
    step_s: float = 0.001
    accepted: int = 1
    model: str = "tiny"
    version: str | None = "9.9"
    metrics: bool = True
    faults: dict[int, str] = field(default_factory=dict)
    text: str | None = None
    requests: list[tuple[str, dict]] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    drafts: int = 0
    prompt_tokens: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def post(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        with self._lock:
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
        with ExitStack() as leaving:
            leaving.callback(self._left)
            try:
                self._stream(handler, json.loads(body), leaving)
            except (BrokenPipeError, ConnectionResetError):
                handler.close_connection = True

    def _left(self) -> None:
        with self._lock:
            self.in_flight -= 1

    def get(self, handler: BaseHTTPRequestHandler) -> None:
        found = {"/v1/models": json.dumps({"object": "list", "data": [{"id": self.model, "object": "model"}]})}
        if self.version is not None:
            found["/version"] = json.dumps({"version": self.version})
        if self.metrics:
            found["/metrics"] = "".join(
                f'# TYPE {name} counter\n{name}{{engine="0",model_name="{self.model}"}} {value:.1f}\n'
                for name, value in (
                    ("vllm:spec_decode_num_drafts_total", self.drafts),
                    ("vllm:spec_decode_num_accepted_tokens_total", self.drafts * (self.accepted - 1)),
                    ("vllm:prefix_cache_queries_total", self.prompt_tokens),
                    ("vllm:prefix_cache_hits_total", self.prompt_tokens // 4),
                )
            )
        text = found.get(handler.path)
        answer(handler, 200 if text is not None else 404, (text or "{}").encode())

    def _stream(self, handler: BaseHTTPRequestHandler, body: dict, leaving: ExitStack) -> None:
        with self._lock:
            number = len(self.requests)
            self.requests.append((handler.path, body))
        fault = self.faults.get(number)
        if fault == "status":
            return answer(handler, 503, b'{"error": {"message": "overloaded"}}')
        if fault == "html":
            return answer(handler, 200, b"<html>hello</html>")
        chat = handler.path.endswith("/chat/completions")
        tokens = body.get("max_tokens") or body.get("max_completion_tokens") or 8
        prompt = sum(len(m["content"].split()) for m in body["messages"]) if chat else len(
            body["prompt"] if isinstance(body["prompt"], list) else body["prompt"].split())  # fmt: skip
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.close_connection = True
        if chat:
            _event(handler, chat, {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        source, sent = random.Random(f"{body.get('seed')} {number}"), 0
        began = time.perf_counter()
        while sent < tokens:
            now = min(self.accepted, tokens - sent)
            steps = sent // self.accepted
            # By the clock, so that a slow machine's sleeps do not add up.
            time.sleep(max(0.0, began + self.first_s + steps * self.step_s - time.perf_counter()))
            piece = self.text or " " + " ".join(source.choice(WORDS) for _ in range(now))
            part = {"delta": {"content": piece}} if chat else {"text": piece}
            _event(handler, chat, {"choices": [{"index": 0, "finish_reason": None, **part}]})
            sent += now
            if fault == "cut" and sent > tokens // 2:
                handler.connection.close()
                return None
            if fault == "error":
                _event(handler, chat, {"error": {"message": "CUDA error: an illegal memory access"}})
                return None
            if fault == "hang":
                time.sleep(30)
        last = {"delta": {}} if chat else {"text": ""}
        _event(handler, chat, {"choices": [{"index": 0, "finish_reason": "length", **last}]})
        if fault != "no_usage":
            usage = {"prompt_tokens": prompt, "completion_tokens": sent, "total_tokens": prompt + sent}
            _event(handler, chat, {"choices": [], "usage": usage})
        with self._lock:
            self.drafts += -(-tokens // self.accepted)
            self.prompt_tokens += prompt
        leaving.close()  # before the client can know: its next request may overtake what this thread does after it
        handler.wfile.write(b"data: [DONE]\n\n")
        return None


def _event(handler: BaseHTTPRequestHandler, chat: bool, value: dict) -> None:
    kind = "chat.completion.chunk" if chat else "text_completion"
    handler.wfile.write(f"data: {json.dumps({'id': 'r', 'object': kind, 'created': 1, 'model': 'm', **value})}\n\n".encode())
    handler.wfile.flush()
