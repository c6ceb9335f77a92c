"""A forge that answers nonsense, or sends elsewhere: an error that says so, nothing half-done, and the token stays here."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from fasttrack import cli
from fasttrack.forge import sending
from fasttrack.forge.github import GitHub
from fasttrack.targets import profile as profiles
from fasttrack_validation.errors import UserError
from forge_server import NAME, TOKEN, Fault, ForgeServer
from forged_branch import BRANCH, Checkout, gate
from gated_change import M

pytest.importorskip("github", reason="PyGithub is not installed (extra: test)")
SECRET = "s3cret-of-this-environment"


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> Checkout:
    return Checkout.make(tmp_path_factory.mktemp("first"))


@pytest.fixture
def checkout(first, tmp_path) -> Checkout:
    return first.copy(tmp_path)


@pytest.fixture
def server(checkout):
    with ForgeServer(checkout.bare) as found:
        yield found


@pytest.fixture
def stranger():
    """(address, requests) of another server, which writes down what it is sent."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *arguments) -> None:
            pass

        def _any(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            seen.append((self.path, self.headers.get("Authorization")))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        do_GET = do_POST = do_PATCH = _any

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield f"http://localhost:{http.server_port}/api/v3", seen
    http.shutdown()
    http.server_close()


def send(checkout, server, **environment):
    forge = GitHub(NAME, TOKEN, base_url=server.url, backoff=0, pause=0, environment=environment)
    return sending.send(checkout.path, forge, "origin", "alpha", BRANCH, profiles.load("own"), gate=gate, say=lambda line: None)


REPOSITORY = f"repos/{NAME}$"
NONSENSE = [
    ("GET", REPOSITORY, 200, [1, 2]),
    ("GET", REPOSITORY, 200, "hello"),
    ("GET", REPOSITORY, 200, None),
    ("GET", REPOSITORY, 200, {"full_name": NAME, "archived": "x"}),
    ("GET", REPOSITORY, 200, {"full_name": "lane/other", "archived": False}),
    ("GET", REPOSITORY, 200, {"full_name": NAME, "archived": False, "permissions": [1]}),
    ("GET", REPOSITORY, 200, {"full_name": NAME, "archived": False, "permissions": {"push": True}, "url": "ftp://[::1"}),
    ("GET", "pulls\\?", 200, {"a": 1}),
    ("GET", "pulls\\?", 200, [{"number": "x"}]),
    ("GET", "pulls\\?", 200, ["x"]),
    ("GET", "search", 200, {"items": [{"number": "\x1b[31m", "html_url": 3}], "total_count": 1}),
    ("POST", "pulls$", 201, {"number": None}),
    ("POST", "pulls$", 201, {}),
    ("POST", "pulls$", 422, {"message": {"a": 1}, "errors": "x"}),
    ("POST", "pulls$", 422, {"message": "m", "errors": 5}),
    ("POST", "pulls$", 422, {"message": "m", "errors": [[[5]]]}),
]


@pytest.mark.parametrize(("method", "path", "status", "body"), NONSENSE)
def test_nonsense_is_an_error_and_leaves_nothing_behind(checkout, server, method, path, status, body):
    server.faults = [Fault(method, path, status, body, times=9)]
    with pytest.raises(UserError) as told:
        send(checkout, server)
    assert TOKEN not in str(told.value) and checkout.there() is None
    server.faults = []
    assert send(checkout, server).act == "opened"  # the same command, and a server that has come to its senses


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize(("method", "path"), [("GET", REPOSITORY), ("GET", "pulls\\?"), ("POST", "pulls$")])
def test_a_redirect_takes_the_token_nowhere_else(checkout, server, stranger, method, path, status):
    address, seen = stranger
    for target in (address, address.replace("localhost", "127.0.0.1"), address.replace("http:", "https:")):
        server.faults = [Fault(method, path, status, {}, {"Location": f"{target}/repos/{NAME}"}, times=9)]
        with pytest.raises(UserError):
            send(checkout, server)
        assert seen == [] and checkout.there() is None


def test_an_address_in_an_answer_takes_the_token_nowhere_else(checkout, server, stranger):
    address, seen = stranger
    body = {"full_name": NAME, "archived": False, "permissions": {"push": True}, "url": f"{address}/repos/{NAME}"}
    server.faults = [Fault("GET", REPOSITORY, 200, body, times=99)]
    with pytest.raises(UserError, match="no answer of a forge"):
        send(checkout, server)
    assert seen == [] and checkout.there() is None


@pytest.mark.parametrize("where", ["later removed", "message", "name", "link", "honest"])
def test_a_secret_anywhere_in_what_is_pushed(checkout, server, where):
    """Every commit goes to the forge: a file that the next commit takes out again, and what a message says."""
    checkout.git("switch", "--quiet", BRANCH)
    tip = checkout.git("rev-parse", "HEAD")
    if where == "message":
        checkout.git("commit", "--quiet", "--allow-empty", "-m", f"used {SECRET}")
    elif where == "link":
        (checkout.path / M / "link").symlink_to(f"/x/{SECRET}")
        checkout.commit("one")
    else:
        name, text = (SECRET, "x") if where == "name" else ("evidence/log.txt", SECRET if where != "honest" else "nothing")
        checkout.write({f"{M}/{name}": text.encode()})
        checkout.commit("one")
    checkout.git("rm", "-rq", "--ignore-unmatch", f"{M}/evidence/log.txt", f"{M}/{SECRET}", f"{M}/link")
    checkout.git("commit", "--quiet", "--allow-empty", "-m", "out again")
    assert checkout.git("diff", "--name-only", tip, "HEAD") == ""
    checkout.git("switch", "--quiet", "main")
    sent = None
    # A gate that only looks at the outcome stands in for the real one, which refuses some of these for other reasons.
    easy = lambda *arguments: gate(*arguments).model_copy(update={"stages": ()})  # noqa: E731
    forge = GitHub(NAME, TOKEN, base_url=server.url, backoff=0, pause=0, environment={"SOME_TOKEN": SECRET})
    try:
        sent = sending.send(checkout.path, forge, "origin", "alpha", BRANCH, profiles.load("own"), gate=easy, say=lambda line: None)
    except UserError as error:
        assert "holds a secret of this environment" in str(error) and SECRET not in str(error)
    assert (sent is not None) == (where == "honest") and (checkout.there() is not None) == (where == "honest")


def test_what_a_server_says_does_not_act_on_a_terminal(checkout, server, monkeypatch, capsys):
    server.faults = [Fault("GET", REPOSITORY, 400, {"message": "\x1b[2J\x1b]0;evil\x07 no"}, times=9)]
    monkeypatch.chdir(checkout.path)
    monkeypatch.setenv("GITHUB_TOKEN", TOKEN)
    arguments = ["pr", "open", "alpha", "--branch", BRANCH, "--repository", NAME, "--api", server.url]
    assert cli.run(arguments) == 2
    said = capsys.readouterr().err
    assert "\\x1b[2J" in said and all(c.isprintable() or c == "\n" for c in said)


def test_a_remote_that_is_an_option_runs_nothing(checkout, server, tmp_path):
    forge = GitHub(NAME, TOKEN, base_url=server.url, backoff=0, pause=0, environment={})
    for remote in (f"--upload-pack=touch {tmp_path}/mark", f"--receive-pack=touch {tmp_path}/mark", "-q", ""):
        with pytest.raises(UserError, match="is no remote"):
            sending.send(checkout.path, forge, remote, "alpha", BRANCH, profiles.load("own"), gate=gate, say=lambda line: None)
    for remote, says in ((f"ext::touch {tmp_path}/mark", "not allowed"), (f"{tmp_path}/absent", "remote's name or address")):
        with pytest.raises(UserError, match=says):
            sending.send(checkout.path, forge, remote, "alpha", BRANCH, profiles.load("own"), gate=gate, say=lambda line: None)
    assert not (tmp_path / "mark").exists()
    sent = sending.send(checkout.path, forge, str(checkout.bare), "alpha", BRANCH, profiles.load("own"), gate=gate, say=lambda line: None)
    assert sent.act == "opened"


def test_a_password_in_a_remotes_address_is_in_no_message(checkout, server):
    forge = GitHub(NAME, TOKEN, base_url=server.url, backoff=0, pause=0, environment={})
    for scheme in ("http", "https"):
        remote = f"{scheme}://user:{SECRET}@127.0.0.1:{server.http.server_port}/{NAME}.git"
        with pytest.raises(UserError) as told:
            sending.send(checkout.path, forge, remote, "alpha", BRANCH, profiles.load("own"), gate=gate, say=lambda line: None)
        assert SECRET not in str(told.value)


@pytest.mark.parametrize("name", ["../b", "a/..", "-a/b", "a/b/c", "a", "./.", "a b/c"])
def test_a_repository_that_is_none(checkout, monkeypatch, capsys, name):
    monkeypatch.chdir(checkout.path)
    monkeypatch.setenv("GITHUB_TOKEN", TOKEN)
    assert cli.run(["pr", "open", "alpha", "--branch", BRANCH, f"--repository={name}", "--api", "http://127.0.0.1:1"]) == 2
    assert "is no repository" in capsys.readouterr().err
