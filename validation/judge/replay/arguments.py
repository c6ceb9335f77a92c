"""From a plan's arguments to the bytes of a kernel's parameters. Pure, but for what `Placing` is asked."""

import math
import struct
from collections.abc import Sequence
from typing import Protocol

from ...tensors import DType
from ..device_code.records import DeviceCode, TensorMapLayout
from ..pack import Argument, BufferArgument, Launch, PeerTableArgument, ScalarArgument, TensorMapArgument
from .driver import TensorMap

_INTEGERS = {
    "u1": "<?", "i1": "<?", "i8": "<b", "u8": "<B", "i16": "<h", "u16": "<H", "i32": "<i", "u32": "<I", "i64": "<q",
    "u64": "<Q",
}  # fmt: skip
_FLOATS = {"fp16": "<e", "fp32": "<f", "fp64": "<d"}
# CUtensorMapDataType
_ELEMENTS = {
    DType.U8: 0, DType.I8: 0, DType.F8E4M3: 0, DType.F8E5M2: 0,
    DType.I16: 1, DType.I32: 3, DType.I64: 5, DType.F16: 6, DType.F32: 7, DType.F64: 8,
    DType.BF16: 9,
}  # fmt: skip
_TF32 = 11
# CUtensorMapSwizzle
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}


class Placing(Protocol):
    """What the device side knows."""

    def address(self, buffer: str, offset: int) -> int: ...
    def tensor_map(self, request: TensorMap) -> bytes: ...
    def table(self, addresses: Sequence[int]) -> int:
        """Address of a device array of these 64-bit values."""

    def scratch(self, size: int, align: int) -> int:
        """Address of so much fresh, noisy memory; 0 for none."""


def parameters(launch: Launch, code: DeviceCode, placing: Placing) -> tuple[bytes, ...]:
    """The parameters of one launch in the entry's order, little-endian, each as wide as the entry takes it."""
    found: list[bytes] = []
    for name in code.parameters:
        found += _argument(launch.arguments[name], code.tensor_maps.get(name), placing)
    if code.trailing_scratch:
        blocks = math.prod(launch.grid) * code.ctas
        sizes = (code.global_scratch_bytes, code.global_scratch_align), (code.profile_scratch_bytes, 128)
        found += [_pointer(placing.scratch(blocks * size, align)) for size, align in sizes]
    return tuple(found)


def scalar(kind: str, value: bool | int | float) -> bytes:
    """A scalar as Triton's launcher passes it; bf16 is cut off, as there."""
    if kind in _FLOATS:
        return struct.pack(_FLOATS[kind], value)
    if kind == "bf16":
        return struct.pack("<f", value)[2:]
    return struct.pack(_INTEGERS[kind], value)


def _argument(argument: Argument, layout: TensorMapLayout | None, placing: Placing) -> list[bytes]:
    match argument:
        case BufferArgument():
            return [_pointer(placing.address(argument.buffer, argument.offset))]
        case ScalarArgument():
            return [scalar(argument.type, argument.value)]
        case PeerTableArgument():
            return [_pointer(placing.table([placing.address(one.buffer, one.offset) for one in argument.buffers]))]
        case TensorMapArgument():
            address = placing.address(argument.buffer, argument.offset)
            encoded = placing.tensor_map(tensor_map(argument, layout, address))
            if layout is None:
                return [encoded]
            shape = [struct.pack("<i", size) for size in argument.shape]
            return [encoded, *shape, *(struct.pack("<q", stride) for stride in argument.strides)]


def tensor_map(argument: TensorMapArgument, layout: TensorMapLayout | None, address: int) -> TensorMap:
    """How to encode a tensor map: as Triton's compiler wants it (`layout`), or as the CUDA candidate declared it."""
    sizes = list(argument.shape)
    if layout is None:
        element, box, swizzle = _ELEMENTS[argument.dtype], argument.block_shape, _SWIZZLES[argument.swizzle or 0]
        element_bytes = argument.dtype.bytes
    else:
        element, box, swizzle, element_bytes = layout.element, layout.box, layout.swizzle, layout.element_bytes
        if layout.doubled:
            sizes[-1] *= 2
    return TensorMap(
        address=address,
        element=_TF32 if argument.round_to_tf32 else element,
        sizes=tuple(reversed(sizes)),
        strides=tuple(element_bytes * stride for stride in reversed(argument.strides[:-1])),
        box=tuple(reversed(box)),
        swizzle=swizzle,
        nan_outside=argument.padding == "nan",
    )


def _pointer(address: int) -> bytes:
    return struct.pack("<Q", address & (1 << 64) - 1)
