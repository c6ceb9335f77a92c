"""Tensor descriptors as TMA hardware treats them: boxes at any coordinate, padding outside, stores outside dropped.

The stock builder pads bf16 and fp8 with the bits of a number instead of NaN, and knows no reductions.
"""

import numpy as np
import triton.language as tl
from triton._C.libtriton import ir
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorDescHandle, TensorHandle

from . import accesses, formats
from .narrow import encode
from .violations import NotInterpretable


def load(self, descriptor: TensorDescHandle, indices: list[TensorHandle], _cache_policy) -> TensorHandle:
    """One box; what lies outside of the tensor is zero or NaN, as the descriptor says."""
    pointers, inside = descriptor.materialize_pointers(indices)
    element = pointers.get_element_ty()
    padding = 0.0
    if descriptor.padding == ir.PADDING_OPTION.PAD_NAN:
        padding = np.nan
    if element.is_floating():
        outside = encode(np.full(pointers.data.shape, padding, np.float32), element)
    else:
        outside = np.zeros(pointers.data.shape, interpreter._get_np_dtype(element))
    box = accesses.masked_load(self, pointers, inside, TensorHandle(outside, element))
    if getattr(descriptor, "round_f32_to_tf32", False) and element == tl.float32:
        box = TensorHandle(formats.round_tf32(box.data), element)
    return box


def reduce(self, kind, descriptor: TensorDescHandle, value: TensorHandle, indices: list[TensorHandle]) -> None:
    """Adds a box to memory, element by element, where it lies inside of the tensor."""
    if kind != ir.DESCRIPTOR_REDUCE_KIND.ADD:
        raise NotInterpretable("of a descriptor's reductions only atomic_add has an interpreted form")
    pointers, inside = descriptor.materialize_pointers(indices)
    op = ir.ATOMIC_OP.FADD if value.dtype.scalar.is_floating() else ir.ATOMIC_OP.ADD
    accesses.atomic_rmw(self, op, pointers, value, inside, ir.MEM_SEMANTIC.RELAXED, ir.MEM_SYNC_SCOPE.GPU)


def host(base: tl.tensor, argument) -> tl.tensor_descriptor:
    """A TensorMapArgument over the pointer `base`, as a kernel gets it."""

    def number(value: int, dtype: tl.dtype) -> tl.tensor:
        return tl.tensor(TensorHandle(np.array([value], interpreter._get_np_dtype(dtype)), dtype), dtype)

    made = interpreter.interpreter_semantic.make_tensor_descriptor(
        base=base,
        shape=[number(size, tl.int32) for size in argument.shape],
        strides=[number(stride, tl.int64) for stride in argument.strides[:-1]] + [tl.constexpr(1)],
        block_shape=[tl.constexpr(size) for size in argument.block_shape],
        padding_option=argument.padding,
    )
    made.handle.round_f32_to_tf32 = argument.round_to_tf32
    return made


def install() -> None:
    """Puts the corrected descriptor accesses into Triton's interpreter."""
    InterpreterBuilder.create_descriptor_load = load
    InterpreterBuilder.create_descriptor_reduce = reduce
