"""A repository forge: git objects written byte by byte, so that trees no ordinary git would write can be tested."""

import hashlib
import subprocess
import zlib
from pathlib import Path

import pytest


class Forge:
    """A bare repository. Files are `path -> bytes`, or `(mode, bytes)`; a gitlink's bytes are the hex commit id."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for part in ("objects", "refs/heads"):
            (path / part).mkdir(parents=True)
        (path / "HEAD").write_text("ref: refs/heads/main\n")

    def git(self, *args: str, stdin: bytes = b"") -> str:
        command = ["git", "--git-dir", str(self.path), "-c", "safe.directory=*", *args]
        return subprocess.run(command, input=stdin, check=True, capture_output=True).stdout.decode().strip()

    def write(self, kind: str, data: bytes) -> str:
        """Stores one loose object and returns its id."""
        raw = f"{kind} {len(data)}\0".encode() + data
        oid = hashlib.sha1(raw).hexdigest()
        path = self.path / "objects" / oid[:2] / oid[2:]
        path.parent.mkdir(exist_ok=True)
        if not path.exists():
            path.write_bytes(zlib.compress(raw))
        return oid

    def tree(self, files: dict) -> str:
        """Writes the tree of `files`; keys are str or bytes and are split at every slash."""
        entries: dict[bytes, object] = {}
        for path, value in files.items():
            name = path if isinstance(path, bytes) else path.encode("utf-8", "surrogateescape")
            first, slash, rest = name.partition(b"/")
            if slash:
                entries.setdefault(first, {})[rest] = value
            else:
                entries[first] = value
        return self.raw_tree([
            (b"40000", name, self.tree(value)) if isinstance(value, dict)
            else (b"100644", name, self.write("blob", value)) if isinstance(value, bytes)
            else (value[0].encode(), name, value[1].decode() if value[0] == "160000" else self.write("blob", value[1]))
            for name, value in entries.items()
        ])  # fmt: skip

    def raw_tree(self, rows: list[tuple[bytes, bytes, str]]) -> str:
        """Writes a tree of (mode, name, id) rows in git's order, whatever the names are."""
        rows = sorted(rows, key=lambda row: row[1] + (b"/" if row[0] == b"40000" else b""))
        return self.write("tree", b"".join(mode + b" " + name + b"\0" + bytes.fromhex(oid) for mode, name, oid in rows))

    def commit(self, files: dict | str, *parents: str, message: str = "change") -> str:
        """Commits a whole tree (files, or a tree id)."""
        tree = files if isinstance(files, str) else self.tree(files)
        who = "A Person <person@example.org> 1700000000 +0000"
        lines = [f"tree {tree}", *(f"parent {parent}" for parent in parents), f"author {who}", f"committer {who}"]
        return self.write("commit", ("\n".join(lines) + f"\n\n{message}\n").encode())

    def ref(self, name: str, oid: str) -> None:
        """Points a branch at a commit."""
        self.git("update-ref", f"refs/heads/{name}", oid)


@pytest.fixture
def forge(tmp_path: Path) -> Forge:
    """An empty bare repository."""
    return Forge(tmp_path / "repository.git")
