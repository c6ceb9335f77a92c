"""Drafts over real HTTP against a small GitHub, pushed to a real bare repository."""

import json
from dataclasses import replace

import pytest
from fasttrack import cli
from fasttrack.forge import sending
from fasttrack.forge.github import GitHub, token
from fasttrack.forge.proposal import OWNER_BEGINS, owner_paragraph
from fasttrack.git import Repository
from fasttrack.targets import profile as profiles
from fasttrack_validation.errors import UserError
from forge_server import NAME, TOKEN, Fault, ForgeServer
from forged_branch import BRANCH, Checkout, gate
from gated_change import KERNEL, M, STATEMENT

pytest.importorskip("github", reason="PyGithub is not installed (extra: test)")
WRITTEN = "I read the schedule and answer for it."


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


def client(server, secret: str = TOKEN, **environment: str) -> GitHub:
    return GitHub(NAME, secret, base_url=server.url, backoff=0, pause=0, environment=environment)


def send(checkout, server, **options) -> sending.Sent:
    said = options.setdefault("say", lambda line: None)
    assert said
    return sending.send(checkout.path, options.pop("forge", None) or client(server), "origin", "alpha", BRANCH,
                        profiles.load("own"), gate=gate, **options)  # fmt: skip


def ready(checkout, server) -> sending.Sent:
    return sending.ready(checkout.path, client(server), "origin", "alpha", BRANCH, profiles.load("own"), gate=gate)


def test_a_draft_is_opened_and_running_it_again_changes_nothing(checkout, server):
    before = Repository.open(checkout.path).state()
    sent = send(checkout, server)
    assert (sent.act, sent.number, sent.draft) == ("opened", 1, True)
    assert checkout.there() == sent.commit and server.labels == {1: ["fast-track"]}
    held = server.pulls[1]
    assert held["draft"] and held["base"] == "main" and held["title"] == "alpha: decode"
    for part in ("## Owner's paragraph", "agent `search`", "A search of the open pull requests", "- [ ] the owner's paragraph"):
        assert part in held["body"]
    assert TOKEN not in json.dumps(server.pulls)
    again = send(checkout, server)
    assert (again.act, again.number, len(server.calls("PATCH"))) == ("unchanged", 1, 0)
    # Only what git itself remembers of the remote, its tracking refs, may differ.
    assert replace(Repository.open(checkout.path).state(), refs="") == replace(before, refs="")


def test_a_new_commit_updates_the_same_pull_request_and_keeps_the_owners_words(checkout, server):
    first = send(checkout, server)
    server.pulls[1]["body"] = server.pulls[1]["body"].replace(OWNER_BEGINS, f"{OWNER_BEGINS}\n{WRITTEN}\n\nTwo lines.\n", 1)
    kept = server.pulls[1]["body"].split(WRITTEN)[1].split("*To be")[1]
    server.pulls[1]["body"] = server.pulls[1]["body"].replace("*To be" + kept[: kept.index("<!-- end")], "")
    checkout.git("branch", "-D", BRANCH)
    checkout.git("branch", BRANCH, first.commit)
    commit = checkout.add({f"{M}/README.md": b"# alpha\n"})
    with pytest.raises(UserError, match="leaves out README.md"):
        send(checkout, server)  # the report does not tell of it yet
    assert checkout.there() == first.commit
    checkout.git("branch", "-f", BRANCH, first.commit)
    commit = checkout.propose(kernel=b"from . import shared  # still better\n")
    with pytest.raises(UserError, match="--replace"):
        send(checkout, server)
    sent = send(checkout, server, replace=True)
    assert (sent.act, sent.number, sent.commit, len(server.pulls)) == ("updated", 1, commit, 1)
    assert checkout.there() == commit and owner_paragraph(server.pulls[1]["body"]) == f"{WRITTEN}\n\nTwo lines."
    assert "the owner's paragraph is empty" not in " ".join(sent.blockers)


def test_ready_is_refused_without_the_owners_paragraph(checkout, server):
    send(checkout, server)
    with pytest.raises(UserError, match="the owner's paragraph is empty"):
        ready(checkout, server)
    assert server.pulls[1]["draft"]


def test_ready_with_everything_settled(checkout, server, monkeypatch):
    """The measurement of the fixture is self-reported; a gate that found it attested stands in for a signature."""
    checkout.propose(owner=WRITTEN)
    sent = send(checkout, server)
    with pytest.raises(UserError, match="nobody attests"):
        ready(checkout, server)
    attested = lambda *arguments: gate(*arguments).model_copy(update={"draft_only": ()})  # noqa: E731
    done = sending.ready(checkout.path, client(server), "origin", "alpha", BRANCH, profiles.load("own"), gate=attested)
    assert (done.act, done.draft, server.pulls[1]["draft"]) == ("ready", False, False)
    # Something is open again: it goes back.
    assert sent.blockers and send(checkout, server).draft and server.pulls[1]["draft"]


def test_ready_needs_the_commit_that_is_there(checkout, server):
    with pytest.raises(UserError, match="no open pull request"):
        ready(checkout, server)
    send(checkout, server)
    checkout.propose(kernel=b"from . import shared  # other\n")
    with pytest.raises(UserError, match="bring both together"):
        ready(checkout, server)


def test_a_base_that_moved_elsewhere_is_told(checkout, server):
    moved = checkout.move_base({"core.py": b"CORE = 2\n"})
    sent = send(checkout, server)
    assert sent.moved and sent.base_commit == moved
    assert f"the branch to merge into is at `{moved}` now" in server.pulls[1]["body"]


def test_a_base_that_moved_under_the_change_stops_it(checkout, server):
    checkout.move_base({f"{M}/{KERNEL}": b"from . import shared  # theirs\n"})
    with pytest.raises(UserError, match=r"confinement\.conflict.*") as stopped:
        send(checkout, server)
    assert "rebase" in stopped.value.how and checkout.there() is None and server.pulls == {}


def test_policy_of_a_moved_base_counts(checkout, server):
    checkout.move_base({"validation/judge/verdict.py": b"JUDGE = 2\n"})
    with pytest.raises(UserError, match="evidence.stale"):
        send(checkout, server)


REFUSALS = [
    ("the forge does not take the token", {"secret": "ghp_another-token-entirely"}, []),
    ("may not push", {"push": False}, []),
    ("archived", {"archived": True}, []),
    ("rate limit", {}, [Fault("GET", f"/repos/{NAME}$", 403, {"message": "API rate limit exceeded for user"},
                              {"x-ratelimit-reset": "1700000000", "x-ratelimit-remaining": "0"}, times=99)]),
    ("token may not see", {}, [Fault("GET", f"/repos/{NAME}$", 404, {"message": "Not Found"}, times=99)]),
    ("no such branch", {}, [Fault("GET", "/branches/main", 404, {"message": "Branch not found"}, times=99)]),
    ("status 502|Server Error|cannot be reached", {}, [Fault("GET", f"/repos/{NAME}$", 502, {"message": "Server Error"}, times=99)]),
    ("cannot be reached", {}, [Fault("GET", f"/repos/{NAME}$", 0, {}, times=99)]),
]  # fmt: skip


@pytest.mark.parametrize(("says", "state", "faults"), REFUSALS, ids=[one[0] for one in REFUSALS])
def test_what_is_refused_beforehand_leaves_nothing_behind(checkout, server, says, state, faults):
    server.faults += [Fault(**vars(fault)) for fault in faults]
    secret = state.pop("secret", TOKEN) if "secret" in state else TOKEN
    for name, value in state.items():
        setattr(server, name, value)
    with pytest.raises(UserError, match=says) as refused:
        send(checkout, server, forge=client(server, secret))
    assert checkout.there() is None and server.pulls == {}
    assert secret not in f"{refused.value.what} {refused.value.how}"


def test_rate_limit_says_when(checkout, server):
    server.faults.append(Fault("GET", f"/repos/{NAME}$", 403, {"message": "API rate limit exceeded"},
                               {"x-ratelimit-reset": "1700000000"}))  # fmt: skip
    with pytest.raises(UserError) as refused:
        send(checkout, server)
    assert refused.value.how == "try again after 22:13 UTC"  # 1700000000 s = 2023-11-14 22:13:20 UTC


def test_passing_troubles_are_ridden_out(checkout, server):
    server.faults += [Fault("GET", f"/repos/{NAME}$", 503, {}, times=2), Fault("POST", "/pulls$", 500, {}, times=2),
                      Fault("GET", "search", 0, {}, times=1)]  # fmt: skip
    assert send(checkout, server).act == "opened"


def test_a_pull_request_that_opened_before_the_answer_was_lost_is_found(checkout, server):
    server.faults.append(Fault("POST", "/pulls$", 422, {"message": "Validation Failed", "errors": [
        {"message": f"A pull request already exists for lane:{BRANCH}."}]}))  # fmt: skip
    commit = checkout.git("rev-parse", BRANCH)
    checkout.git("push", "--quiet", "origin", f"{commit}:refs/heads/{BRANCH}")
    server._create({"head": f"lane:{BRANCH}", "base": "main", "title": "t", "body": "", "draft": True})
    held = server.pulls.pop(1)
    original = server._route

    def route(method, path, body):
        if method == "GET" and "/pulls" in path and len([one for one in server.seen if one[0] == "POST"]) > 0:
            server.pulls[1] = held
        return original(method, path, body)

    server._route = route
    assert send(checkout, server).number == 1


def test_a_draft_that_cannot_be_opened_takes_its_branch_back(checkout, server):
    server.faults.append(Fault("POST", "/pulls$", 422, {"message": "Validation Failed", "errors": [
        {"message": "Draft pull requests are not supported in this repository."}]}, times=9))  # fmt: skip
    with pytest.raises(UserError, match="Draft pull requests are not supported"):
        send(checkout, server)
    assert checkout.there() is None


def test_a_protected_branch_is_told_by_git(checkout, server):
    hook = checkout.bare / "hooks/pre-receive"
    hook.write_text("#!/bin/sh\necho 'GH006: Protected branch update failed' >&2\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(UserError, match="git push failed"):
        send(checkout, server)
    assert server.pulls == {}


def test_somebody_elses_branch_and_pull_request_are_left_alone(checkout, server):
    other = checkout.git("rev-parse", "main")
    checkout.git("push", "--quiet", "origin", f"{other}:refs/heads/{BRANCH}")
    server._create({"head": f"lane:{BRANCH}", "base": "main", "title": "mine", "body": "my own words", "draft": False})
    with pytest.raises(UserError, match="was written by a person"):
        send(checkout, server)
    assert server.pulls[1]["body"] == "my own words" and checkout.there() == other


def test_a_branch_with_other_commits_is_not_overwritten(checkout, server):
    foreign = checkout.move_base({"x.md": b"x\n"})
    checkout.git("push", "--quiet", "origin", f"{foreign}:refs/heads/{BRANCH}")
    with pytest.raises(UserError, match="does not hold"):
        send(checkout, server)
    assert checkout.there() == foreign


def test_one_branch_is_pushed_and_nothing_else(checkout, server):
    """No tags, no notes, no second branch, whatever the person's git is set to."""
    checkout.git("config", "push.followTags", "true")
    checkout.git("tag", "-a", "v1", "-m", "a tag", BRANCH)
    checkout.git("notes", "add", "-m", "a note", BRANCH)
    checkout.git("branch", "other", BRANCH)
    send(checkout, server)
    refs = checkout.git("for-each-ref", "--format=%(refname)", where=checkout.bare).splitlines()
    assert refs == [f"refs/heads/{BRANCH}", "refs/heads/main"]


def test_duplicates_are_named(checkout, server):
    server.duplicates = [{"number": 9, "title": "alpha decode <b>", "html_url": "http://forge.example/9", "user": None}]
    sent = send(checkout, server)
    assert [one.number for one in sent.duplicates] == [9]
    assert "- #9: alpha decode &lt;b&gt;" in server.pulls[1]["body"]
    assert any("alpha" in path and "decode" in path for path in server.calls("GET") if "search" in path)


def test_a_secret_is_never_pushed_and_never_shown(checkout, server):
    other = "sk-planted-secret-value"
    checkout.propose(owner=f"the key is {other}")
    with pytest.raises(UserError, match=r"report/.* holds a secret") as refused:
        send(checkout, server, forge=client(server, MY_API_KEY=other))
    assert other not in str(refused.value) and checkout.there() is None


def test_a_failing_gate_sends_nothing(checkout, server):
    checkout.propose(kernel=b"import os\n")
    with pytest.raises(UserError, match="the gate refuses"):
        send(checkout, server)
    assert server.calls("POST") == [] and checkout.there() is None


def test_token_and_address(tmp_path):
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert token({"GH_TOKEN": " abc "}) == "abc" and token({"GITHUB_TOKEN_FILE": str(file)}) == TOKEN
    for bad in ({}, {"GITHUB_TOKEN": "a b"}, {"GITHUB_TOKEN_FILE": str(tmp_path / "no")}):
        with pytest.raises(UserError):
            token(bad)
    for url in ("http://forge.example/api/v3", "https://me:secret@forge.example/api/v3"):
        with pytest.raises(UserError) as refused:
            GitHub(NAME, TOKEN, base_url=url)
        assert "secret@" not in str(refused.value)
    GitHub(NAME, TOKEN, base_url="https://forge.example/api/v3").close()


@pytest.mark.parametrize("target", profiles.names())
def test_each_targets_body_has_all_that_it_asks_for(checkout, server, target):
    profile = profiles.load(target)
    sending.send(checkout.path, client(server), "origin", "alpha", BRANCH, profile, gate=gate, say=lambda line: None)
    body = server.pulls[1]["body"]
    assert [line[3:] for line in body.splitlines() if line.startswith("## ")] == [one.heading for one in profile.section]
    for part in ("fasttrack gate --base", "agent `search`", "A search of the open", "What did not run is not a pass", "- [ ] "):
        assert part in body


def test_the_commands_say_what_is_missing(checkout, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(checkout.path)
    for name in ("GITHUB_TOKEN", "GH_TOKEN", "GITHUB_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    assert cli.run(["pr", "open", "alpha", "--repository", NAME]) == 2
    assert "GITHUB_TOKEN" in capsys.readouterr().err
    assert cli.run(["pr", "open", "alpha", "--repository", "nonsense"]) == 2
    assert cli.run(["pr", "ready", "alpha", "--target", "nowhere"]) == 2
    assert "own, sglang, vllm" in capsys.readouterr().err
    assert STATEMENT
