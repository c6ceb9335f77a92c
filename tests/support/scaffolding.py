"""A copy of the working tree with a git repository and a Python of its own, for scaffolds to be put into."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = {"fasttrack": "fasttrack", "fasttrack.templates": "templates", "fasttrack_validation": "validation",
         "fasttrack_models": "models"}  # fmt: skip
EXAMPLE = "templates/model/examples/deepseek_v4_1_flash.toml"

# What an editable install does, without one.
_FINDER = """
import importlib.util, pathlib, sys


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in {rooms!r}:
            room = pathlib.Path({checkout!r}) / {rooms!r}[name]
            return importlib.util.spec_from_file_location(
                name, room / "__init__.py", submodule_search_locations=[str(room)]
            )


sys.meta_path.insert(0, Finder)
"""


class Checkout:
    """`path` is the checkout; its main branch holds the working tree's files as they are now."""

    def __init__(self, root: Path) -> None:
        self.path, self._home, self._python = root / "checkout", root / "home", root / "env/bin/python"
        names = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
            capture_output=True,
        ).stdout.split(b"\0")  # fmt: skip
        for name in map(os.fsdecode, filter(None, names)):
            if (ROOT / name).is_file():
                (self.path / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, self.path / name)
        self.git("init", "--quiet", "--initial-branch=main")
        self.commit("base", ".")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(root / "env")], check=True)
        (site,) = (root / "env").glob("lib/python*/site-packages")
        others = [path for path in sys.path if path.endswith("site-packages")]
        (site / "others.pth").write_text("\n".join(others) + "\n")
        (site / "_rooms.py").write_text(_FINDER.format(rooms=ROOMS, checkout=str(self.path)))
        (site / "rooms.pth").write_text("import _rooms\n")

    def git(self, *arguments: str) -> str:
        """Standard output of git here."""
        identity = ["-c", "user.name=A Person", "-c", "user.email=person@example.org"]
        done = subprocess.run(["git", *identity, *arguments], cwd=self.path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(self, message: str, *paths: str) -> str:
        """The commit of these paths on the branch at hand."""
        self.git("add", "--", *paths)
        self.git("commit", "--quiet", "--message", message)
        return self.git("rev-parse", "HEAD")

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs the checkout's own code."""
        drop = ("PYTHONPATH", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER")
        environment = {name: value for name, value in os.environ.items() if name not in drop}
        environment |= {"FASTTRACK_HOME": str(self._home), "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [str(self._python), *arguments], cwd=self.path, env=environment, capture_output=True, text=True,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def fasttrack(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs the checkout's command line."""
        return self.python("-m", "fasttrack", *arguments)

    def tree(self) -> dict[str, bytes]:
        """Every file but git's own and compiled ones."""
        return {
            path.relative_to(self.path).as_posix(): path.read_bytes() for path in self.path.rglob("*")
            if path.is_file() and not {".git", "__pycache__", ".pytest_cache"} & set(path.parts)
        }  # fmt: skip
