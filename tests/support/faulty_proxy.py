"""A real proxy before a real server: passes requests on, and spoils what a list of faults says."""

import http.client
import json
import threading
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

Change = Callable[[dict], dict]
"""The body of an answer -> another one"""


class Proxy:
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

    def __enter__(self) -> "Proxy":
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                self._pass(None, "fine")

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with outer._lock:
                    outer.asked += 1
                    fault = outer.faults.pop(0) if outer.faults else "fine"
                self._pass(body, fault)

            def _pass(self, body, fault):
                if fault == "nothing":
                    self.close_connection = True
                    return
                if isinstance(fault, int):
                    self._send(fault, b'{"error": {"message": "later"}}', retry="0")
                    return
                if fault == "html":
                    self._send(200, b"<html><body>Please log in</body></html>", kind="text/html")
                    return
                connection = http.client.HTTPConnection(outer.upstream.hostname, outer.upstream.port, timeout=120)
                connection.request(self.command, self.path, body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                data = answer.read()
                connection.close()
                changes = [outer.always.get(self.path), fault if callable(fault) else None]
                for change in filter(None, changes):
                    if answer.status == 200:
                        data = json.dumps(change(json.loads(data))).encode()
                if fault == "half":
                    self._send(answer.status, data, cut=len(data) // 2)
                    return
                if body is not None:
                    with outer._lock:
                        outer.answered.append(json.loads(body))
                self._send(answer.status, data)

            def _send(self, status, data, kind="application/json", retry=None, cut=None):
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                if retry is not None:
                    self.send_header("Retry-After", retry)
                self.end_headers()
                self.wfile.write(data[:cut])
                self.close_connection = self.close_connection or cut is not None

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request, address):
                pass

        self._server = Quiet(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"
