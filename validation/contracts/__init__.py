"""The exams: which models and ops there are, and how to load one. Imports no tensor library."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..records import canonical_json, digest_files
from .base import OpContract
from .policy import Envelope
from .subgraph import SEPARATOR

if TYPE_CHECKING:
    from .grid import Grid

ROOT = Path(__file__).parent.parent

_POLICY = "contract.toml"

# A model whose ops are judged one by one, so far: nothing says what reads what.
_NO_GRAPH = SimpleNamespace(LAYERS={}, STEP=None, STEP_FILES=())

# What makes one exam of several.
_PART_FILES = ("choice.py", "connected.py", "graph.py", "layers.py", "part.py")

_JOINED_FILES = ("contracts/drawn.py", "contracts/joined.py", "contracts/subgraph.py")

# Shared by every op: what a comparison means and how it is decided.
_COMMON_FILES = (
    "contracts/base.py",
    "contracts/policy.py",
    "numerics/calibrate.py",
    "numerics/errors.py",
    "records.py",
    "strict.py",
    "tensors.py",
)


@dataclass(frozen=True)
class ModelContract:
    """One model's exam: its ops by name, its constants, and what a manifest may claim per hardware."""

    model: str
    architecture: Any
    """The model's own constants: what they are called is between its files"""
    envelope: Mapping[str, Envelope]
    ops: Mapping[str, OpContract]

    def op(self, name: str) -> OpContract:
        """The contract of op `name`, of a connected part of the op graph (`o_proj_residual+attn_res_norm`), of a
        layer (`layer:kda`) or of a whole `step`.

        Raises UserError with the nearest known name, or with what is connected to what.
        """
        if self.model not in models():  # imported from elsewhere: ops, and nothing around them
            return self.ops[_known(f"op of {self.model}", name, tuple(self.ops))]
        if name == _whole(self.model).STEP:
            return import_module(f".{self.model}", __package__).whole_step()
        if len(_ops_of(self.model, name)) > 1:
            _require(self.model, "graph.py", f"{name!r} cannot be judged as one")
            return import_module(f".{self.model}.part", __package__).subgraph(self.architecture, self.ops, name)
        return self.ops[_known(f"op of {self.model}", name, (*self.ops, *_wholes(self.model)))]

    @property
    def has_grid(self) -> bool:
        """Whether the model has a performance grid."""
        return (ROOT / "contracts" / self.model / "grid.py").is_file()

    @property
    def grid(self) -> "Grid":
        """The model's performance grid. Raises UserError where the model has none yet."""
        _require(self.model, "grid.py", f"{self.model} has no performance grid")
        return import_module(f".{self.model}.grid", __package__).grid(self.architecture, self.ops)

    def digest(self, op: str) -> str:
        """SHA-256 (hex) of the installed files that make up the exam of `op`."""
        return contract_digest(self.model, op)


def models() -> tuple[str, ...]:
    """Names of the models that have a contract: directories beside this file that hold a `contract.toml`."""
    return tuple(sorted(path.parent.name for path in (ROOT / "contracts").glob(f"*/{_POLICY}")))


def load(model: str) -> ModelContract:
    """The contract of `model`. Raises UserError for an unknown name, or a file of the contract that does not fit."""
    package = import_module(f".{_known('model', model, models())}", __package__)
    architecture, envelope, ops = package.load()
    return ModelContract(model=model, architecture=architecture, envelope=envelope, ops=ops)


def contract_files(model: str, op: str) -> tuple[str, ...]:
    """POSIX paths, relative to `validation/`, of all files that make up the exam of `op` (or part), in order."""
    package = import_module(f".{_known('model', model, models())}", __package__)
    if op == _whole(model).STEP:
        return tuple(sorted({*_COMMON_FILES, *(f"contracts/{model}/{name}" for name in _whole(model).STEP_FILES)}))
    names = _ops_of(model, op)
    known = (*package.FILES, *_wholes(model))
    own = {name for one in names for name in package.FILES[_known(f"op of {model}", one, known)]}
    shared = getattr(package, "SHARED", ())
    if len(names) > 1:
        _require(model, "graph.py", f"{op!r} cannot be judged as one")
    part = (*_JOINED_FILES, *(f"contracts/{model}/{name}" for name in _PART_FILES)) if len(names) > 1 else ()
    return tuple(sorted({*_COMMON_FILES, *shared, *part, *(f"contracts/{model}/{name}" for name in own)}))


def contract_digest(model: str, op: str, files: Mapping[str, bytes] | None = None) -> str:
    """SHA-256 (hex) over the files of `contract_files`, as installed, or as given: path -> contents.

    `files` may hold more than is needed (a whole tree of a commit). Of `contract.toml` only the envelopes and the
    op's own section count, comments aside, so that ops do not stale each other. Raises UserError when a file is
    missing, or is no TOML.
    """
    names = contract_files(model, op)
    if files is None:
        files = {name: (ROOT / name).read_bytes() for name in names}
    missing = [name for name in names if name not in files]
    if missing and not any(name.startswith(f"contracts/{model}/") for name in files):
        how = f"a contract counts from the base on: merge validation/contracts/{model}/ first, by ordinary review"
        raise UserError(f"that tree has no contract of {model}", how)
    if missing:
        raise UserError(f"the contract of {model}/{op} lacks validation/{missing[0]}", "compare trees of one version")
    policy = f"contracts/{model}/{_POLICY}"
    return digest_files({name: _section(files[name], _ops_of(model, op)) if name == policy else files[name] for name in names})


def _section(policy: bytes, ops: tuple[str, ...]) -> bytes:
    try:
        document = tomllib.loads(policy.decode("utf-8"))
    except ValueError as error:
        raise UserError(f"{_POLICY}: {error}", "compare trees whose contracts can be read") from error
    sections = [document.get("ops", {}).get(name) for name in ops]
    return canonical_json(
        {"envelope": document.get("envelope"), "op": sections if len(sections) > 1 else sections[0]}
    ).encode()


def _whole(model: str) -> Any:
    """Layers and step of a model, or nothing of the kind."""
    if not (ROOT / "contracts" / model / "layers.py").is_file():
        return _NO_GRAPH
    return import_module(f".{model}.layers", __package__)


def _require(model: str, name: str, what: str) -> None:
    if not (ROOT / "contracts" / model / name).is_file():
        how = "judge ops one by one, or add the file as kimi_k3 has it"
        raise UserError(f"{what}: there is no validation/contracts/{model}/{name}", how)


def _wholes(model: str) -> tuple[str, ...]:
    """Names of layers and of the step."""
    return tuple(name for name in (*_whole(model).LAYERS, _whole(model).STEP) if name)


def _ops_of(model: str, name: str) -> tuple[str, ...]:
    """The ops of a part, by its name: one for a single op."""
    return _whole(model).LAYERS.get(name) or tuple(name.split(SEPARATOR))


def _known(kind: str, name: str, names: tuple[str, ...]) -> str:
    if name in names:
        return name
    near = get_close_matches(name, names, n=1)
    how = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
    raise UserError(f"no {kind} is called {name!r}", how)
