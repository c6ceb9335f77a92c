"""A real HTTP server of a test, at a port of this machine. What a client that goes away leaves is no failure."""

import threading
from abc import ABC, abstractmethod
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class LocalServer(ABC):
    """Use as a context manager. Subclasses answer requests, each in a thread of its own: `get` and `post`."""

    port = 0
    """To listen at; 0 for a free one"""

    @abstractmethod
    def get(self, handler: BaseHTTPRequestHandler) -> None:
        """Answers a GET request."""

    @abstractmethod
    def post(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        """Answers a POST request."""

    def __enter__(self):
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                outer.get(self)

            def do_POST(self):
                outer.post(self, self.rfile.read(int(self.headers["Content-Length"])))

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request, address):
                pass

        self._server = Quiet(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        """Where OpenAI-compatible clients ask."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"


def answer(
    handler: BaseHTTPRequestHandler, status: int, data: bytes, kind: str = "application/json", *,
    retry: str | None = None, cut: int | None = None,
) -> None:  # fmt: skip
    """One whole answer; of `data` the first `cut` bytes alone, and then the end of the connection."""
    handler.send_response(status)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(data)))
    if retry is not None:
        handler.send_header("Retry-After", retry)
    handler.end_headers()
    handler.wfile.write(data[:cut])
    handler.close_connection = handler.close_connection or cut is not None
