"""A FlashInfer Trace definition as an op contract that our judge can rule on.

The oracle is the definition's reference in float64, the plain path the same as written; both run in a sandbox, for the
code is not ours. What a definition leaves open comes from a side file (`judging.py`).
"""

import random
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ... import strict
from ...errors import UserError
from ...records import digest_files
from .. import ModelContract
from ..base import Comparison, Cost, OpContract, TensorRole, TensorSpec, Workload
from . import expressions, files, schema
from .judging import Judging, comparisons, fit, supported
from .sandboxed import Evaluator, SandboxedReference
from .schema import DTYPES, Definition, SafetensorsInput
from .symbols import dense_strides

if TYPE_CHECKING:
    from torch import Tensor

    Tensors = Mapping[str, Tensor]
    Path_ = Callable[[Tensors, Workload], dict[str, Tensor]]

# The judge looks at small batches first; a definition's own workloads rarely are.
_SMALL = (1, 4)
_DERIVED = re.compile(r"-[rv]\d+$")


class ImportedOp(OpContract):
    """A definition, its workloads and its side file as an exam.

    Axes of a workload are all axes of the definition; `rows` is the batch axis (1 where there is none) and `tp` an axis
    of that name, or 1. Tensors are dense, as the format has it. Scalar inputs come as tensors [1]. With a batch axis,
    row counts 1 and 4 are added to the workloads, and `vary` draws others; inputs that come from files keep their
    shape. `not_examined` says what the definition leaves no way to examine.
    """

    model = "trace"

    def __init__(
        self, definition: Definition, given: tuple[schema.Workload, ...], judging: Judging, evaluate: Evaluator,
        root: Path, where: str = "the side file",
    ) -> None:  # fmt: skip
        supported(definition, definition.name)
        fit(judging, definition, where)
        self.op = definition.name
        self.definition = definition
        self.judging = judging
        self._given = {workload.uuid: workload for workload in given}
        self._evaluate = evaluate
        self._root = root
        for reserved, meant in (("rows", judging.batch_axis), ("tp", "tp")):
            if reserved in definition.axes and meant != reserved:
                raise UserError(f"{self.op}: axes.{reserved}: the judge means something else by it", "rename the axis")
        if "tp" in definition.variable:
            raise UserError(f"{self.op}: axes.tp: varies", "make a definition for each value")
        for workload in given:
            if _DERIVED.search(workload.uuid):
                raise UserError(f"{self.op}: workload.uuid: {workload.uuid!r} looks derived", "do not end it like this")
            broken = self._broken(definition.sizes(workload.axes))
            if broken:
                raise UserError(f"{self.op}: workload {workload.uuid}: constraint {broken!r} does not hold",
                                "correct the workload's axes")  # fmt: skip

    @cached_property
    def not_examined(self) -> Mapping[str, str]:
        """Check -> why it does not apply to this definition."""
        found = {
            "strides": "the format's tensors are dense: an implementation that ignores strides is not told apart",
            "stock path": "a definition names none",
        }
        if self.judging.batch_axis is None:
            found["neighbours"] = "no batch axis is declared: whether rows depend on each other is not examined"
            found["unseen shapes"] = "no batch axis is declared: unseen workloads differ in their values alone"
        elif not self._resizable(next(iter(self._given.values()))):
            found["unseen shapes"] = "values come from files, or a constraint ties the batch axis: shapes stay"
        for constraint in self.definition.constraints:
            if self._holds(constraint, self.definition.sizes(next(iter(self._given.values())).axes)) is None:
                found[f"constraint {constraint}"] = "it speaks of values, not of axes alone"
        return found

    def workloads(self, *, held_out: bool = False) -> tuple[Workload, ...]:
        """The definition's own, and small batches of the first; held out: other batches of each where there are any."""
        own = [self._workload(given, given.uuid, given.axes) for given in self._given.values()]
        if held_out:
            return tuple(self.vary(workload, number).model_copy(update={"held_out": True})
                         for number, workload in enumerate(own, 1))  # fmt: skip
        first = next(iter(self._given.values()))
        have = {workload.axes["rows"] for workload in own}
        small = [rows for rows in _SMALL if rows not in have and self._resizable(first, rows)]
        batch = self.judging.batch_axis
        if batch is None and len(own) == 1:
            # Other values at the same sizes: what depends on luck or on memory has to show in more than one place.
            own.append(self._workload(first, f"{first.uuid}-r2", first.axes))
        return (*(self._workload(first, f"{first.uuid}-r{rows}", first.axes | {batch: rows}) for rows in small), *own)

    def vary(self, workload: Workload, seed: int) -> Workload:
        """Another row count, from 1 to twice as many, where the definition allows it; else other values alone."""
        given, name = self._source(workload), f"{workload.name}-v{seed}"
        axes = {axis: workload.axes[axis] for axis in self.definition.variable}
        rows, batch = workload.axes["rows"], self.judging.batch_axis
        rng = random.Random(f"{self.op} {name}")
        others = [count for count in range(2, 2 * rows + 1) if count != rows] if rows > 1 else []
        rng.shuffle(others)
        chosen = next((count for count in others[:8] if self._resizable(given, count)), None)
        if chosen is not None:
            axes |= {batch: chosen}
        return self._workload(given, name, axes).model_copy(update={"held_out": workload.held_out})

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        """Inputs, then outputs, dense."""
        specs = []
        for kind in ("inputs", "outputs"):
            for name, tensor in getattr(self.definition, kind).items():
                role = TensorRole.STATIC if name in self.judging.static else TensorRole(kind.removesuffix("s"))
                shape = (1,) if tensor.shape is None else tuple(workload.axes[axis] for axis in tensor.shape)
                specs.append(TensorSpec(
                    name=name, dtype=DTYPES[tensor.dtype], role=role, shape=shape, strides=dense_strides(shape)
                ))  # fmt: skip
        return tuple(specs)

    @property
    def distributions(self) -> Mapping[str, str]:
        """Those of `values`, less what the side file leaves out."""
        from .values import DISTRIBUTIONS

        for name in self.judging.leave_out:
            if name not in DISTRIBUTIONS or name == "typical":
                raise UserError(f"leave_out: {name!r} cannot be left out", f"known: {', '.join(DISTRIBUTIONS)}")
        found = {name: line for name, line in DISTRIBUTIONS.items() if name not in self.judging.leave_out}
        if len(found) < 2:
            raise UserError("leave_out: only typical values are left", "keep at least one more")
        return found

    def make_inputs(self, workload: Workload, distribution: str, seed: int) -> "dict[str, Tensor]":
        """See `values.draw`."""
        from .values import draw

        given = self._source(workload)
        return draw(self.definition, self.judging, given, workload.axes, self._root, distribution, seed)

    def oracle(self, inputs: "Tensors", workload: Workload) -> "dict[str, Tensor]":
        """The reference in float64, or as written where the side file says so."""
        found = self._evaluate(self.definition, inputs, wide=self.judging.oracle == "float64")
        exact = {comparison.tensor for comparison in self.comparisons if comparison.kind == "exact"}
        return {name: tensor if name in exact or not tensor.is_floating_point() else tensor.double()
                for name, tensor in found.items()}  # fmt: skip

    def plain(self, inputs: "Tensors", workload: Workload) -> "dict[str, Tensor]":
        """The reference as written."""
        return self._evaluate(self.definition, inputs, wide=False)

    def stock(self, device: str) -> "Path_":
        """Raises UserError: a definition names none."""
        raise UserError(f"{self.op} has no stock path on {device!r}", "compare with the definition's other solutions")

    @cached_property
    def comparisons(self) -> tuple[Comparison, ...]:
        """See `judging.comparisons`."""
        return comparisons(self.judging, self.definition)

    @property
    def hypotheses(self) -> "Mapping[str, Path_]":
        """None: nobody has written down the known mistakes of a foreign definition."""
        return {}

    def row_of(self, tensor: str, index: tuple[int, ...], inputs: "Tensors") -> int | None:
        """The index along the batch axis, with which every output begins; all is one row where there is none."""
        if tensor not in self.definition.outputs:
            known = ", ".join(self.definition.outputs)
            raise UserError(f"{self.op} does not produce {tensor!r}", f"it produces {known}")
        return index[0] if self.judging.batch_axis is not None else 0

    def perturb_row(self, inputs: "Tensors", workload: Workload, row: int, seed: int) -> "dict[str, Tensor]":
        """Redraws the row in every input that has the batch axis. Raises UserError where there is none."""
        batch = self.judging.batch_axis
        if batch is None:
            raise UserError(f"{self.op}: {self.not_examined['neighbours']}", "declare batch_axis in the side file")
        fresh = self.make_inputs(workload, "typical", seed)
        changed = {name: tensor.clone() for name, tensor in inputs.items()}
        for name, tensor in self.definition.inputs.items():
            if batch in (tensor.shape or ()):
                at = tensor.shape.index(batch)
                changed[name].select(at, row).copy_(fresh[name].select(at, row))
        return changed

    def cost(self, workload: Workload) -> Cost:
        """Every input read once, every output written once; operations as the side file counts them."""
        sizes = {True: 0, False: 0}
        for spec in self.tensors(workload):
            sizes[spec.role is TensorRole.OUTPUT] += spec.storage_elements * spec.dtype.bytes
        flops = expressions.count(self.judging.flops, workload.axes, "flops")
        return Cost(bytes_read=sizes[False], bytes_written=sizes[True], flops=flops)

    def _workload(self, given: schema.Workload, name: str, variable: Mapping[str, int]) -> Workload:
        axes = self.definition.sizes(dict(variable))
        batch = self.judging.batch_axis
        return Workload(name=name, axes={"tp": 1, **axes, "rows": axes[batch] if batch else 1})

    def _source(self, workload: Workload) -> schema.Workload:
        """The given workload that `workload` was derived from."""
        name = workload.name
        while name not in self._given and _DERIVED.search(name):
            name = _DERIVED.sub("", name)
        if name not in self._given:
            raise UserError(f"{self.op} has no workload {workload.name!r}", f"known: {', '.join(self._given)}")
        return self._given[name]

    def _resizable(self, given: schema.Workload, rows: int = 4) -> bool:
        """Whether the batch axis of a workload may be `rows`: no value comes from a file, no constraint forbids it."""
        batch = self.judging.batch_axis
        if batch is None:
            return False
        for name, tensor in self.definition.inputs.items():
            if batch in (tensor.shape or ()) and isinstance(given.inputs[name], SafetensorsInput):
                if name not in self.judging.integers:
                    return False
        return self._broken(self.definition.sizes(given.axes | {batch: rows})) is None

    def _broken(self, sizes: Mapping[str, int]) -> str | None:
        return next((text for text in self.definition.constraints if self._holds(text, sizes) is False), None)

    def _holds(self, constraint: str, sizes: Mapping[str, int]) -> bool | None:
        """None where the constraint speaks of more than axes."""
        try:
            return bool(expressions.evaluate(constraint, sizes))
        except expressions.NotOverAxes:
            return None


class ImportedModel(ModelContract):
    """One imported op as a model contract. Its digest covers definition, workloads, side file and this room's sources;
    value files are named by the workloads and are not part of it.
    """

    def __init__(self, op: ImportedOp, digest: str) -> None:
        super().__init__(model=op.model, architecture=None, envelope={}, ops={op.op: op})
        object.__setattr__(self, "_digest", digest)

    def digest(self, op: str) -> str:
        """SHA-256 (hex) of what the exam was read from."""
        self.op(op)
        return self._digest


@contextmanager
def imported(
    definition: Path, workloads: Path, judging: Path, root: Path, *, unsafe_no_sandbox: bool = False
) -> Iterator[ImportedModel]:
    """The exam of a definition, with the sandbox of its reference open. Raises UserError naming file, line and field.

    `root` is the directory that paths of value files are relative to.
    """
    read = files.read_definition(definition)
    given = files.read_workloads(workloads, read)
    side = strict.read(judging, Judging)
    exam = {name: path.read_bytes() for name, path in
            (("definition", definition), ("workloads", workloads), ("judging", judging))}  # fmt: skip
    digest = digest_files(exam | {path.name: path.read_bytes() for path in Path(__file__).parent.glob("*.py")})
    with SandboxedReference(unsafe_no_sandbox=unsafe_no_sandbox) as evaluate:
        yield ImportedModel(ImportedOp(read, given, side, evaluate, root, str(judging)), digest)
