"""From the plan's arguments to what an interpreted kernel is called with, and the memory that it may then touch."""

import inspect

import numpy as np
import triton.language as tl

from ...errors import UserError
from ..pack import (
    Argument,
    BufferArgument,
    Constant,
    DTypeConstant,
    KernelPack,
    KernelVariant,
    Launch,
    PeerTableArgument,
    Role,
    TensorMapArgument,
)
from . import descriptors, execute
from .access_log import AccessLog, Shadow, shadow
from .memory import Memory, Range


class Bound:
    """One launch on the buffers of a run: `buffers` as in the job's payload, mapped at `base`, `size` bytes in all."""

    def __init__(
        self, launch: Launch, variant: KernelVariant, buffers: dict, base: int, size: int, log: AccessLog
    ) -> None:
        self._launch, self._variant, self._log = launch, variant, log
        self._buffers, self._base, self._size = buffers, base, size
        # Tables live as long as the launch; the kernel may read them, not write.
        self._tables = {
            name: np.array([self._address(entry) for entry in argument.buffers], np.uint64)
            for name, argument in launch.arguments.items()
            if isinstance(argument, PeerTableArgument)
        }
        self.memory = Memory(variant.function, self._ranges(), log)

    def values(self, kernel) -> dict[str, object]:
        """Every parameter's value: pointers, scalars, descriptors, tuples, constants as the kernel declares them."""
        values: dict[str, object] = {}
        for name, parameter in inspect.signature(kernel.fn).parameters.items():
            declared = "constexpr" in str(parameter.annotation)
            value = self._value(name, declared)
            if value is not _ABSENT:
                values[name] = value
            elif parameter.default is inspect.Parameter.empty:
                what = f"kernel {self._variant.function}: parameter {name} has no value in the plan"
                raise UserError(what, "record it again")
        return values

    def _value(self, name: str, declared: bool) -> object:
        if name in self._launch.arguments:
            return self._argument(name, self._launch.arguments[name])
        if name in self._variant.constexprs:
            value = constant(self._variant.constexprs[name])
            # An ordinary parameter that the compiler specialised on (an integer 1, say) is still an i32 to the kernel.
            ordinary = not declared and isinstance(value, bool | int)
            return execute.scalar(value, "i1" if isinstance(value, bool) else "i32") if ordinary else value
        known = [*self._launch.arguments, *self._variant.constexprs]
        count = len({key[len(name) + 1 :].partition(".")[0] for key in known if key.startswith(f"{name}.")})
        return tuple(self._value(f"{name}.{number}", declared) for number in range(count)) or _ABSENT

    def _argument(self, name: str, argument: Argument) -> object:
        match argument:
            case BufferArgument():
                return execute.pointer(self._address(argument), argument.dtype.value)
            case TensorMapArgument():
                return descriptors.host(execute.pointer(self._address(argument), argument.dtype.value), argument)
            case PeerTableArgument():
                return execute.pointer(self._tables[name].ctypes.data, "i64")
        return execute.scalar(argument.value, argument.type)

    def _address(self, argument: BufferArgument | TensorMapArgument) -> int:
        place = self._buffers[argument.buffer]
        return (self._base + place["offset"] + argument.offset - place.get("shift", 0)) % 2**64

    def _ranges(self) -> list[Range]:
        """The launch's buffers as address ranges. A prefetch launch may write nothing."""
        users: dict[str, list[str]] = {}
        for name, argument in self._launch.arguments.items():
            for entry in _pointers(argument):
                users.setdefault(entry.buffer, []).append(name)
        ranges = []
        for name, parameters in users.items():
            offset, length = self._buffers[name]["offset"], self._buffers[name]["bytes"]
            if offset < 0 or length < 0 or offset + length > self._size:
                what = f"buffer {name}: bytes {offset} to {offset + length} lie outside the {self._size} mapped"
                raise UserError(what, "map it")
            writable = self._buffers[name]["writable"] and self._launch.role is not Role.PREFETCH
            start = self._base + offset
            known = self._log.of(name)
            ranges.append(Range(name, tuple(dict.fromkeys(parameters)), start, start + length, writable, known))
        for name, table in self._tables.items():
            start = table.ctypes.data
            ranges.append(Range(f"table of peers {name}", (name,), start, start + table.nbytes, False))
        return ranges


_ABSENT = object()


def _pointers(argument: Argument) -> tuple[BufferArgument | TensorMapArgument, ...]:
    if isinstance(argument, PeerTableArgument):
        return argument.buffers
    return (argument,) if isinstance(argument, BufferArgument | TensorMapArgument) else ()


def shadows(pack: KernelPack, buffers: dict, base: int) -> dict[str, Shadow]:
    """A shadow for every buffer that the plan names and may write, as fine as the finest pointer into it."""
    sizes: dict[str, int] = {}
    for launch in pack.launches:
        for entry in (entry for argument in launch.arguments.values() for entry in _pointers(argument)):
            sizes[entry.buffer] = min(sizes.get(entry.buffer, 8), entry.dtype.bytes)
    made = {name: shadow(name, buffers[name], base + buffers[name]["offset"], size) for name, size in sizes.items()}
    return {name: one for name, one in made.items() if one is not None}


def constant(value: Constant) -> object:
    """A constexpr of the plan as the language has it."""
    if isinstance(value, tuple):
        return tuple(constant(part) for part in value)
    return getattr(tl, value.dtype) if isinstance(value, DTypeConstant) else value
