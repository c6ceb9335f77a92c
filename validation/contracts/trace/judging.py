"""What a definition does not say and a judge has to know. A small TOML file beside it; nothing of it is guessed."""

from typing import Literal

from pydantic import ConfigDict, Field, model_validator

from ...errors import UserError
from ...records import Frozen
from ..base import Comparison
from . import expressions
from .schema import DTYPES, Definition


class _Strict(Frozen):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Integers(_Strict):
    """How an integer input is drawn: uniformly from `low` to below `high` (expressions over axes)."""

    low: str = "0"
    high: str
    distinct: bool = Field(default=False, description="no value twice: page numbers, slots")


class Tolerance(_Strict):
    """How closely one output is held; see `Comparison`. What is left out is the judge's own."""

    kind: Literal["exact", "calibrated"] = "calibrated"
    ratio: float | None = Field(default=None, ge=1)
    floor: float | None = Field(default=None, ge=0)
    max_ratio: float | None = Field(default=None, ge=1)
    row_axes: int | None = Field(default=None, ge=1)


class Judging(_Strict):
    """The side file of a definition."""

    static: tuple[str, ...] = Field(
        description="inputs that are weights: `prepare` may repack them, and what it does is not part of what is timed"
    )
    batch_axis: str | None = Field(
        default=None,
        description="variable axis that counts independent rows, the first axis of every output; without it no row "
        "count is varied, and that rows do not depend on each other is not examined",
    )
    flops: str = Field(description="operations that cannot be done without, an expression over axes")
    oracle: Literal["float64", "as_written"] = Field(
        default="float64",
        description="float64: the reference with every float type widened; as_written: as it stands, where its own "
        "roundings are meant or it reads bits",
    )
    leave_out: tuple[str, ...] = Field(default=(), description="distributions on which the reference means nothing")
    integers: dict[str, Integers] = {}
    tolerance: dict[str, Tolerance] = {}

    @model_validator(mode="after")
    def _once(self) -> "Judging":
        twice = [name for name in self.static if self.static.count(name) > 1]
        if twice:
            raise ValueError(f"static: {twice[0]!r} is there twice")
        return self


# As in the contracts written by hand: float32 needs room for another order of sums and a GPU's exp and rsqrt; behind
# a rounding to sixteen bits only values next to a boundary tip.
_FLOOR = {"float32": 2.0**-18, "bfloat16": 2.0**-16, "float16": 2.0**-18}


def fit(judging: Judging, definition: Definition, where: str) -> None:
    """Holds a side file against its definition. Raises UserError that names `where` and the field."""

    def refuse(field: str, what: str, how: str) -> None:
        raise UserError(f"{where}: {field}: {what}", how)

    for name in judging.static:
        if name not in definition.inputs:
            refuse("static", f"{name!r} is not an input", f"inputs are {', '.join(definition.inputs)}")
        if definition.inputs[name].shape is None:
            refuse("static", f"{name!r} is a scalar", "weights are tensors")
        if judging.batch_axis in (definition.inputs[name].shape or ()):
            refuse("static", f"{name!r} has the batch axis, so it changes with every call", "leave it out")
    if not set(definition.inputs) - set(judging.static):
        refuse("static", "every input is a weight", "an op has to have an input that changes")
    if judging.batch_axis is not None:
        if judging.batch_axis not in definition.variable:
            variable = ", ".join(definition.variable) or "none"
            how = f"variable are {variable}; leave it out if there are no rows"
            refuse("batch_axis", f"{judging.batch_axis!r} is not a variable axis", how)
        for name, tensor in definition.outputs.items():
            if not tensor.shape or tensor.shape[0] != judging.batch_axis:
                refuse("batch_axis", f"{judging.batch_axis!r} is not the first axis of output {name}",
                       "only rows that outputs begin with can be told apart; leave it out")  # fmt: skip
        for name, tensor in definition.inputs.items():
            if tensor.shape and tensor.shape.count(judging.batch_axis) > 1:
                refuse("batch_axis", f"{name} has {judging.batch_axis!r} twice", "leave it out")
    for name, tensor in definition.inputs.items():
        whole = tensor.dtype.startswith("int")
        if whole and name not in judging.integers:
            refuse(f"integers.{name}", "is missing", "say how this integer input is drawn: low, high, distinct")
    for name in judging.integers:
        if name not in definition.inputs or not definition.inputs[name].dtype.startswith("int"):
            refuse(f"integers.{name}", "is not an integer input", "give integer inputs only")
    for name in judging.tolerance:
        if name not in definition.outputs:
            refuse(f"tolerance.{name}", "is not an output", f"outputs are {', '.join(definition.outputs)}")
    try:
        unknown = sorted(expressions.names(judging.flops) - set(definition.axes))
    except SyntaxError:
        refuse("flops", f"{judging.flops!r} is not an expression", "write an expression over axes")
    if unknown:
        refuse("flops", f"{unknown[0]!r} is not an axis", f"axes are {', '.join(definition.axes)}")


def comparisons(judging: Judging, definition: Definition) -> tuple[Comparison, ...]:
    """One comparison for each output: as the side file has it; else exact integers, and calibrated floats."""
    found = []
    for name, tensor in definition.outputs.items():
        given = judging.tolerance.get(name, Tolerance(kind="exact" if tensor.dtype.startswith("int") else "calibrated"))
        fields = {key: value for key, value in given.model_dump().items() if value is not None}
        if given.kind == "calibrated":
            fields.setdefault("floor", _FLOOR.get(tensor.dtype, 0.0))
        found.append(Comparison(tensor=name, **fields))
    return tuple(found)


def supported(definition: Definition, where: str) -> None:
    """Raises UserError for what the judge cannot hold: element types without one of ours, scalar outputs, names."""
    bound = {axis for tensor in definition.inputs.values() for axis in tensor.shape or ()}
    for axis in definition.variable:
        if axis not in bound:
            raise UserError(f"{where}: axes.{axis}: varies, but no input has it", "give an input that shows its size")
    for kind in ("inputs", "outputs"):
        for name, tensor in getattr(definition, kind).items():
            field = f"{where}: {kind}.{name}"
            if not name.isidentifier() or name.startswith("_"):
                raise UserError(f"{field}: is no name for a buffer", "use an identifier")
            if DTYPES[tensor.dtype] is None:
                known = ", ".join(key for key, ours in DTYPES.items() if ours)
                raise UserError(f"{field}.dtype: {tensor.dtype} cannot be judged here", f"known: {known}")
            if not tensor.shape and (kind == "outputs" or tensor.shape is not None):
                raise UserError(f"{field}.shape: has no axis", "give it an axis of size one")
            if tensor.shape is None and not tensor.dtype.startswith(("float", "bfloat")):
                raise UserError(f"{field}: an integer scalar may be a size or a value, and which is not said",
                                "make it an axis, or a tensor")  # fmt: skip
