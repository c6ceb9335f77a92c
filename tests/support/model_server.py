"""A scripted OpenAI-compatible server over real HTTP: plays models good and bad, and counts the tokens that it serves.

A script is a list of plays, one for each chat request; the last one is repeated. A play gets the `Exchange` and answers
as it likes. The server's count of tokens is its own (characters of what passed over the wire, by four), and is what a
bill is held against.
"""

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Play = Callable[["Exchange"], None]


@dataclass
class Exchange:
    """One request, and the ways to answer it."""

    handler: BaseHTTPRequestHandler
    server: "ModelServer"
    body: dict
    number: int

    @property
    def prompt_tokens(self) -> int:
        return max(1, len(json.dumps(self.body.get("messages", []), ensure_ascii=False)) // 4)

    def bill(self, completion: int, prompt: int | None = None) -> dict:
        """Counts a request; the usage record for it."""
        prompt = self.prompt_tokens if prompt is None else prompt
        self.server.billed.append((prompt, completion))
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def raw(self, status: int, data: bytes, kind: str = "application/json", **headers: str) -> None:
        handler = self.handler
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(data)

    def json(self, status: int, value: object, **headers: str) -> None:
        self.raw(status, json.dumps(value).encode(), **headers)

    def error(self, status: int, message: str, **fields: object) -> None:
        headers = {k: fields.pop(k) for k in list(fields) if k[0].isupper()}
        self.json(status, {"error": {"message": message, "type": "error", **fields}}, **headers)

    def start_stream(self) -> None:
        self.handler.send_response(200)
        self.handler.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.handler.send_header("Connection", "close")
        self.handler.end_headers()
        self.handler.close_connection = True

    def event(self, value: object) -> None:
        data = value if isinstance(value, str) else json.dumps(value)
        self.handler.wfile.write(f"data: {data}\n\n".encode())
        self.handler.wfile.flush()

    def chunk(self, delta: dict, **choice: object) -> None:
        self.event(envelope(choices=[{"index": 0, "delta": delta, **choice}], object="chat.completion.chunk"))


def envelope(**fields: object) -> dict:
    return {"id": "r1", "object": "chat.completion", "created": 1, "model": "scripted-1", **fields}


def tool(name: str, id: str = "c1", **arguments: object) -> dict:
    """A tool call as servers give it."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def say(
    text: str | None = "", *, calls: Sequence[dict] = (), finish: str | None = "stop", usage: bool = True,
    completion: int | None = None, stream: bool | None = None, pieces: int = 3, **message: object,
) -> Play:  # fmt: skip
    """Answers well: as a stream where one was asked for (`stream` overrides), with a count of tokens at its end."""

    def play(exchange: Exchange) -> None:
        calls_ = [dict(call) for call in calls]
        size = len(text or "") + sum(len(json.dumps(c)) for c in calls_) + sum(len(str(v)) for v in message.values())
        counted = exchange.bill(max(1, size // 4) if completion is None else completion)
        reason = "tool_calls" if calls_ and finish == "stop" else finish
        if not (exchange.body.get("stream") if stream is None else stream):
            full = {"role": "assistant", "content": text, **({"tool_calls": calls_} if calls_ else {}), **message}
            answer = envelope(choices=[{"index": 0, "message": full, "finish_reason": reason}])
            exchange.json(200, answer | ({"usage": counted} if usage else {}))
            return
        exchange.start_stream()
        exchange.chunk({"role": "assistant", "content": None if text is None else ""})
        for name, value in message.items():
            exchange.chunk({name: value})
        for part in _pieces(text or "", pieces):
            exchange.chunk({"content": part})
        for index, call in enumerate(calls_):
            arguments = call["function"]["arguments"]
            head = {**call, "index": index, "function": {"name": call["function"]["name"], "arguments": ""}}
            exchange.chunk({"tool_calls": [head]})
            for part in _pieces(arguments, pieces):
                exchange.chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
        if reason is not None:
            exchange.chunk({}, finish_reason=reason)
        if usage and (exchange.body.get("stream_options") or {}).get("include_usage"):
            exchange.event(envelope(choices=[], usage=counted, object="chat.completion.chunk"))
        exchange.event("[DONE]")

    return play


def write(
    text: str | dict, note: str = "", config: dict | None = None, path: str = "kernels/copy.py", **more: object
) -> Play:
    """Writes a candidate and has it judged, in one answer with two tool calls."""
    files = text if isinstance(text, dict) else {path: text}
    listed = [{"path": name, "text": body} for name, body in files.items()]
    return say(
        calls=[tool("write_candidate", "w", files=listed, config=config or {}), tool("evaluate", "e", note=note)],
        **more,
    )


def refuse(status: int, message: str = "", **fields: object) -> Play:
    """Answers with an error."""
    return lambda exchange: exchange.error(status, message, **fields)


def _pieces(text: str, count: int) -> list[str]:
    step = max(1, -(-len(text) // count))
    return [text[at : at + step] for at in range(0, len(text), step)]


@dataclass
class ModelServer:
    """Use as a context manager. `requests` are the bodies of chat requests, `billed` (prompt, completion) of each."""

    script: Sequence[Play]
    key: str | None = None
    models: Sequence[str] = ("scripted-1",)
    counters: dict | None = None
    """What `GET /v1/fasttrack/counters` answers; None: 404."""
    requests: list[dict] = field(default_factory=list)
    headers: list[dict] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    billed: list[tuple[int, int]] = field(default_factory=list)

    def __enter__(self) -> "ModelServer":
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                outer.paths.append(self.path)
                exchange = Exchange(self, outer, {}, -1)
                if self.path.endswith("/fasttrack/counters"):
                    exchange.json(404 if outer.counters is None else 200, outer.counters or {})
                    return
                exchange.json(
                    200,
                    {
                        "object": "list",
                        "data": [{"id": m, "object": "model", "created": 1, "owned_by": "x"} for m in outer.models],
                    },
                )

            def do_CONNECT(self):
                outer.paths.append(f"CONNECT {self.path}")
                self.send_error(502)

            def do_POST(self):
                outer.paths.append(self.path)
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer._lock:
                    number = len(outer.requests)
                    outer.requests.append(body)
                    outer.headers.append({k.lower(): v for k, v in self.headers.items()})
                exchange = Exchange(self, outer, body, number)
                if outer.key is not None and self.headers.get("Authorization") != f"Bearer {outer.key}":
                    exchange.error(
                        401,
                        f"Incorrect API key provided: {self.headers.get('Authorization', '')[7:]}",
                        code="invalid_api_key",
                    )
                    return
                try:
                    outer.script[min(number, len(outer.script) - 1)](exchange)
                except (BrokenPipeError, ConnectionResetError):
                    pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request, address):
                pass

        self._lock = threading.Lock()
        self._server = Quiet(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def totals(self) -> tuple[int, int]:
        """Tokens (in, out) that the server has counted."""
        return sum(p for p, _ in self.billed), sum(c for _, c in self.billed)
