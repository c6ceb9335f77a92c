"""Candidate files as an importable package, without touching sys.path."""

import importlib
import importlib.machinery
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

PACKAGE = "candidate"


def install(files: Mapping[str, str], directory: Path) -> Path:
    """Writes `files` under `directory` and makes them the package `candidate` of this process.

    Returns the package's directory. Sub-directories are (namespace) packages, so relative imports work between all
    files; no path is searched that was not searched before, so no file can shadow a module.
    """
    root = directory.resolve() / PACKAGE
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    sys.dont_write_bytecode = True
    for name in [name for name in sys.modules if name == PACKAGE or name.startswith(f"{PACKAGE}.")]:
        del sys.modules[name]
    importlib.invalidate_caches()
    module = ModuleType(PACKAGE)
    module.__path__ = [str(root)]
    module.__spec__ = importlib.machinery.ModuleSpec(PACKAGE, None, is_package=True)
    module.__spec__.submodule_search_locations = module.__path__
    sys.modules[PACKAGE] = module
    return root


def load(file: str) -> ModuleType:
    """Imports one installed file, for example `kernels/gemv.py`."""
    return importlib.import_module(".".join((PACKAGE, *file.removesuffix(".py").split("/"))))
