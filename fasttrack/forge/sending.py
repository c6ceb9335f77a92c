"""Opening a draft, updating it, and taking it out of draft: all that can be refused is asked before anything is pushed."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from fasttrack_validation.errors import UserError
from fasttrack_validation.records import Frozen

from ..gate import run_gate
from ..git import Repository, display
from ..targets.profile import Profile
from .github import Found, GitHub, Pull
from .proposal import MARK, Gate, Proposal, owner_paragraph, prepare

Say = Callable[[str], None]


class Sent(Frozen):
    """What became of it."""

    act: Literal["opened", "updated", "unchanged", "ready"]
    number: int
    url: str
    draft: bool
    commit: str
    base_commit: str
    moved: bool
    blockers: tuple[str, ...]
    duplicates: tuple[Found, ...] = ()


def send(
    checkout: Path, forge: GitHub, remote: str, model: str, branch: str, profile: Profile, *, base: str | None = None,
    head_owner: str | None = None, replace: bool = False, say: Say = print, gate: Gate = run_gate,
) -> Sent:  # fmt: skip
    """Opens the draft for `branch`, or brings the open one up to date. Running it again changes nothing.

    `remote`: where the branch is pushed, a name or an address. `head_owner`: whose repository that is, by default the
    forge's. `replace`: a branch that was rewritten replaces the one that was sent, if that is what is still there.
    """
    base = base or profile.base
    repository = Repository.open(checkout)
    owner = head_owner or forge.repository.split("/")[0]
    if branch == base:
        raise UserError(f"{branch!r} is the branch to merge into", "send a branch of its own")
    forge.check(base, push=head_owner is None)
    proposal, there = _over_the_base(repository, checkout, remote, model, branch, profile, base, gate)
    held = forge.open_pull(owner, branch, base)
    _check_ours(held, branch)
    _check_push(repository, proposal.commit, there, branch, replace)
    _check_secrets(repository, forge, proposal)
    found = forge.duplicates([model, *(op.op for op in proposal.data.ops[:1])], held.number if held else None)
    written = owner_paragraph(held.body) if held else ""
    draft = proposal.draft(found, written)
    body, title = forge.scrub(draft.body), forge.scrub(draft.title)
    if there != proposal.commit:
        say(f"pushing {branch} at {proposal.commit[:12]}")
        repository.push(remote, branch, commit=proposal.commit, replaces=there if replace and there else None)
    told = {"commit": proposal.commit, "base_commit": proposal.base_commit, "moved": proposal.moved,
            "blockers": draft.blockers, "duplicates": found}  # fmt: skip
    if held is None:
        try:
            made = forge.create(head=f"{owner}:{branch}", base=base, title=title, body=body, labels=profile.labels)
        except UserError:
            if there is None:  # nothing half-done: the branch came with this attempt
                repository.take_back(remote, branch, proposal.commit)
                say(f"took {branch} back: there is no pull request for it")
            raise
        return Sent(act="opened", number=made.number, url=made.url, draft=made.draft, **told)
    same = (held.title, held.body.replace("\r\n", "\n"), there) == (title, body, proposal.commit)
    if not same:
        forge.update(held.number, title=title, body=body)
    if draft.blockers and not held.draft:
        say("it has left draft, and something is open again: it becomes a draft")
        forge.draft(held.number)
    return Sent(act="unchanged" if same else "updated", number=held.number, url=held.url,
                draft=held.draft or bool(draft.blockers), **told)  # fmt: skip


def ready(
    checkout: Path, forge: GitHub, remote: str, model: str, branch: str, profile: Profile, *, base: str | None = None,
    head_owner: str | None = None, gate: Gate = run_gate,
) -> Sent:  # fmt: skip
    """Takes the draft out of draft, in the name of the token's owner. UserError lists all that is still open."""
    base = base or profile.base
    repository = Repository.open(checkout)
    owner = head_owner or forge.repository.split("/")[0]
    forge.check(base, push=head_owner is None)
    proposal, there = _over_the_base(repository, checkout, remote, model, branch, profile, base, gate)
    held = forge.open_pull(owner, branch, base)
    if held is None:
        raise UserError(f"there is no open pull request for {branch}", f"open it: `fasttrack pr open {model}`")
    _check_ours(held, branch)
    if held.head != proposal.commit or there != proposal.commit:
        raise UserError(f"the pull request is at {held.head[:12]}, the branch here at {proposal.commit[:12]}",
                        f"bring both together: `fasttrack pr open {model}`")  # fmt: skip
    open_ = proposal.blockers(owner_paragraph(held.body))
    if open_:
        raise UserError("it stays a draft: " + "; ".join(open_), "settle these; the owner's paragraph is written between "
                        "its marks in the pull request's body, or in report/owner.md")  # fmt: skip
    if held.draft:
        forge.ready(held.number)
    return Sent(act="ready" if held.draft else "unchanged", number=held.number, url=held.url, draft=False,
                commit=proposal.commit, base_commit=proposal.base_commit, moved=proposal.moved, blockers=())  # fmt: skip


def _over_the_base(
    repository: Repository, checkout: Path, remote: str, model: str, branch: str, profile: Profile, base: str,
    gate: Gate,
) -> tuple[Proposal, str | None]:  # fmt: skip
    """The proposal, judged over the base as `remote` has it now, and where `branch` is there."""
    tips = repository.remote_branches(remote, base, branch)
    if base not in tips:
        raise UserError(f"the remote has no branch {base}", "name the target branch with --base, or another --remote")
    repository.fetch(remote, base)
    return prepare(repository, checkout, model, branch, profile, base, tips[base], gate), tips.get(branch)


def _check_ours(held: Pull | None, branch: str) -> None:
    if held is not None and MARK not in held.body:
        raise UserError(f"pull request {held.number} for {branch} was written by a person",
                        "it is left alone: close it, or send another branch")  # fmt: skip


def _check_push(repository: Repository, commit: str, there: str | None, branch: str, replace: bool) -> None:
    if there is None or replace or repository.is_ancestor(there, commit):
        return
    raise UserError(f"the remote's {branch} is at {there[:12]}, which {commit[:12]} does not hold",
                    "if that is your own earlier attempt, add --replace; otherwise merge it first")  # fmt: skip


def _check_secrets(repository: Repository, forge: GitHub, proposal: Proposal) -> None:
    """UserError where anything that would be pushed holds a secret of this environment.

    Every commit is, with its message and its names: what a later one took out again goes to the forge too.
    """
    def check(what: str, data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        if forge.scrub(text) != text:
            raise UserError(f"{what} holds a secret of this environment", "take it out of the branch's history first")

    commits = repository.commits(proposal.base_commit, proposal.commit)
    held: dict[str, str] = {}
    for commit, parents in commits:
        for change in repository.introduced(commit, parents):
            check(f"a name in commit {commit[:12]}", os.fsencode(change.path))
            if change.new_mode[:3] in ("100", "120"):
                held.setdefault(change.new, f"{display(change.path)} of commit {commit[:12]}")
    for oid, data in repository.blobs([commit for commit, _ in commits]).items() if commits else ():
        check(f"the message of commit {oid[:12]}", data)
    for oid, data in repository.blobs(held).items() if held else ():
        check(held[oid], data)
