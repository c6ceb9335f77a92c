"""A small GitHub over real HTTP: the REST calls and the two mutations that drafts need, over a real bare repository.

It keeps its own book of pull requests, reads heads from the repository, and refuses what GitHub refuses: wrong tokens,
branches that are not there, a second pull request for a branch. `faults` are answered in place of the next call that
they match.
"""

import json
import re
import subprocess
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

TOKEN = "ghp_a-token-that-nobody-may-see"
NAME = "lane/stack"


@dataclass
class Fault:
    """One answer: for a method and a pattern of the path. Status 0 closes the connection without a word."""

    method: str
    path: str
    status: int
    body: dict
    headers: dict = field(default_factory=dict)
    times: int = 1


class ForgeServer:
    """Runs while it is a context."""

    def __init__(self, bare: Path) -> None:
        self.bare, self.pulls, self.faults, self.seen = bare, {}, [], []
        self.push, self.archived, self.duplicates, self.labels = True, False, [], {}
        forge = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *arguments) -> None:
                pass

            def _any(self) -> None:
                data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, value, headers = forge.answer(self.command, self.path, self.headers, json.loads(data or "null"))
                if not status:
                    self.close_connection = True
                    return
                text = json.dumps(value).encode()
                self.send_response(status)
                for name, content in {"Content-Type": "application/json", "Content-Length": str(len(text)), **headers}.items():
                    self.send_header(name, content)
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _any

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/api/v3"

    def __enter__(self) -> "ForgeServer":
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error) -> None:
        self.http.shutdown()
        self.http.server_close()

    def head(self, branch: str) -> str | None:
        command = ["git", "--git-dir", str(self.bare), "rev-parse", "--verify", "--quiet", f"refs/heads/{branch}"]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip() or None

    def calls(self, method: str) -> list[str]:
        return [path for verb, path in self.seen if verb == method]

    def answer(self, method: str, path: str, headers, body) -> tuple[int, object, dict]:
        self.seen.append((method, path))
        for fault in self.faults:
            if fault.times and fault.method == method and re.search(fault.path, path):
                fault.times -= 1
                return fault.status, fault.body, fault.headers
        if headers.get("Authorization", "").split(" ")[-1] != TOKEN:
            return 401, {"message": "Bad credentials"}, {}
        return (*self._route(method, path, body), {})

    def _route(self, method: str, path: str, body) -> tuple[int, object]:
        parts = urlsplit(path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if parts.path == "/api/graphql":
            return self._mutate(body)
        if parts.path == "/api/v3/search/issues":
            return 200, {"total_count": len(self.duplicates), "incomplete_results": False, "items": self.duplicates}
        inner = parts.path.removeprefix(f"/api/v3/repos/{NAME}")
        if inner == parts.path:
            return 404, {"message": "Not Found"}
        if inner == "":
            permissions = {"pull": True, "push": self.push}
            return 200, {"id": 1, "name": "stack", "full_name": NAME, "archived": self.archived, "permissions": permissions,
                         "url": f"{self.url}/repos/{NAME}"}  # fmt: skip
        if found := re.fullmatch(r"/branches/(.+)", inner):
            oid = self.head(found[1])
            return (200, {"name": found[1], "commit": {"sha": oid}}) if oid else (404, {"message": "Branch not found"})
        if inner == "/pulls" and method == "GET":
            return 200, [self.shown(n) for n, pull in self.pulls.items() if pull["state"] == "open"
                         and query.get("head", "").split(":")[-1] == pull["branch"] and query.get("base") == pull["base"]]  # fmt: skip
        if inner == "/pulls" and method == "POST":
            return self._create(body)
        if found := re.fullmatch(r"/issues/(\d+)/labels", inner):
            self.labels.setdefault(int(found[1]), []).extend(body["labels"] if isinstance(body, dict) else body)
            return 200, []
        if (found := re.fullmatch(r"/pulls/(\d+)", inner)) and int(found[1]) in self.pulls:
            if method == "PATCH":
                self.pulls[int(found[1])] |= {key: body[key] for key in ("title", "body", "state") if key in body}
            return 200, self.shown(int(found[1]))
        return 404, {"message": "Not Found"}

    def _create(self, body: dict) -> tuple[int, object]:
        branch = body["head"].split(":")[-1]
        problem = None
        if self.head(branch) is None:
            problem = {"resource": "PullRequest", "field": "head", "code": "invalid"}
        elif any(pull["branch"] == branch and pull["state"] == "open" for pull in self.pulls.values()):
            problem = {"resource": "PullRequest", "code": "custom", "message": f"A pull request already exists for {body['head']}."}
        if problem:
            return 422, {"message": "Validation Failed", "errors": [problem]}
        number = len(self.pulls) + 1
        self.pulls[number] = {"branch": branch, "base": body["base"], "title": body["title"], "body": body["body"],
                              "draft": body["draft"], "state": "open"}  # fmt: skip
        return 201, self.shown(number)

    def _mutate(self, body: dict) -> tuple[int, object]:
        name = re.search(r"(markPullRequestReadyForReview|convertPullRequestToDraft)", body["query"])[1]
        number = int(body["variables"]["input"]["pullRequestId"].removeprefix("PR_"))
        self.pulls[number]["draft"] = name == "convertPullRequestToDraft"
        return 200, {"data": {name: {"clientMutationId": None, "pullRequest": {"isDraft": self.pulls[number]["draft"]}}}}

    def shown(self, number: int) -> dict:
        pull = self.pulls[number]
        return {
            "number": number, "node_id": f"PR_{number}", "html_url": f"http://forge.example/{NAME}/pull/{number}",
            "url": f"{self.url}/repos/{NAME}/pulls/{number}", "issue_url": f"{self.url}/repos/{NAME}/issues/{number}",
            "draft": pull["draft"], "title": pull["title"], "body": pull["body"], "state": pull["state"],
            "head": {"ref": pull["branch"], "sha": self.head(pull["branch"])}, "base": {"ref": pull["base"]},
        }  # fmt: skip
