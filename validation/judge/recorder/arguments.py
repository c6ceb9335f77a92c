"""From the values of a launch to the plan's arguments: names for pointers, plain values, a refusal for the rest."""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
import triton.language as tl

from ...tensors import DType, torch_dtype
from ..kernel_vocabulary import TL_TYPES
from ..pack import (
    Argument,
    BufferArgument,
    Constant,
    DTypeConstant,
    PeerTableArgument,
    ScalarArgument,
    TensorMapArgument,
)
from ..plan_argument import MAX_PEERS
from .cuda import Scalar, TensorMap

_POINTEES = {torch_dtype(dtype): dtype for dtype in DType}
_POINTEE_NAMES = frozenset(dtype.value for dtype in DType)
_DTYPE_NAMES = {str(getattr(tl, name)): name for name in sorted(TL_TYPES)}
_MAX_TABLES = 64
_NUMBERS = (bool, int, float)


class Arguments:
    """Knows the storages that a launch's pointers may point into. `refuse(reason, message)` raises."""

    def __init__(self, buffers: Mapping[str, torch.Tensor], refuse: Callable[[str, str], NoReturn]) -> None:
        self._refuse = refuse
        storages = {name: tensor.untyped_storage() for name, tensor in buffers.items()}
        self.addresses = {name: storage.data_ptr() for name, storage in storages.items()}
        self._storages = {storage.data_ptr(): (name, storage.nbytes()) for name, storage in storages.items()}
        # Made before `launch` runs, which may make no tensor. Nothing reads them: they stand for tables.
        self._table_memory = torch.empty((_MAX_TABLES, MAX_PEERS), dtype=torch.int64)
        self._tables: list[PeerTableArgument] = []

    def constant(self, kernel: str, parameter: str, value: Any) -> Constant:
        """A constexpr as data."""
        value = getattr(value, "value", value) if type(value).__name__ == "constexpr" else value
        if type(value) is tuple:
            return tuple(self._scalar_constant(kernel, parameter, part) for part in value)
        return self._scalar_constant(kernel, parameter, value)

    def _scalar_constant(self, kernel: str, parameter: str, value: Any) -> Any:
        value = getattr(value, "value", value) if type(value).__name__ == "constexpr" else value
        if type(value) is tl.dtype and str(value) in _DTYPE_NAMES:
            return DTypeConstant(dtype=_DTYPE_NAMES[str(value)])
        if type(value) not in (bool, int, float, str, type(None)):
            self._refuse(
                "record.constexpr",
                f"{kernel}: constexpr {parameter!r} is a {type(value).__name__} ({value!r}); plans hold numbers, "
                "strings, booleans, None, Triton's element types, and tuples of these",
            )
        if isinstance(value, float) and not math.isfinite(value):
            self._refuse("record.constexpr", f"{kernel}: constexpr {parameter!r} is {value}; write it in the kernel")
        return value

    def triton(self, kernel: str, parameter: str, kind: str, value: Any) -> Argument:
        """The argument of a Triton kernel that bound `value` as a `kind`."""
        if kind.startswith("*"):
            return self._triton_pointer(kernel, parameter, kind, value)
        if kind.startswith("tensordesc"):
            base = self._buffer(kernel, parameter, value.base)
            return TensorMapArgument(
                buffer=base.buffer, offset=base.offset, dtype=base.dtype, shape=tuple(value.shape),
                strides=tuple(value.strides), block_shape=tuple(value.block_shape), padding=value.padding,
                round_to_tf32=value.round_f32_to_tf32,
            )  # fmt: skip
        return self._number(kernel, parameter, kind, value)

    def cuda(self, kernel: str, parameter: str, value: Any) -> tuple[str, Argument]:
        """(type, argument) of a CUDA kernel's parameter."""
        match value:
            case torch.Tensor() if self._is_table(value):
                return "peers", self._table(kernel, parameter, value)
            case torch.Tensor():
                argument = self._buffer(kernel, parameter, value)
                return f"*{argument.dtype}", argument
            case TensorMap():
                base = self._buffer(kernel, parameter, value.tensor)
                return "tensor_map", TensorMapArgument(
                    buffer=base.buffer, offset=base.offset, dtype=base.dtype, shape=tuple(value.tensor.shape),
                    strides=value.tensor.stride(), block_shape=value.block_shape, padding=value.padding,
                    swizzle=value.swizzle, round_to_tf32=value.round_to_tf32,
                )  # fmt: skip
            case Scalar(type=kind, value=number):
                return kind, self._number(kernel, parameter, kind, number)
            case bool():
                return "u1", ScalarArgument(type="u1", value=value)
            case int():
                if not -(2**31) <= value < 2**31:
                    self._refuse(
                        "record.scalar", f"{kernel}: {parameter!r} is {value}, no i32; write ctx.scalar('i64', ...)"
                    )
                return "i32", self._number(kernel, parameter, "i32", value)
            case float():
                return "fp32", self._number(kernel, parameter, "fp32", value)
        self._refuse(
            "record.cuda_argument",
            f"{kernel}: {parameter!r} is a {type(value).__name__}; a CUDA kernel takes tensors, bool, int (i32), float "
            "(fp32), ctx.scalar(), ctx.tensor_map() and ctx.peers()",
        )

    def peers(self, tensors: Sequence[Any]) -> torch.Tensor:
        """A stand-in for a device table of the addresses of `tensors`."""
        if not 1 <= len(tensors) <= MAX_PEERS:
            self._refuse("record.peers", f"a table of {len(tensors)} peers; 1 to {MAX_PEERS} are possible")
        table = PeerTableArgument(
            buffers=tuple(self._buffer("peers", f"rank {rank}", tensor) for rank, tensor in enumerate(tensors))
        )
        if table not in self._tables:
            if len(self._tables) == _MAX_TABLES:
                self._refuse("record.peers", f"more than {_MAX_TABLES} tables of peers")
            self._tables.append(table)
        return self._table_memory[self._tables.index(table), : len(tensors)]

    def _is_table(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == "cpu" and tensor.untyped_storage().data_ptr() == self._table_memory.data_ptr()

    def _table(self, kernel: str, parameter: str, tensor: torch.Tensor) -> PeerTableArgument:
        row, rest = divmod(tensor.storage_offset(), MAX_PEERS)
        if rest or row >= len(self._tables) or tensor.dtype is not torch.int64:
            self._refuse("record.peers", f"{kernel}: {parameter!r} is part of a table of peers; pass the table")
        return self._tables[row]

    def _number(self, kernel: str, parameter: str, kind: str, value: Any) -> ScalarArgument:
        if type(value) not in _NUMBERS and not hasattr(value, "__index__"):
            self._refuse("record.scalar", f"{kernel}: {parameter!r} is a {type(value).__name__}, no {kind}")
        if kind == "u1":
            return ScalarArgument(type=kind, value=bool(value))
        if kind.startswith(("fp", "bf")):
            number = float(value)
            if not math.isfinite(number):
                self._refuse("record.scalar", f"{kernel}: {parameter!r} is {number}; write it in the kernel")
            return ScalarArgument(type=kind, value=number)
        if type(value) is float:
            self._refuse("record.scalar", f"{kernel}: {parameter!r} is {value}, no {kind}")
        number = operator.index(value)
        for base, (name, size) in self._storages.items():
            if base <= number < base + size:
                self._refuse(
                    "record.raw_pointer",
                    f"{kernel}: {parameter!r} is the address of buffer {name!r} as an integer; pass the tensor",
                )
        return ScalarArgument(type=kind, value=number)

    def _triton_pointer(self, kernel: str, parameter: str, kind: str, value: Any) -> Argument:
        tensor = getattr(value, "base", value) if type(value).__name__ == "TensorWrapper" else value
        pointee = kind.removeprefix("*").removeprefix("k")
        if pointee not in _POINTEE_NAMES:
            known = sorted(_POINTEE_NAMES)
            self._refuse("record.dtype", f"{kernel}: {parameter!r} points to {pointee}; known: {known}")
        if type(tensor) is torch.Tensor and self._is_table(tensor):
            return self._table(kernel, parameter, tensor)
        return self._buffer(kernel, parameter, tensor, DType(pointee))

    def _buffer(self, kernel: str, parameter: str, tensor: Any, pointee: DType | None = None) -> BufferArgument:
        if not isinstance(tensor, torch.Tensor):
            self._refuse("record.not_a_tensor", f"{kernel}: {parameter!r} is a {type(tensor).__name__}, not a tensor")
        if type(tensor) is not torch.Tensor or tensor.device.type != "cpu":
            self._refuse(
                "record.fake_tensor",
                f"{kernel}: {parameter!r} is a {type(tensor).__name__} on {tensor.device.type!r}, not an op's buffer",
            )
        if not tensor.numel():
            self._refuse(
                "record.empty_tensor",
                f"{kernel}: {parameter!r} has shape {tuple(tensor.shape)}, and torch gives what is empty no address; pass a "
                "buffer that is there, and how much of it counts",
            )
        if pointee is None and tensor.dtype not in _POINTEES:
            known = ", ".join(map(str, _POINTEES))
            self._refuse("record.dtype", f"{kernel}: {parameter!r} points to {tensor.dtype}; known: {known}")
        base = tensor.untyped_storage().data_ptr()
        if base not in self._storages:
            self._refuse(
                "record.unknown_storage",
                f"{kernel}: {parameter!r} points to memory that is no buffer of the op; declare it in scratch()",
            )
        dtype = pointee or _POINTEES[tensor.dtype]
        return BufferArgument(buffer=self._storages[base][0], offset=tensor.data_ptr() - base, dtype=dtype)
