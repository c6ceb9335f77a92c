"""Who runs a sandbox: root, or an ordinary user who can read the interpreter and its packages."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import fasttrack_validation

# Run as root: opens closed directories on the way to the interpreter in a mount namespace of its own (only the
# interpreter itself appears there), becomes the user, and starts the code. The user then has no privilege at all.
_BECOME = """
import os, sys
from fasttrack_validation.sandbox import roots, system
uid, code = int(sys.argv[1]), sys.argv[2]
system.unshare(system.CLONE_NEWNS, "mount")
system.mount(None, "/", system.MS_REC | system.MS_PRIVATE)
needed = [path for path in roots.readable(roots.OWN_PACKAGES, "/root") if not path.startswith(roots.SYSTEM)]
for closed in ("/root",):
    if os.stat(closed).st_mode & 5 == 5:
        continue
    trees = {path: system.clone_tree(path) for path in needed if path.startswith(closed + "/")}
    system.mount("tmpfs", closed, 0, "mode=0755")
    for path, tree in trees.items():
        os.makedirs(path)
        system.attach_tree(tree, path)
if uid:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
os.environ["HOME"] = os.environ["TMPDIR"]
os.execv(sys.executable, [sys.executable, "-I", "-c", code])
"""


@pytest.fixture
def run_as(tmp_path_factory):
    """run_as(uid, code) -> standard output of `code` in a fresh Python of that user (0: root with /root opened)."""
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")

    def run(uid: int, code: str) -> str:
        # Not below pytest's own directory, which others may not enter.
        folder = Path(f"/tmp/fasttrack-test-{os.getpid()}-{uid}")
        folder.mkdir(exist_ok=True)
        os.chown(folder, uid, uid)
        command = [sys.executable, "-I", "-c", _BECOME, str(uid), textwrap.dedent(code)]
        done = subprocess.run(
            command, cwd="/", env={"PATH": "/usr/bin:/bin", "TMPDIR": str(folder)}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert not list(folder.glob("fasttrack-sandbox-*")), "a scratch directory was left behind"
        return done.stdout

    return run
