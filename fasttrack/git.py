"""All access to git. Plumbing only, NUL-separated, deaf to the environment and to a repository's own programs.

Reading never runs anything that a repository configures: no hooks, no external diff or textconv, no filters, no merge
drivers, no fsmonitor, no replace refs or grafts, no lazy fetch. That is why reading ignores `safe.directory` (there is
nothing left for a foreign owner to attack), while everything that writes leaves git's ownership check in place.

Paths are `str` with surrogate escapes, as git stores bytes; `display` makes one printable.
"""

import difflib
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fasttrack_validation.errors import UserError

MERGE_TREE_VERSION = (2, 38)
FALLBACK_IDENTITY = ("fasttrack", "fasttrack@localhost")
NULL_OID = re.compile(r"0{40}|0{64}")

_PINNED = (
    "core.hooksPath=/dev/null", "core.fsmonitor=false", "core.attributesFile=/dev/null", "core.pager=cat",
    "core.quotePath=false", "core.autocrlf=false", "core.fileMode=false", "core.commitGraph=false", "diff.external=",
    "commit.gpgSign=false", "gc.auto=0", "maintenance.auto=false", "merge.renames=true",
    "merge.directoryRenames=conflict", "advice.detachedHead=false", "submodule.recurse=false",
    "push.followTags=false", "push.recurseSubmodules=no", "push.gpgSign=false",
)  # fmt: skip
_DIFF = ("diff-tree", "-r", "-z", "--raw", "--no-renames", "--full-index", "--no-ext-diff", "--no-textconv",
         "--no-relative", "--ignore-submodules=none", "--no-commit-id", "-O/dev/null")  # fmt: skip

_REACH = "look at the remote's name or address, at the network, and at what you may read and push there"
_REMEDIES = {"ls-remote": _REACH, "fetch": _REACH, "push": _REACH}


class Entry(NamedTuple):
    """One entry of a tree. `mode` is six octal digits, `kind` blob, tree or commit."""

    mode: str
    kind: str
    oid: str


class Change(NamedTuple):
    """One path that differs between two trees. A missing side has mode `000000`; renames are a D and an A."""

    path: str
    status: str
    old_mode: str
    new_mode: str
    old: str
    new: str


class Merge(NamedTuple):
    """What merging would give: the tree, or the paths in conflict."""

    tree: str
    conflicts: tuple[str, ...]


@dataclass(frozen=True)
class Commit:
    """A commit that was made. `fallback_identity`: no person was configured, so it is nobody's work yet."""

    oid: str
    author: str
    fallback_identity: bool


@dataclass(frozen=True)
class State:
    """Digests of all that a user would miss if it changed (see `Repository.state`)."""

    head: str
    refs: str
    index: str
    stash: str
    status: str
    contents: str


def display(path: str) -> str:
    """`path` with every character that is not printable ASCII escaped: what findings and reports show."""
    data = path.encode("utf-8", "surrogateescape")
    text = data.decode("utf-8", "backslashreplace")
    return "".join(c if " " <= c <= "~" else f"\\x{ord(c):02x}" if c < "\x80" else
                   c.encode("ascii", "backslashreplace").decode() for c in text)  # fmt: skip


@cache
def version() -> tuple[int, ...]:
    """The installed git's version. UserError without git."""
    found = re.search(rb"(\d+)\.(\d+)(?:\.(\d+))?", _git(["version"], env=_environment()).stdout)
    return tuple(int(part or 0) for part in found.groups())


def _environment(**extra: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    return kept | {
        "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_GRAFT_FILE": os.devnull, "GIT_NO_LAZY_FETCH": "1", "GIT_LITERAL_PATHSPECS": "1", "GIT_ATTR_NOSYSTEM": "1",
    } | extra  # fmt: skip


def _git(args: Sequence[str], *, env: dict[str, str], cwd: Path | None = None, stdin: bytes = b"",
         ok: tuple[int, ...] = (0,), trust: bool = False) -> subprocess.CompletedProcess[bytes]:  # fmt: skip
    pinned = _PINNED + (("safe.directory=*",) if trust else ())
    command = ["git", *(part for value in pinned for part in ("-c", value)), *args]
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, env=env, cwd=cwd, check=False)
    except FileNotFoundError as error:
        if cwd is not None and not cwd.is_dir():
            raise UserError(f"{cwd} is not a directory", "name a directory inside a git repository") from error
        raise UserError("git is not installed", "install git 2.38 or newer and put it on PATH") from error
    if done.returncode not in ok:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        said = [line for line in lines if not line.startswith(("hint:", "warning:"))] or lines or ["no message"]
        raise UserError(f"git {args[0]} failed: {said[0]}", _REMEDIES.get(args[0], "run `git fsck` if the repository may be damaged"))
    return done


def _address(remote: str) -> str:
    """A remote's name or address. UserError for what git would read as an option: some of those run commands."""
    if remote.startswith("-") or not remote:
        raise UserError(f"{remote!r} is no remote", "name a remote of this repository, or an address")
    return remote


def _quoted(path: Path) -> str:
    """A path for a colon-separated variable: git reads C-style quotes there."""
    text = str(path).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{text}"'


def _paths(data: bytes) -> list[str]:
    return [os.fsdecode(part) for part in data.split(b"\0") if part]


@dataclass(frozen=True)
class Repository:
    """A repository, bare or not, found from any directory inside it; its objects are read in place."""

    git_dir: Path
    common_dir: Path
    work_tree: Path | None
    shallow: bool
    object_format: str
    scratch: Path | None = None

    @classmethod
    def open(cls, path: Path) -> "Repository":
        """Finds the repository that holds `path`. UserError when there is none."""

        def ask(*what: str) -> str:
            done = _git(["rev-parse", "--path-format=absolute", *what], env=_environment(), cwd=path, trust=True)
            return os.fsdecode(done.stdout.removesuffix(b"\n"))

        try:
            inside, shallow, form = ask("--is-inside-work-tree", "--is-shallow-repository",
                                        "--show-object-format").split("\n")  # fmt: skip
        except UserError as error:
            if "not a git repository" in error.what:
                raise UserError(f"{path} is not inside a git repository", "name a repository, or clone one") from error
            raise
        top = Path(ask("--show-toplevel")) if inside == "true" else None
        return cls(Path(ask("--absolute-git-dir")), Path(ask("--git-common-dir")), top, shallow == "true", form)

    def _read(self, *args: str, stdin: bytes = b"", ok: tuple[int, ...] = (0,)) -> subprocess.CompletedProcess[bytes]:
        where = self.scratch or self.git_dir
        extra = {"GIT_DIR": str(where), "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        if self.scratch:
            extra["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = _quoted(self.common_dir / "objects")
        return _git(args, env=_environment(**extra), cwd=where, stdin=stdin, ok=ok, trust=True)

    @contextmanager
    def quarantine(self) -> Iterator["Repository"]:
        """The repository's objects seen from an empty one of our own, which takes whatever a merge writes.

        So its configuration, attributes, merge drivers and replace refs are out of play, and so are its refs: only
        object ids mean something here.
        """
        with tempfile.TemporaryDirectory(prefix="fasttrack-git-") as name:
            scratch = Path(name)
            for part in ("objects", "refs"):
                (scratch / part).mkdir()
            (scratch / "HEAD").write_text("ref: refs/heads/none\n")
            if self.object_format != "sha1":
                (scratch / "config").write_text("[core]\nrepositoryformatversion = 1\nbare = true\n"
                                                f"[extensions]\nobjectFormat = {self.object_format}\n")  # fmt: skip
            if self.shallow:
                shutil.copy(self.common_dir / "shallow", scratch)
            yield replace(self, scratch=scratch)

    # Revisions and history

    def resolve(self, revision: str) -> str:
        """The commit that `revision` names. UserError with the nearest names when there is none."""
        if revision and not revision.startswith("-") and "\0" not in revision and "\n" not in revision:
            done = self._read("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}",
                              ok=(0, 1, 128))  # fmt: skip
            if done.returncode == 0:
                return done.stdout.decode().split()[-1]
        names = self._read("for-each-ref", "--format=%(refname:short)").stdout.decode("utf-8", "replace").split("\n")
        near = difflib.get_close_matches(revision, ["HEAD", *filter(None, names)], n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "list the names with `git branch --all`; fetch first"
        raise UserError(f"unknown revision {revision!r} in {self.git_dir}", hint)

    def tree_of(self, treeish: str) -> str:
        """The object id of the tree of a commit."""
        return (
            self._read("rev-parse", "--verify", "--end-of-options", f"{treeish}^{{tree}}").stdout.decode().split()[-1]
        )

    def merge_base(self, one: str, two: str) -> str | None:
        """The best common ancestor of two commits; None for unrelated histories.

        UserError when the clone is too shallow to tell.
        """
        done = self._read("merge-base", one, two, ok=(0, 1))
        if done.returncode == 0:
            return done.stdout.decode().split()[0]
        if self.shallow:
            raise UserError(f"the clone {self.git_dir} is too shallow to compare the revisions",
                            "fetch the history: git fetch --unshallow")  # fmt: skip
        return None

    def commits(self, base: str, head: str) -> list[tuple[str, tuple[str, ...]]]:
        """Commits reachable from `head` and not from `base`, oldest first, each with its parents."""
        lines = self._read("rev-list", "--topo-order", "--reverse", "--parents", f"{base}..{head}").stdout.decode()
        return [(first, tuple(rest)) for first, *rest in map(str.split, lines.splitlines())]

    # Trees and blobs

    def merge(self, base: str, head: str) -> Merge:
        """The tree that merging commit `head` into commit `base` gives (ort strategy). Only inside `quarantine`."""
        if self.scratch is None:
            raise ValueError("merge writes objects: call it on the repository that quarantine() yields")
        if version() < MERGE_TREE_VERSION:
            raise UserError(f"git {'.'.join(map(str, version()))} cannot merge without a checkout",
                            "install git 2.38 or newer")  # fmt: skip
        done = self._read("merge-tree", "--write-tree", "-z", "--name-only", "--no-messages", base, head, ok=(0, 1))
        tree, *conflicts = _paths(done.stdout)
        return Merge(tree.strip(), tuple(conflicts) if done.returncode else ())

    def diff(self, old: str, new: str) -> list[Change]:
        """Raw difference of two trees: every path, full modes, no renames."""
        fields = self._read(*_DIFF, old, new).stdout.split(b"\0")
        return self._changes(fields)

    def introduced(self, commit: str, parents: tuple[str, ...]) -> list[Change]:
        """What `commit` itself brought in: the paths that differ from every parent."""
        if not parents:
            return self._changes(self._read(*_DIFF, "--root", commit).stdout.split(b"\0"))
        against = [{change.path: change for change in self.diff(parent, commit)} for parent in parents]
        return [change for path, change in against[0].items() if all(path in other for other in against)]

    @staticmethod
    def _changes(fields: list[bytes]) -> list[Change]:
        found = []
        for meta, path in zip(fields[0::2], fields[1::2], strict=False):
            old_mode, new_mode, old, new, status = meta.decode().removeprefix(":").split(" ")
            found.append(Change(os.fsdecode(path), status[0], old_mode, new_mode, old, new))
        return found

    def tree(self, treeish: str) -> list[tuple[str, Entry]]:
        """Every entry of a tree, subtrees included, in git's order; malformed trees may repeat a path."""
        found = []
        for line in self._read("ls-tree", "-r", "-t", "-z", "--full-tree", treeish).stdout.split(b"\0"):
            if line:
                meta, path = line.split(b"\t", 1)
                found.append((os.fsdecode(path), Entry(*meta.decode().split(" "))))
        return found

    def sizes(self, oids: Iterable[str]) -> dict[str, int]:
        """Size of each object in bytes. UserError when one is missing."""
        wanted = sorted(set(oids))
        out = self._read("cat-file", "--batch-check=%(objectname) %(objectsize)", stdin="\n".join(wanted).encode())
        rows = [line.split(" ") for line in out.stdout.decode().splitlines()]
        missing = next((row[0] for row in rows if row[1] == "missing"), None)
        if missing:
            raise self._missing(missing)
        return {oid: int(size) for oid, size in rows}

    def blobs(self, oids: Iterable[str]) -> dict[str, bytes]:
        """Contents of objects, raw: no filter, no text conversion."""
        wanted = sorted(set(oids))
        out = self._read("cat-file", "--batch", stdin="".join(f"{oid}\n" for oid in wanted).encode()).stdout
        found, at = {}, 0
        for oid in wanted:
            end = out.index(b"\n", at)
            head = out[at:end].decode().split(" ")
            if head[1] == "missing":
                raise self._missing(oid)
            found[oid] = out[end + 1 : end + 1 + int(head[2])]
            at = end + 2 + int(head[2])
        return found

    def _missing(self, oid: str) -> UserError:
        return UserError(f"object {oid} is missing in {self.git_dir}", "fetch the commit in full and try again")

    def files(self, treeish: str, directory: str) -> dict[str, bytes]:
        """Regular files under `directory` of a tree, by path relative to it."""
        prefix = f"{directory}/"
        chosen = {path.removeprefix(prefix): entry.oid for path, entry in self.tree(treeish)
                  if path.startswith(prefix) and entry.kind == "blob" and entry.mode != "120000"}  # fmt: skip
        contents = self.blobs(chosen.values()) if chosen else {}
        return {path: contents[oid] for path, oid in chosen.items()}

    # Writing. The user's checkout is never touched: branches are made in worktrees of their own.

    def add_worktree(self, path: Path, branch: str, start: str) -> "Repository":
        """Checks `start` out into a new directory on a new branch. UserError when either exists."""
        self._write("worktree", "add", "--quiet", "--no-track", "-b", branch, str(path), self.resolve(start))
        return Repository.open(path)

    def remove_worktree(self, path: Path) -> None:
        """Removes a worktree with all that is in it; its branch stays."""
        self._write("worktree", "remove", "--force", str(path))

    def identity(self) -> tuple[str, str] | None:
        """Name and address of the configured person, from git's configuration or environment; None without one."""
        mine = {key: value for key, value in os.environ.items() if re.fullmatch(r"GIT_AUTHOR_(NAME|EMAIL)", key)}
        done = _git(["-c", "user.useConfigOnly=true", "var", "GIT_AUTHOR_IDENT"], cwd=self.work_tree or self.git_dir,
                    env=_environment(**mine), ok=(0, 128), trust=True)  # fmt: skip
        found = re.match(r"(.+) <(.+)> \d+ [+-]\d+", done.stdout.decode("utf-8", "replace"))
        return (found[1], found[2]) if done.returncode == 0 and found else None

    def commit(self, message: str, paths: Iterable[str]) -> Commit:
        """Commits exactly `paths` (files relative to the top; a missing one is a deletion) on the current branch.

        Without a configured person the author is `fasttrack <fasttrack@localhost>`, and the result says so.
        """
        stdin = b"".join(os.fsencode(path) + b"\0" for path in paths)
        self._write("update-index", "--add", "--remove", "-z", "--stdin", stdin=stdin)
        if not self._write("diff-index", "--cached", "--quiet", "HEAD", "--", ok=(0, 1)).returncode:
            raise UserError("nothing to commit: the files equal the base", "propose a change first")
        person = self.identity()
        name, email = person or FALLBACK_IDENTITY
        names = {f"GIT_{who}_{key}": value for who in ("AUTHOR", "COMMITTER")
                 for key, value in (("NAME", name), ("EMAIL", email))}  # fmt: skip
        self._write(
            "commit", "--quiet", "--no-verify", "--cleanup=verbatim", "-F", "-", stdin=message.encode(), **names
        )
        return Commit(self.resolve("HEAD"), f"{name} <{email}>", person is None)

    def has_branch(self, branch: str) -> bool:
        """Whether there is a local branch of that name."""
        return not self._read("show-ref", "--verify", "--quiet", f"refs/heads/{branch}", ok=(0, 1, 128)).returncode

    def delete_branch(self, branch: str) -> None:
        """Deletes a local branch of our own making."""
        self._write("update-ref", "-d", f"refs/heads/{branch}")

    def remote_branches(self, remote: str, *branches: str) -> dict[str, str]:
        """Branch -> commit at `remote`, of those of `branches` that are there. UserError where it cannot be reached."""
        out = self._write("ls-remote", "--quiet", _address(remote), *(f"refs/heads/{branch}" for branch in branches)).stdout
        rows = (line.split("\t", 1) for line in out.decode("utf-8", "replace").splitlines() if "\t" in line)
        return {name.removeprefix("refs/heads/"): oid for oid, name in rows}

    def fetch(self, remote: str, branch: str) -> None:
        """Fetches the objects of a branch; no ref, FETCH_HEAD or configuration of this repository changes."""
        self._write("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", _address(remote),
                    f"refs/heads/{branch}")  # fmt: skip

    def is_ancestor(self, old: str, new: str) -> bool:
        """Whether commit `new` holds commit `old`, of which this repository may know nothing."""
        return self._read("merge-base", "--is-ancestor", old, new, ok=(0, 1, 128)).returncode == 0

    def push(self, remote: str, branch: str, *, commit: str | None = None, replaces: str | None = None) -> None:
        """Pushes one branch under its own name. UserError with git's reason when refused.

        Never by force, but for `replaces`: then only while the remote's branch is that very commit ("" for none).
        """
        lease = [f"--force-with-lease=refs/heads/{branch}:{replaces}"] if replaces is not None else []
        self._write("push", "--quiet", *lease, _address(remote), f"{commit or f'refs/heads/{branch}'}:refs/heads/{branch}")

    def take_back(self, remote: str, branch: str, commit: str) -> None:
        """Deletes a branch at `remote` that is still at `commit`, as it was pushed."""
        self._write("push", "--quiet", f"--force-with-lease=refs/heads/{branch}:{commit}", _address(remote),
                    f":refs/heads/{branch}")  # fmt: skip

    def _write(self, *args: str, stdin: bytes = b"", ok: tuple[int, ...] = (0,), **env: str):
        return _git(args, env=_environment(**env), cwd=self.work_tree or self.git_dir, stdin=stdin, ok=ok)

    # Proof that nothing changed

    def state(self) -> State:
        """Digests of HEAD, refs, index bytes, stash, status, and the bytes of every tracked or untracked file."""
        stash = self._read("rev-list", "--walk-reflogs", "refs/stash", ok=(0, 128)).stdout
        index = self.git_dir / "index"
        status = contents = b""
        if self.work_tree:
            status = self._write("status", "--porcelain=v2", "-z", "--untracked-files=all").stdout
            listed = _paths(self._write("ls-files", "-z", "--cached", "--others", "--exclude-standard").stdout)
            contents = b"".join(_fingerprint(self.work_tree / path, path) for path in sorted(set(listed)))
        parts = (
            (self.git_dir / "HEAD").read_bytes(), self._read("for-each-ref").stdout,
            index.read_bytes() if index.exists() else b"", stash, status, contents,
        )  # fmt: skip
        return State(*(hashlib.sha256(part).hexdigest() for part in parts))


def _fingerprint(path: Path, name: str) -> bytes:
    if path.is_symlink():
        kind, data = "link", os.fsencode(os.readlink(path))
    elif path.is_file():
        kind, data = f"file {path.stat().st_mode & 0o777:o}", path.read_bytes()
    else:
        kind, data = "absent", b""
    return f"{kind} {hashlib.sha256(data).hexdigest()} ".encode() + os.fsencode(name) + b"\0"
