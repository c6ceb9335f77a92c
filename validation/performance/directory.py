"""Loads a model's directory where its own host code is run: in a process of its own, through what the manifest names."""

import importlib
import importlib.util
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import UserError

MANIFEST = "fasttrack.toml"
_NAME = "measured_model"


def load(path: Path) -> tuple[ModuleType, Any]:
    """The factory module of the model directory `path`, and what it is given of the directory's files.

    The directory is imported as a package of its own, wherever it lies. One directory a process: UserError for a
    second one, and for a directory whose manifest names no decode path.
    """
    manifest = tomllib.loads((path / MANIFEST).read_text("utf-8"))
    if "decode" not in manifest:
        raise UserError(f"{path / MANIFEST} names no decode path", "add [decode] with factory and sources")
    known = sys.modules.get(_NAME)
    if known is None:
        # The package's own __init__ is not run: a directory is reached through its factory alone.
        known = ModuleType(_NAME)
        known.__path__ = [str(path)]
        sys.modules[_NAME] = known
    elif known.__path__ != [str(path)]:
        raise UserError(f"this process has loaded {known.__path__[0]} already", "start another one for another model")

    def module(file: str) -> ModuleType:
        return importlib.import_module(f"{_NAME}.{file.removesuffix('.py').replace('/', '.')}")

    def read(file: str) -> dict[str, Any]:
        return tomllib.loads((path / file).read_text("utf-8"))

    sources = {
        str(file.relative_to(path)): file.read_text("utf-8") for kind in ("*.cu", "*.cuh") for file in path.rglob(kind)
    }
    factory = module(manifest["decode"]["factory"])
    return factory, factory.Directory.of(manifest, read, module, sources)
