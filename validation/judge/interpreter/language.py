"""What Python itself does differently from Triton's compiler when a kernel is interpreted.

- `and`, `or`, `not` look at the truth of a tensor; the compiler combines blocks element by element and does not
  short-circuit run-time values.
- `range` yields Python integers, in whose unbounded arithmetic a 32-bit offset overflow disappears; the compiler's
  induction variable is an i32 (or the wider type of its bounds).
- `min` and `max` compare truth values; the compiler's are elementwise.
- The stock interpreter patches the language anew at each call of a device function, which costs a millisecond and more.
"""

import ast
import dataclasses
from types import ModuleType, SimpleNamespace

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import FunctionRewriter, InterpretedFunction, TensorHandle


class KernelTransformer(interpreter.ASTTransformer):
    """Rewrites a kernel's statements so that running them in Python means what compiling them means."""

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        node.targets = [self.visit(target) for target in node.targets]
        if len(node.targets) > 1:
            raise ValueError("Multiple assignments are not supported")
        convert = ast.Attribute(ast.Name("interpreter_semantic", ast.Load()), "to_tensor", ast.Load())
        node.value = ast.Call(convert, [self.visit(node.value), ast.Constant(False)], [])
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.Call:
        name = "logical_and" if isinstance(node.op, ast.And) else "logical_or"
        operands = [ast.Lambda(_NO_PARAMETERS, self.visit(value)) for value in node.values]
        call = ast.Call(ast.Name("interpreter_boolean", ast.Load()), [ast.Constant(name), *operands], [])
        return ast.copy_location(call, node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        node = self.generic_visit(node)
        if not isinstance(node.op, ast.Not):
            return node
        return ast.copy_location(ast.Call(ast.Name("interpreter_not", ast.Load()), [node.operand], []), node)


_NO_PARAMETERS = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])


def interpreter_boolean(name: str, *operands):
    """`and` / `or` as the compiler does it: constants short-circuit, run-time values combine elementwise."""
    dynamic = []
    value = None
    for operand in operands:
        value = operand()
        if isinstance(value, tl.tensor):
            dynamic.append(value)
        elif bool(value) is (name == "logical_or"):
            return value
    if not dynamic:
        return value
    result = dynamic.pop()
    while dynamic:
        result = getattr(dynamic.pop(), name)(result)
    return result


def interpreter_not(value):
    """`not`: elementwise on tensors."""
    return value.__not__() if isinstance(value, tl.tensor) else not value


def _plain(value):
    return value.value if isinstance(value, tl.constexpr) else value


def interpreter_range(first, second=None, step=1, **_hints):
    """Loop over scalar tensors of the promoted type of the bounds, as the compiler's `range` and `tl.range` do."""
    first, second, step = _plain(first), _plain(second), _plain(step)
    start, stop = (0, first) if second is None else (first, second)
    semantic = interpreter.interpreter_semantic
    bounds = [semantic.to_tensor(bound) for bound in (start, stop, step)]
    dtype = semantic.integer_promote_impl(bounds[0].dtype, bounds[1].dtype)
    dtype = semantic.integer_promote_impl(dtype, bounds[2].dtype)
    stored = interpreter._get_np_dtype(dtype)
    for index in range(*(int(bound.handle.data.item()) for bound in bounds)):
        yield tl.tensor(TensorHandle(np.array([index], stored), dtype), dtype)


def interpreter_static_range(first, second=None, step=1, **_hints):
    """Unrolled loop: its index is a constant, with exact arithmetic."""
    first, second, step = _plain(first), _plain(second), _plain(step)
    return range(first) if second is None else range(first, second, step)


def _extremum(choose, elementwise: str):
    def extremum(*values):
        values = [_plain(value) for value in values]
        if not any(isinstance(value, tl.tensor) for value in values):
            return choose(values)
        combine = getattr(tl, elementwise)
        result = values[0]
        for value in values[1:]:
            result = combine(result, value)
        return result

    return extremum


BUILTINS = {"range": interpreter_range, "min": _extremum(min, "minimum"), "max": _extremum(max, "maximum")}


def prepare_module(module: ModuleType) -> None:
    """Gives a module of kernels the compiler's meaning of Python's builtins."""
    vars(module).update(BUILTINS)


def _call_device_function(self: InterpretedFunction, *args, **kwargs):
    return self.rewrite()(*args, **kwargs)


_stock_tensor_init = tl.tensor.__init__


def _tensor_init(self, handle: TensorHandle, type: tl.dtype) -> None:
    """As the stock constructor, with what depends on the type alone computed once for each type object."""
    cached = type.__dict__.get("_interpreter_fields")
    if cached is None:
        _stock_tensor_init(self, handle, type)
        fields = dict(self.__dict__)
        del fields["handle"]
        type._interpreter_fields = fields
        return
    self.__dict__.update(cached)
    self.handle = handle


def install() -> None:
    """Patches the language once and for all: in this process nothing is compiled."""
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    for lang in (tl, tl.core):
        lang.range = interpreter_range
        lang.static_range = interpreter_static_range
    tl.tensor.__init__ = _tensor_init
    interpreter.interpreter_boolean = interpreter_boolean
    interpreter.interpreter_not = interpreter_not
    FunctionRewriter.ast_transformer = KernelTransformer()
    InterpretedFunction.__call__ = _call_device_function
    # Integers wrap at their width, as on a GPU. The stock options compute each sum again in 64 bits for nothing.
    interpreter.interpreter_builder.options = dataclasses.replace(
        interpreter.interpreter_builder.options, sanitize_overflow=False
    )
