"""A real proxy before a real server: passes requests on, and spoils what a list of faults says."""

import http.client
import json
import threading
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler
from urllib.parse import urlsplit

from local_http import LocalServer, answer

Change = Callable[[dict], dict]
"""The body of an answer -> another one"""


class Proxy(LocalServer):
    """Use as a context manager. `faults` are taken by POST requests in turn, one each; then all is well.

    A fault is a status, "half" (the connection ends within the body), "html", "nothing" (it ends before any answer),
    "fine", or a Change. `always` is a Change of every answer to a path, by path.
    """

    def __init__(
        self, upstream: str, faults: Iterable[int | str | Change] = (), always: dict[str, Change] | None = None
    ) -> None:
        self.upstream, self.faults, self.always = urlsplit(upstream), list(faults), always or {}
        self.answered: list[dict] = []
        """Bodies of POST requests that were passed on and answered whole"""
        self.asked = 0
        self._lock = threading.Lock()

    def get(self, handler: BaseHTTPRequestHandler) -> None:
        self._pass(handler, None, "fine")

    def post(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        with self._lock:
            self.asked += 1
            fault = self.faults.pop(0) if self.faults else "fine"
        self._pass(handler, body, fault)

    def _pass(self, handler: BaseHTTPRequestHandler, body: bytes | None, fault: int | str | Change) -> None:
        if fault == "nothing":
            handler.close_connection = True
            return
        if isinstance(fault, int):
            answer(handler, fault, b'{"error": {"message": "later"}}', retry="0")
            return
        if fault == "html":
            answer(handler, 200, b"<html><body>Please log in</body></html>", "text/html")
            return
        connection = http.client.HTTPConnection(self.upstream.hostname, self.upstream.port, timeout=120)
        connection.request(handler.command, handler.path, body, {"Content-Type": "application/json"})
        got = connection.getresponse()
        data = got.read()
        connection.close()
        changes = [self.always.get(handler.path), fault if callable(fault) else None]
        for change in filter(None, changes):
            if got.status == 200:
                data = json.dumps(change(json.loads(data))).encode()
        if fault == "half":
            answer(handler, got.status, data, cut=len(data) // 2)
            return
        if body is not None:
            with self._lock:
                self.answered.append(json.loads(body))
        answer(handler, got.status, data)
