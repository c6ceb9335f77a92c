"""The rules for one argument of a launch: does it fit the parameter's type, and does it stay inside of its buffer?"""

import math
from typing import Any

from . import plan_terms as terms
from .pack import Argument, BufferArgument, PeerTableArgument, ScalarArgument, TensorMapArgument
from .plan_terms import ALIGNMENT, Found, Storages, quote

MAX_PEERS = 72
# cuTensorMapEncodeTiled: rank, size and stride (bytes) of the tensor; elements of a box, along one axis and in bytes.
_MAX_RANK = 5
_MAX_SIZE = 2**32
_MAX_STRIDE_BYTES = 2**40
_MAX_BOX = 256
_MAX_BOX_BYTES = terms.MAX_SHARED_BYTES


def check_argument(spot: str, argument: Argument, kind: str, divisible: bool, storages: Storages) -> Found:
    """What is wrong with `argument` where the kernel takes a `kind`, said to be divisible by 16 or not."""
    match argument:
        case BufferArgument():
            yield from _pointer(spot, argument, kind, divisible, storages)
        case ScalarArgument():
            yield from _scalar(spot, argument, kind, divisible)
        case TensorMapArgument():
            yield from _tensor_map(spot, argument, kind, storages)
        case PeerTableArgument():
            yield from _peers(spot, argument, kind, storages)


def _pointer(spot: str, argument: BufferArgument, kind: str, divisible: bool, storages: Storages) -> Found:
    pointee = terms.POINTER.fullmatch(kind)
    if pointee is None or pointee[1] != argument.dtype:
        yield "argument_type", f"{spot}: pointer to {argument.dtype} where the kernel takes {quote(kind)}"
    yield from _place(spot, argument, 1, storages)
    if divisible and argument.offset % ALIGNMENT:
        yield "divisibility", f"{spot}: offset {quote(argument.offset)} is said to be divisible by 16"


def _place(spot: str, argument: BufferArgument | TensorMapArgument, elements: int, storages: Storages) -> Found:
    """Whether `elements` of the argument's type from its offset on lie in its buffer, and may be read as that type."""
    if argument.buffer not in storages:
        yield "unknown_buffer", f"{spot}: there is no buffer {quote(argument.buffer)}"
        return
    dtype, size = storages[argument.buffer]
    if dtype is not argument.dtype and dtype in terms.FLOATS and argument.dtype in terms.FLOATS:
        yield "reinterpretation", f"{spot}: buffer {argument.buffer!r} holds {dtype}, read as {argument.dtype}"
    width = argument.dtype.bytes
    if argument.offset % width:
        yield "misaligned", f"{spot}: offset {quote(argument.offset)} is no multiple of {width} bytes"
    # An empty tensor has an address, and nothing to point past.
    if (argument.offset or elements > 1) and argument.offset + elements * width > size:
        what = f"offset {quote(argument.offset)}" + (f", {quote(elements)} elements on," if elements > 1 else "")
        yield "offset", f"{spot}: {what} is outside of {argument.buffer!r} ({size} bytes)"


def _scalar(spot: str, argument: ScalarArgument, kind: str, divisible: bool) -> Found:
    value = argument.value
    if argument.type != kind:
        yield "argument_type", f"{spot}: {quote(argument.type)} where the kernel takes {quote(kind)}"
    elif not _fits(value, kind):
        yield "scalar", f"{spot}: {quote(value)} is no value of type {quote(kind)}"
    elif divisible and (type(value) is not int or value % ALIGNMENT):
        yield "divisibility", f"{spot}: {quote(value)} is said to be divisible by 16"


def _fits(value: Any, kind: str) -> bool:
    if kind == "u1":
        return type(value) is bool
    if kind in terms.FLOAT_LIMITS:
        return type(value) is float and abs(value) <= terms.FLOAT_LIMITS[kind]
    integer = terms.INTEGER.fullmatch(kind)
    if integer is None or type(value) is not int:
        return False
    bits = int(integer[2])
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if integer[1] == "i" else (0, (1 << bits) - 1)
    return low <= value <= high


def _tensor_map(spot: str, argument: TensorMapArgument, kind: str, storages: Storages) -> Found:
    if kind != terms.TENSOR_MAP:
        descriptor = terms.DESCRIPTOR.fullmatch(kind)
        taken = descriptor and (descriptor[1], tuple(int(size) for size in descriptor[2].split(",")))
        if taken != (argument.dtype, argument.block_shape):
            given = f"tensor map of {argument.dtype} in boxes of {quote(argument.block_shape)}"
            yield "argument_type", f"{spot}: {given} where the kernel takes {quote(kind)}"
    if (argument.swizzle is None) == (kind == terms.TENSOR_MAP):
        yield "tensor_map", f"{spot}: swizzling is said by a CUDA kernel's tensor map, and by Triton's compiler"
    rank = len(argument.shape)
    if not 1 <= rank <= _MAX_RANK or not rank == len(argument.strides) == len(argument.block_shape):
        yield "tensor_map", f"{spot}: shape, strides and box of a tensor map have the same 1 to {_MAX_RANK} axes"
        return
    if wrong := _impossible(argument, kind == terms.TENSOR_MAP):
        yield "tensor_map", f"{spot}: {wrong}"
        return
    steps = zip(argument.shape, argument.strides, strict=True)
    yield from _place(spot, argument, 1 + sum((size - 1) * stride for size, stride in steps), storages)


def _impossible(argument: TensorMapArgument, cuda: bool) -> str | None:
    """The first of the encoder's demands that a tensor map breaks; Triton splits boxes itself where they are large."""
    width, box = argument.dtype.bytes, argument.block_shape
    if argument.offset % ALIGNMENT:
        return f"a tensor map begins at a multiple of 16 bytes, not at {quote(argument.offset)}"
    if not all(1 <= size <= _MAX_SIZE for size in argument.shape):
        return f"sizes {quote(argument.shape)} of a tensor map; 1 to 2^32 are possible"
    outer = [stride * width for stride in argument.strides[:-1]]
    if argument.strides[-1] != 1 or not all(0 <= step < _MAX_STRIDE_BYTES and step % ALIGNMENT == 0 for step in outer):
        return f"strides {quote(argument.strides)} of a tensor map: the last is 1, the others multiples of 16 bytes"
    if not all(1 <= size <= (_MAX_BOX if cuda else _MAX_BOX_BYTES) for size in box):
        return f"a box of {quote(box)}; 1 to {_MAX_BOX} elements along an axis are possible"
    if math.prod(box) * width > _MAX_BOX_BYTES or box[-1] * width % ALIGNMENT:
        return f"a box of {quote(box)} {argument.dtype}: rows of whole 16 bytes, and no more than shared memory, are possible"
    if argument.swizzle and box[-1] * width > argument.swizzle:
        return f"rows of {box[-1] * width} bytes under a swizzle of {argument.swizzle}"
    if argument.padding == "nan" and argument.dtype not in terms.FLOATS:
        return f"{argument.dtype} has no NaN to pad with"
    if argument.round_to_tf32 and argument.dtype != "fp32":
        return f"{argument.dtype} is not rounded to tf32"
    return None


def _peers(spot: str, argument: PeerTableArgument, kind: str, storages: Storages) -> Found:
    if kind not in (terms.PEERS, "*i64"):
        yield "argument_type", f"{spot}: a table of addresses where the kernel takes {quote(kind)}"
    if not 1 <= len(argument.buffers) <= MAX_PEERS:
        yield "peers", f"{spot}: {len(argument.buffers)} peers; 1 to {MAX_PEERS} are possible"
        return
    if len({entry.dtype for entry in argument.buffers}) > 1:
        yield "peers", f"{spot}: the entries of a table point to one element type"
    for rank, entry in enumerate(argument.buffers):
        yield from _place(f"{spot}, rank {rank}", entry, 1, storages)
