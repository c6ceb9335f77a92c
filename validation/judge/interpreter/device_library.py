"""Device functions that have no meaning, or only a numpy one, without a GPU: PDL, libdevice, inline assembly.

`tl.extra.cuda` and `sys.modules["triton.language.extra.cuda"]` are two module objects made from one file, and
`triton.language.extra.libdevice` is a third module of stubs: all of them are given the functions here.
"""

import sys

import numpy as np
import triton.language as tl
from triton.language.extra import libdevice as generic_libdevice
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from . import accesses
from .violations import NotInterpretable


def _rsqrt(x: np.ndarray) -> np.ndarray:
    return x.dtype.type(1) / np.sqrt(x)


def _round_away(x: np.ndarray) -> np.ndarray:
    # C's round(): halves away from zero. numpy's rounds them to even.
    return np.copysign(np.floor(np.abs(x) + x.dtype.type(0.5) * (np.abs(x) < 2.0**23)), x)


_UNARY = {
    "abs": np.abs, "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh, "atan": np.arctan,
    "atanh": np.arctanh, "cbrt": np.cbrt, "ceil": np.ceil, "cos": np.cos, "cosh": np.cosh, "exp": np.exp,
    "exp2": np.exp2, "expm1": np.expm1, "floor": np.floor, "log": np.log, "log10": np.log10, "log1p": np.log1p,
    "log2": np.log2, "nearbyint": np.rint, "rint": np.rint, "round": _round_away, "rsqrt": _rsqrt, "rsqrt_rn": _rsqrt,
    "sin": np.sin, "sinh": np.sinh, "sqrt": np.sqrt, "sqrt_rn": np.sqrt, "tan": np.tan, "tanh": np.tanh,
    "trunc": np.trunc, "fast_cosf": np.cos, "fast_expf": np.exp, "fast_log10f": np.log10, "fast_log2f": np.log2,
    "fast_logf": np.log, "fast_sinf": np.sin, "fast_tanf": np.tan, "fast_tanhf": np.tanh,
    "exp10": lambda x: np.power(x.dtype.type(10), x), "fast_exp10f": lambda x: np.power(x.dtype.type(10), x),
    "rcp_rn": np.reciprocal, "saturatef": lambda x: np.fmin(np.fmax(x, x.dtype.type(0)), x.dtype.type(1)),
}  # fmt: skip
_BINARY = {
    "atan2": np.arctan2, "copysign": np.copysign, "fast_dividef": np.divide, "div_rn": np.divide, "fast_powf": np.power,
    "add_rn": np.add, "sub_rn": np.subtract, "mul_rn": np.multiply, "fmod": np.fmod, "hypot": np.hypot, "pow": np.power,
    "fdim": lambda x, y: np.where(x > y, x - y, x.dtype.type(0)),
}  # fmt: skip
_TEST = {"isnan": np.isnan, "isinf": np.isinf, "finitef": np.isfinite, "isfinited": np.isfinite, "signbit": np.signbit}

INTERPRETED = frozenset(_UNARY) | frozenset(_BINARY) | frozenset(_TEST) | {"erf", "fma"}


def _operand(value) -> tl.tensor:
    tensor = interpreter.interpreter_semantic.to_tensor(value)
    if tensor.dtype.name not in (tl.float32.name, tl.float64.name):
        raise TypeError(f"libdevice takes fp32 or fp64, not {tensor.dtype}")
    return tensor


def _elementwise(function, result: tl.dtype | None):
    def call(*arguments):
        semantic = interpreter.interpreter_semantic
        tensors = [_operand(a) for a in arguments]
        if len(tensors) == 2:
            tensors = semantic.binary_op_type_checking_impl(*tensors)
        first = tensors[0]
        dtype = first.dtype if result is None else result
        data = function(*(t.handle.data for t in tensors)).astype(interpreter._get_np_dtype(dtype), copy=False)
        return tl.tensor(TensorHandle(data, dtype), first.type.with_element_ty(dtype))

    return call


def _missing(name: str):
    def call(*_arguments, **_options):
        raise NotInterpretable(
            f"libdevice.{name} has no interpreted form; without a GPU use {', '.join(sorted(_UNARY))}"
        )

    return call


def _no_operation(*_arguments, **_options) -> None:
    """Launches run one after another here: a dependent grid cannot start any earlier."""


def _inline_assembly(self, *_arguments):
    raise NotInterpretable("tl.inline_asm_elementwise runs on a GPU only")


def _external(self, _library, _path, symbol, *_arguments):
    raise NotInterpretable(f"the device function {symbol} runs on a GPU only")


def _libdevice_functions() -> dict:
    functions = {n: _missing(n) for n in vars(generic_libdevice) if not n.startswith("_")}
    functions |= {n: _elementwise(f, None) for n, f in (_UNARY | _BINARY).items()}
    functions |= {n: _elementwise(f, tl.int32) for n, f in _TEST.items()}
    functions["erf"] = lambda x: tl.erf(_operand(x))
    functions["fma"] = lambda x, y, z: tl.fma(_operand(x), _operand(y), _operand(z))
    return functions


def install() -> None:
    """Replaces device functions in every module object under which kernels reach them."""
    cuda_modules = {id(m): m for m in (tl.extra.cuda, sys.modules["triton.language.extra.cuda"])}
    libraries = {id(m): m for m in (generic_libdevice, *(c.libdevice for c in cuda_modules.values()))}
    imported = sys.modules.get("triton.language.extra.cuda.libdevice")
    if imported is not None:
        libraries[id(imported)] = imported
    functions = _libdevice_functions()
    for library in libraries.values():
        for name, function in functions.items():
            setattr(library, name, function)
    for cuda in cuda_modules.values():
        cuda.gdc_wait, cuda.gdc_launch_dependents = accesses.wait_for_dependency, _no_operation
    InterpreterBuilder.create_inline_asm = _inline_assembly
    InterpreterBuilder.create_extern_elementwise = _external
