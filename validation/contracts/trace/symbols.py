"""Which numbers of an op's shapes are named axes, found by moving each axis and looking at what moves with it.

The format has names where contracts have numbers, and knows dense tensors alone. So an axis of a workload is one of

- a *size*: moving it moves dimensions that equal it. Variable where workloads of one TP differ in it;
- a *stride*: moving it moves nothing but one stride. The format has none: tensors come dense;
- a *constant*: nothing moves, and every workload of one TP has the same value.

Whatever fits none of these cannot be said in the format and is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...errors import UserError
from ..base import OpContract, TensorSpec, Workload

_HOW = "the format knows dense tensors with named axes only; this op cannot be exported as it is"

Place = tuple[str, int]
"""(tensor, dimension)"""

# A multiple of every alignment that contracts ask of strides.
_STEP = 4096


@dataclass(frozen=True)
class Symbols:
    """How an op's tensors are said with named axes."""

    shapes: Mapping[str, tuple[str, ...]]
    """Tensor -> names of its axes."""
    constant: Mapping[str, int]
    """Axes of one size."""
    variable: tuple[str, ...]
    """Axes whose size comes with the inputs."""
    sizes: Mapping[str, Place]
    """Axis of the contract -> a dimension that equals it."""
    strides: Mapping[str, Place]
    """Axis of the contract -> the stride that it is."""
    fixed: Mapping[str, int]
    """Axis of the contract -> the value that it has in every workload."""


def symbols(contract: OpContract, workloads: Sequence[Workload]) -> Symbols:
    """The symbols of `contract` over `workloads`, all of one TP. Raises UserError where the format has no words."""
    first = workloads[0]
    tables = [_by_name(contract.tensors(workload)) for workload in workloads]
    if any(list(table) != list(tables[0]) for table in tables):
        raise UserError(f"{contract.op}: workloads differ in which tensors there are", _HOW)
    moves = {axis: _moved(contract, first, axis) for axis in first.axes}
    sizes, strides, fixed, named = {}, {}, {}, {}
    for axis, (dimensions, gaps) in moves.items():
        varies = len({workload.axes[axis] for workload in workloads}) > 1
        equal = [at for at in dimensions if tables[0][at[0]].shape[at[1]] == first.axes[axis]]
        if varies and len(equal) != len(dimensions):
            odd = next(at for at in dimensions if at not in equal)
            raise UserError(f"{contract.op}: dimension {odd[1]} of {odd[0]} depends on {axis} but is not {axis}", _HOW)
        if equal:
            sizes[axis] = equal[0]
            named |= dict.fromkeys(equal, axis)
        elif len(gaps) == 1 and not dimensions:
            strides[axis] = gaps[0]
        elif not varies:
            fixed[axis] = first.axes[axis]
        else:
            raise UserError(f"{contract.op}: axis {axis} varies but is no size and no single stride", _HOW)
    shapes, constant = {}, {}
    for name, spec in tables[0].items():
        shapes[name] = tuple(named.get((name, at), f"size_{size}") for at, size in enumerate(spec.shape))
        for at, (axis, size) in enumerate(zip(shapes[name], spec.shape, strict=True)):
            if len({table[name].shape[at] for table in tables}) == 1:
                constant.setdefault(axis, size)
            elif axis not in sizes:
                raise UserError(f"{contract.op}: dimension {at} of {name} varies and is no axis", _HOW)
    variable = tuple(axis for axis in sizes if axis not in constant)
    found = Symbols(shapes, constant, variable, sizes, strides, fixed)
    for workload in workloads:
        _assert_dense(contract, dense(contract, found, workload))
    return found


def dense(contract: OpContract, found: Symbols, workload: Workload) -> Workload:
    """`workload` with every stride axis at the value that a dense tensor has."""
    specs = _by_name(contract.tensors(workload))
    gapless = {axis: dense_strides(specs[name].shape)[at] for axis, (name, at) in found.strides.items()}
    return workload.model_copy(update={"axes": workload.axes | gapless})


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides, in elements, of a dense tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def _assert_dense(contract: OpContract, workload: Workload) -> None:
    for spec in contract.tensors(workload):
        places = zip(spec.shape, spec.strides, dense_strides(spec.shape), strict=True)
        if any(size > 1 and stride != gapless for size, stride, gapless in places):
            raise UserError(f"{contract.op}: {spec.name} has gaps that no axis controls (strides {spec.strides})", _HOW)


def _moved(contract: OpContract, workload: Workload, axis: str) -> tuple[list[Place], list[Place]]:
    """Dimensions, and strides, that change with `axis`; none where the contract does not allow the axis to change."""
    before = _by_name(contract.tensors(workload))
    try:
        after = _by_name(contract.tensors(
            workload.model_copy(update={"axes": workload.axes | {axis: workload.axes[axis] + _STEP}})
        ))  # fmt: skip
    except UserError:
        return [], []  # such as a TP that does not divide the heads
    if list(after) != list(before):
        return [], []  # a switch: some tensor comes or goes with it
    places = [(name, at) for name, spec in before.items() for at in range(len(spec.shape))]
    return (
        [(name, at) for name, at in places if before[name].shape[at] != after[name].shape[at]],
        [(name, at) for name, at in places if before[name].strides[at] != after[name].strides[at]],
    )


def _by_name(specs: Sequence[TensorSpec]) -> dict[str, TensorSpec]:
    return {spec.name: spec for spec in specs}
