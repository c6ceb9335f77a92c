"""A hub over real HTTP: datasets of our own text in the published form, some of them gated, at commits of their own."""

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


@dataclass
class FakeHub:
    """Use as a context manager. `files`: by (repository, commit, name); `gated`: repository -> token that may read it."""

    files: dict[tuple[str, str, str], bytes]
    gated: dict[str, str] = field(default_factory=dict)
    branches: dict[tuple[str, str], str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    broken: int | None = None
    """A status that everything is answered with."""

    def __enter__(self) -> "FakeHub":
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def _reply(self, status, data=b"", **headers):
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            def do_HEAD(self):
                self.do_GET()

            def do_GET(self):
                path = unquote(urlsplit(self.path).path)
                outer.asked.append(f"{self.command} {path}")
                if outer.broken is not None:
                    return self._reply(outer.broken)
                parts = path.strip("/").split("/")
                api = parts[0] == "api"
                repository = "/".join(parts[2:4] if api else parts[1:3])
                token = outer.gated.get(repository)
                if token is not None and not api and self.headers.get("Authorization") != f"Bearer {token}":
                    code = 403 if self.headers.get("Authorization") else 401
                    return self._reply(code, X_Error_Code="GatedRepo", X_Error_Message="gated")
                if api:
                    commit = outer.branches.get((repository, parts[5] if len(parts) > 5 else "main"))
                    if commit is None:
                        return self._reply(404, X_Error_Code="RevisionNotFound")
                    body = {"id": repository, "sha": commit, "siblings": [], "private": False, "tags": [], "downloads": 0}
                    return self._reply(200, json.dumps(body).encode(), Content_Type="application/json")
                commit, name = parts[4], "/".join(parts[5:])
                data = outer.files.get((repository, commit, name))
                if data is None:
                    return self._reply(404, X_Error_Code="EntryNotFound")
                etag = '"' + hashlib.sha256(data).hexdigest() + '"'
                return self._reply(200, data, ETag=etag, X_Repo_Commit=commit)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"
