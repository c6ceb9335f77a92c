"""Whether a change stays inside one model directory: the base's tree against the tree that merging would give.

The head is read as git objects. It is never checked out, imported or run.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from fasttrack_validation.errors import UserError
from fasttrack_validation.records import Frozen

from ..git import Change, Entry, Repository, display
from .contents import Limits, check_contents
from .names import check_name, fold, inside, tool_configuration
from .rules import RULES

POLICY = ("validation", "fasttrack", "templates", "rfcs", ".github", "tests")
_PROOF = re.compile(r"(evidence/.*|(.*/)?tests/.*|(.*/)?test_[^/]*|.*_test\.py)")
_ABSENT = "000000"
_MODES = {"120000": "confinement.symlink", "160000": "confinement.gitlink"}


class Finding(Frozen):
    """One broken rule at one place. Paths are printable: other characters are escaped."""

    rule: str
    message: str
    path: str | None = None
    line: int | None = Field(default=None, description="from 1")
    commit: str | None = Field(default=None, description="the commit of the range, when the outcome hides it")

    @property
    def title(self) -> str:
        """What the rule says."""
        return RULES[self.rule].title

    @property
    def remedy(self) -> str:
        """How to go on."""
        return RULES[self.rule].remedy


class ChangedFile(Frozen):
    """One path of the outcome that differs from the base."""

    path: str
    status: str = Field(description="A added, M modified, D deleted, T type changed")
    old_mode: str
    new_mode: str
    bytes: int = Field(description="size in the outcome; 0 when deleted")


class Confinement(Frozen):
    """What a change touched, proved from git objects, and which rules it breaks.

    It holds for these commits only: after a push, or in a merge queue, check again.
    """

    model: str
    directory: str
    base: str = Field(description="commit id")
    head: str = Field(description="commit id")
    outcome: str | None = Field(description="tree id of the merge result; None when there is none")
    files: tuple[ChangedFile, ...] = ()
    findings: tuple[Finding, ...] = ()
    notices: tuple[Finding, ...] = Field(default=(), description="not failures: a person has to look")
    proved: tuple[str, ...] = Field(default=("tree", "content"), description="never: run time, process")

    @property
    def passed(self) -> bool:
        """No rule is broken."""
        return not self.findings

    @property
    def empty(self) -> bool:
        """There is nothing to check."""
        return {finding.rule for finding in self.findings} == {"confinement.empty"}


def model_directory(model: str, root: str = "models") -> str:
    """`models/<model>`. UserError when `model` cannot name a directory."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", model):
        raise UserError(f"{model!r} cannot name a model directory", "use lower-case letters, digits and underscores")
    return f"{root}/{model}"


def check(repo: Path, base: str, head: str, model: str, limits: Limits | None = None, *, root: str = "models"
          ) -> Confinement:  # fmt: skip
    """Compares the base's tree with the merge result of `base` and `head`, path by path and commit by commit.

    UserError when a revision is unknown, git is too old, or the clone too shallow; everything else is a finding.
    """
    directory = model_directory(model, root)
    repository = Repository.open(repo)
    base, head = repository.resolve(base), repository.resolve(head)
    with repository.quarantine() as objects:
        return examine(objects, base, head, model, directory, limits or Limits())


def examine(objects: Repository, base: str, head: str, model: str, directory: str, limits: Limits) -> Confinement:
    """`check` on a quarantined repository and commit ids, for callers that go on to read the outcome."""

    def result(outcome: str | None, found: list[Finding], files: tuple[ChangedFile, ...] = ()) -> Confinement:
        notices = tuple(one for one in found if RULES[one.rule].notice)
        return Confinement(model=model, directory=directory, base=base, head=head, outcome=outcome, files=files,
                           findings=tuple(one for one in found if one not in notices), notices=notices)  # fmt: skip

    if objects.merge_base(base, head) is None:
        return result(None, [Finding(rule="confinement.unrelated_history", message="no common ancestor")])
    merge = objects.merge(base, head)
    if merge.conflicts:
        return result(None, [Finding(rule="confinement.conflict", message="conflicts with the base", path=display(path))
                             for path in merge.conflicts])  # fmt: skip
    changes = objects.diff(base, merge.tree)
    found = list(_history(objects, base, head, directory, limits, {change.path for change in changes}))
    if not changes:
        message = "no path differs from the base"
        return result(merge.tree, [*found, Finding(rule="confinement.empty", message=message)])
    listing = objects.tree(merge.tree)
    blobs = {change.new for change in changes if change.new_mode not in (_ABSENT, "160000")}
    sizes = objects.sizes(blobs) if blobs else {}
    found += _structure(listing)
    found += _collisions(listing, changes)
    for change in changes:
        found += _path(change, directory)
    within = [change for change in changes if inside(change.path, directory) and change.new_mode != _ABSENT]
    found += _sizes(within, sizes, directory, limits)
    readable = [change for change in within if change.new_mode in ("100644", "100755")
                and sizes[change.new] <= limits.of(change.path.removeprefix(f"{directory}/"))]  # fmt: skip
    contents = objects.blobs(change.new for change in readable) if readable else {}
    for change in readable:
        for problem in check_contents(change.path.removeprefix(f"{directory}/"), contents[change.new], limits):
            found.append(Finding(rule=problem.rule, message=problem.message, path=display(change.path),
                                 line=problem.line or None))  # fmt: skip
    files = tuple(ChangedFile(path=display(c.path), status=c.status, old_mode=c.old_mode, new_mode=c.new_mode,
                              bytes=sizes.get(c.new, 0)) for c in changes)  # fmt: skip
    return result(merge.tree, found, files)


def _path(change: Change, directory: str) -> Iterator[Finding]:
    shown = display(change.path)
    if not inside(change.path, directory):
        policy = change.path.split("/")[0] in POLICY
        verb = {"A": "added", "D": "deleted"}.get(change.status, "changed")
        yield Finding(rule=f"confinement.{'policy_change' if policy else 'outside'}", path=shown,
                      message=f"{verb}; only {directory}/ may change")  # fmt: skip
    relative = change.path.removeprefix(f"{directory}/")
    if change.new_mode == _ABSENT:
        if inside(change.path, directory) and _PROOF.fullmatch(relative):
            yield Finding(rule="confinement.deleted_proof", path=shown, message="deleted")
        return
    for rule, message in check_name(change.path):
        yield Finding(rule=rule, path=shown, message=message)
    if change.new_mode in _MODES:
        yield Finding(rule=_MODES[change.new_mode], path=shown, message=f"mode {change.new_mode}")
    elif change.new_mode != "100644":
        yield Finding(rule="confinement.mode", path=shown, message=f"mode {change.new_mode}, not 100644")
    if change.new_mode not in ("100644", "100755") and (reason := tool_configuration(relative)):
        yield Finding(rule="confinement.tool_configuration", path=shown, message=reason)


def _sizes(changes: list[Change], sizes: dict[str, int], directory: str, limits: Limits) -> Iterator[Finding]:
    for change in changes:
        size, limit = sizes.get(change.new, 0), limits.of(change.path.removeprefix(f"{directory}/"))
        if size > limit:
            yield Finding(rule="confinement.size", path=display(change.path), message=f"{size} bytes, over {limit}")
    total = sum(sizes.get(change.new, 0) for change in changes)
    if total > limits.max_total_bytes or len(changes) > limits.max_files:
        yield Finding(rule="confinement.size", message=f"{len(changes)} files of {total} bytes in all, over "
                      f"{limits.max_files} files or {limits.max_total_bytes} bytes")  # fmt: skip


def _structure(listing: list[tuple[str, Entry]]) -> Iterator[Finding]:
    """Trees that no ordinary git writes: a repeated name, or a slash inside one."""
    trees = {path for path, entry in listing if entry.kind == "tree"}
    for path, count in Counter(path for path, _ in listing).items():
        parent = path.rpartition("/")[0]
        if count > 1 or (parent and parent not in trees):
            yield Finding(rule="confinement.malformed_tree", path=display(path),
                          message="listed twice" if count > 1 else "a slash inside a name")  # fmt: skip


def _collisions(listing: list[tuple[str, Entry]], changes: list[Change]) -> Iterator[Finding]:
    spellings: dict[str, set[str]] = {}
    for path, _ in listing:
        spellings.setdefault(fold(path), set()).add(path)
    reported = set()
    for change in changes:
        if change.new_mode == _ABSENT:
            continue
        parts = change.path.split("/")
        for end in range(1, len(parts) + 1):
            prefix = "/".join(parts[:end])
            others = sorted(spellings.get(fold(prefix), set()) - {prefix})
            if others and fold(prefix) not in reported:
                reported.add(fold(prefix))
                yield Finding(rule="confinement.case_collision", path=display(change.path),
                              message=f"{display(prefix)} beside {display(others[0])}")  # fmt: skip


def _history(objects: Repository, base: str, head: str, directory: str, limits: Limits, shown: set[str]
             ) -> Iterator[Finding]:  # fmt: skip
    commits = objects.commits(base, head)
    if len(commits) > limits.max_commits:
        message = f"{len(commits)} commits, over {limits.max_commits}"
        yield Finding(rule="confinement.range_too_long", message=message)
        return
    reported = set(shown)
    for oid, parents in commits:
        for change in objects.introduced(oid, parents):
            if change.path in reported:
                continue
            if not inside(change.path, directory):
                message = f"commit {oid[:12]} touches it, and the outcome hides that"
            elif change.new_mode not in (_ABSENT, "100644"):
                message = f"commit {oid[:12]} gives it mode {change.new_mode}, and the outcome hides that"
            else:
                continue
            reported.add(change.path)
            yield Finding(rule="confinement.history", path=display(change.path), commit=oid, message=message)
