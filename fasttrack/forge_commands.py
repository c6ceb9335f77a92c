"""What `fasttrack pr` does: find branch and repository, send, say what came of it."""

import json
import re
import sys
from contextlib import closing
from pathlib import Path

from fasttrack_validation.errors import UserError

from . import model_dir, workspace
from .forge import proposal, sending
from .forge.github import GitHub, token
from .forge.sending import Sent
from .git import Repository
from .report.gate import printable
from .storage import write_file
from .targets import profile as profiles
from .targets.profile import Profile

_ADDRESS = re.compile(r"(?:[\w+.-]+://(?:[^@/]*@)?[^/]+/|[\w.-]+@[^:/]+:)(?:.*/)?([\w.-]+/[\w.-]+?)(?:\.git)?/?")


def open_pull(
    model: str, branch: str | None, repository: str | None, remote: str, base: str | None, target: str,
    head_owner: str | None, api: str | None, replace: bool, *, as_json: bool,
) -> None:  # fmt: skip
    """Opens or updates the draft."""
    checkout, profile = _checkout(model), profiles.load(target)
    with closing(GitHub(_repository(checkout, repository, profile, remote), token(), base_url=api)) as forge:
        sent = sending.send(
            checkout, forge, remote, model, branch or _branch(checkout), profile, base=base, head_owner=head_owner,
            replace=replace, say=lambda line: print(line, file=sys.stderr),
        )  # fmt: skip
    _tell(sent, as_json)


def ready(
    model: str, branch: str | None, repository: str | None, remote: str, base: str | None, target: str,
    head_owner: str | None, api: str | None, *, as_json: bool,
) -> None:  # fmt: skip
    """Takes the draft out of draft."""
    checkout, profile = _checkout(model), profiles.load(target)
    with closing(GitHub(_repository(checkout, repository, profile, remote), token(), base_url=api)) as forge:
        sent = sending.ready(
            checkout, forge, remote, model, branch or _branch(checkout), profile, base=base, head_owner=head_owner
        )
    _tell(sent, as_json)


def write(model: str, branch: str | None, base: str, target: str, out: Path, *, as_json: bool) -> None:
    """The draft as a file."""
    checkout, profile = _checkout(model), profiles.load(target)
    repository = Repository.open(checkout)
    start = repository.resolve(base)
    made = proposal.prepare(repository, checkout, model, branch or _branch(checkout), profile, profile.base, start)
    draft = made.draft()
    write_file(out, f"# {draft.title}\n\n{draft.body}".encode())
    if as_json:
        print(json.dumps({"file": str(out), **draft.model_dump(mode="json")}, indent=2))
    else:
        print(f"wrote {out}: {draft.title}")
        print("\n".join(f"  open: {printable(blocker)}" for blocker in draft.blockers))


def _tell(sent: Sent, as_json: bool) -> None:
    if as_json:
        print(json.dumps(sent.model_dump(mode="json"), indent=2))
        return
    state = "draft" if sent.draft else "ready for review"
    print(f"{sent.act} {printable(sent.url)} ({state}, {sent.commit[:12]} over {sent.base_commit[:12]})")
    if sent.moved:
        print("  the base has moved since the run started; the gate judged the merge with it as it is now")
    for one in sent.duplicates:
        print(f"  may do the same: #{one.number} {ascii(one.title)[1:-1]}")
    for blocker in sent.blockers:
        print(f"  open: {printable(blocker)}")


def _checkout(model: str) -> Path:
    directory = model_dir.load(model, need_checkout=True)
    return directory.checkout


def _branch(checkout: Path) -> str:
    found = workspace.git(checkout, "symbolic-ref", "--quiet", "--short", "HEAD", check=False).strip()
    if not found:
        raise UserError("no branch is checked out", "name the branch to send with --branch")
    return found


def _repository(checkout: Path, named: str | None, profile: Profile, remote: str) -> str:
    """owner/name: as named, the target's, or read from the remote's address."""
    if named or profile.repository:
        found = named or profile.repository
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]*[\w-][\w.-]*", found):
            raise UserError(f"{found!r} is no repository", "write OWNER/NAME")
        return found
    address = workspace.git(checkout, "remote", "get-url", remote, check=False).strip() or remote
    found = _ADDRESS.fullmatch(address)
    if not found:
        raise UserError(f"cannot tell the repository from the remote {remote!r}", "name it with --repository OWNER/NAME")
    return found[1]
