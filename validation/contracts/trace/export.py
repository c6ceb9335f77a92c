"""An op contract as a FlashInfer Trace definition with workloads: the pure part, and the one function that writes.

What the format cannot say is said with what it has, or refused:

- *State* is updated in place here; there an input stays as it is. Each state becomes an input and an output `new_...`,
  whole pools with the pages that nobody owns included.
- *Strides*: tensors there are dense, so page gaps and row gaps are left out. An op with gaps that no axis controls is
  refused. That an implementation must honour strides is not examined there.
- *Static* tensors are not told apart there; descriptions say which they are.
- *Padded rows* are values: a slot that is not positive. Nothing else marks them.
- *Values*: the format's own random values are unit normals, which are no pools, slots or decay rates. Every input is
  written to safetensors files, drawn from one distribution of the contract with a public seed.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import UserError
from ...records import canonical_json, sha256
from ..base import OpContract, TensorRole, TensorSpec
from ..base import Workload as OurWorkload
from .files import to_json
from .references import REFERENCES, reference
from .schema import DTYPE_NAMES, AxisConst, AxisVar, Definition, SafetensorsInput, Tensor, Trace, Workload
from .symbols import Symbols, dense, symbols

if TYPE_CHECKING:
    from torch import Tensor as Values

MAX_BYTES = 8 << 30


@dataclass(frozen=True)
class Exported:
    """What one export wrote, relative to the root of the trace set."""

    definition: Path
    workloads: Path
    values: tuple[Path, ...]


class OpExport:
    """One op on one rank of `tp`, in the format's words. Raises UserError where it has none."""

    def __init__(self, contract: OpContract, tp: int) -> None:
        workloads = tuple(w for w in contract.workloads() if w.axes["tp"] == tp)
        if not workloads:
            known = sorted({w.axes["tp"] for w in contract.workloads()})
            raise UserError(f"{contract.op} has no workload at TP {tp}", f"use one of {', '.join(map(str, known))}")
        self.contract = contract
        self.tp = tp
        self.workloads: Mapping[str, OurWorkload] = {w.name: w for w in workloads}
        self.specs: Mapping[str, TensorSpec] = {spec.name: spec for spec in contract.tensors(workloads[0])}
        for spec in self.specs.values():
            if spec.dtype not in DTYPE_NAMES:
                raise UserError(
                    f"{contract.op}: {spec.name} is {spec.dtype.value}, a type that the format does not have",
                    f"it has {', '.join(DTYPE_NAMES.values())}; an op with other tensors cannot be exported",
                )
        self.symbols: Symbols = symbols(contract, workloads)

    @property
    def name(self) -> str:
        """The definition's name."""
        return f"{self.contract.model}_{self.contract.op}_tp{self.tp}"

    @property
    def states(self) -> Mapping[str, str]:
        """State -> the output that holds it afterwards."""
        return {name: f"new_{name}" for name, spec in self.specs.items() if spec.role is TensorRole.STATE}

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the definition's inputs, in order."""
        return tuple(name for name, spec in self.specs.items() if spec.role is not TensorRole.OUTPUT)

    @property
    def outputs(self) -> Mapping[str, str]:
        """Output of the definition -> tensor of the op, in order."""
        produced = {new: state for state, new in self.states.items()}
        return produced | {name: name for name, spec in self.specs.items() if spec.role is TensorRole.OUTPUT}

    def definition(self) -> Definition:
        """The definition, with a reference that stands alone."""
        found = self.symbols
        axes = {_named(name): AxisConst(type="const", value=size) for name, size in found.constant.items()}
        axes |= {_named(name): AxisVar(type="var") for name in found.variable}
        return Definition(
            name=self.name,
            op_type=self.contract.op,
            axes=axes,
            inputs={name: self._tensor(name, _ROLES[self.specs[name].role]) for name in self.inputs},
            outputs={
                new: self._tensor(ours, f"{ours} after the step" if new != ours else None)
                for new, ours in self.outputs.items()
            },
            reference=self._reference(),
            tags=(f"model:{self.contract.model}", f"tp:{self.tp}", "stage:decode"),
            description=inspect.getdoc(type(self.contract)),
        )

    def workload(self, name: str, where: Mapping[str, tuple[str, str]]) -> Trace:
        """A line of the workload file; `where` says in which file, under which key, each input lies."""
        chosen = self.workloads[name]
        axes = {_named(axis): chosen.axes[axis] for axis in self.symbols.variable}
        inputs = {key: SafetensorsInput(type="safetensors", path=at[0], tensor_key=at[1]) for key, at in where.items()}
        return Trace(definition=self.name, workload=Workload(axes=axes, inputs=inputs, uuid=name))

    def values(self, name: str, distribution: str, seed: int) -> "dict[str, Values]":
        """Inputs and initial state of a workload, dense. Raises UserError where the expected outputs are not finite.

        The format's evaluator rejects whatever holds NaN or infinity, a page that nobody touches included.
        """
        if distribution not in self.contract.distributions:
            known = ", ".join(self.contract.distributions)
            raise UserError(f"{self.contract.op} has no distribution {distribution!r}", f"use one of {known}")
        chosen = dense(self.contract, self.symbols, self.workloads[name])
        inputs = self.contract.make_inputs(chosen, distribution, seed)
        for tensor, expected in self.contract.oracle(inputs, chosen).items():
            if not bool(expected.isfinite().all()):
                raise UserError(
                    f"{self.contract.op}: with {distribution!r} values {tensor} is not finite everywhere, which the "
                    "format's evaluator takes for an error", "export another distribution, such as typical",
                )  # fmt: skip
        return inputs

    def _tensor(self, name: str, description: str | None) -> Tensor:
        shape = tuple(map(_named, self.symbols.shapes[name]))
        return Tensor(shape=shape, dtype=DTYPE_NAMES[self.specs[name].dtype], description=description)

    def _reference(self) -> str:
        """The module's own text, and a `run` that calls it with this model's constants and rounds once at the end."""
        chosen = reference(self.contract)
        constants = chosen.constants(self.contract.architecture)
        renamed = {ours: parameter for parameter, ours in chosen.renamed.items()}
        arguments = [f"{renamed.get(name, name)}={name}" for name in self.inputs]
        arguments += [f"{name}={value!r}" for name, value in constants.items()]
        results = [
            ("result" if chosen.output is not None else f"result[{ours!r}]")
            + f".to(torch.{DTYPE_NAMES[self.specs[ours].dtype]})"
            for ours in self.outputs.values()
        ]
        returned = results[0] if len(results) == 1 else "(\n        " + ",\n        ".join(results) + ",\n    )"
        return (
            f"{chosen.source.rstrip()}\n\n\ndef run({', '.join(self.inputs)}):\n"
            f'    """What the definition asks for: the exact results, each rounded once to its type."""\n'
            f"    result = exact({', '.join(arguments)})\n    return {returned}\n"
        )


def _named(axis: str) -> str:
    """What the format's own definitions call an axis of ours."""
    return "batch_size" if axis == "rows" else axis


_ROLES = {
    TensorRole.STATIC: "static: a weight, the same at every call; it may be repacked once, outside of what is timed",
    TensorRole.INPUT: "changes with every call",
    TensorRole.STATE: "state before the step; it has to stay as it is, the output new_... takes the state afterwards",
}


def write(
    export: OpExport, root: Path, *, workloads: Sequence[str] = (), distribution: str = "typical", seed: int = 0
) -> Exported:
    """Writes definition, workloads (all of this TP by default) and values below `root`; equal files are written once.

    Raises UserError for an unknown workload, or for values beyond 8 GiB.
    """
    names = tuple(workloads) or tuple(export.workloads)
    for name in names:
        if name not in export.workloads:
            raise UserError(f"{export.name} has no workload {name!r}", f"use one of {', '.join(export.workloads)}")
    total = sum(
        spec.dtype.bytes * spec.storage_elements
        for name in names
        for spec in export.contract.tensors(export.workloads[name])
        if spec.role is not TensorRole.OUTPUT
    )
    if total > MAX_BYTES:
        raise UserError(f"{export.name}: {len(names)} workloads hold {total / 2**30:.1f} GiB of values",
                        "choose some with --workload")  # fmt: skip
    definition = export.definition()
    kind, lines, written = definition.op_type, [], {}
    for name in names:
        values = export.values(name, distribution, seed)
        static = {key: value for key, value in values.items() if export.specs[key].role is TensorRole.STATIC}
        rest = {key: value for key, value in values.items() if key not in static}
        where: dict[str, tuple[str, str]] = {}
        for label, part in (("static", static), (name, rest)):
            if not part:
                continue
            suffix = f"-{_digest(part)[:12]}" if label == "static" else ""
            path = Path("blob") / "workloads" / kind / export.name / f"{label}{suffix}.safetensors"
            if path not in written:
                _save(root / path, part)
                written[path] = True
            where |= {key: (path.as_posix(), key) for key in part}
        ordered = {key: where[key] for key in export.inputs}
        lines.append(canonical_json(export.workload(name, ordered).model_dump(mode="json")))
    at = Path("definitions") / kind / f"{export.name}.json"
    put(root / at, to_json(definition))
    to = Path("workloads") / kind / f"{export.name}.jsonl"
    put(root / to, "\n".join(lines) + "\n")
    return Exported(at, to, tuple(written))


def exportable() -> tuple[str, ...]:
    """Ops that have a reference."""
    return tuple(REFERENCES)


def put(path: Path, text: str) -> None:
    """Writes a text file and the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def _save(path: Path, tensors: "Mapping[str, Values]") -> None:
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


def _digest(tensors: "Mapping[str, Values]") -> str:
    import torch

    parts = (f"{name} {sha256(_raw(value.contiguous().view(torch.uint8)))}" for name, value in sorted(tensors.items()))
    return sha256("\n".join(parts).encode())


def _raw(flat: "Values") -> bytes:
    return flat.numpy().tobytes()
