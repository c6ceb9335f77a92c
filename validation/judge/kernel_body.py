"""What may stand inside a `@triton.jit` function: an allow-list over its syntax tree."""

import ast
import re
from dataclasses import dataclass

from . import loop_variables
from .kernel_names import KernelSourceError, check_name, dotted, reject
from .kernel_vocabulary import (
    BUILTINS,
    LIBDEVICE,
    STRING_CALLS,
    STRING_KEYWORDS,
    TL_CLASSES,
    TL_CONSTANTS,
    TL_CUDA,
    TL_FUNCTIONS,
    TL_MATH,
    TL_TYPES,
    TRITON_FUNCTIONS,
    VALUE_ATTRIBUTES,
)


# Triton and its interpreter find a kernel's text again by its "def" line: no other line of it may look like one, or
# they would run text that was vetted as a string.
_DEF_LINE = re.compile(r"\s*(async\s+)?def\b")

# Dotted paths under `tl`, `triton` and `libdevice`; nothing in between (a module) is a value.
_CALLABLE = frozenset(
    {f"tl.{n}" for n in TL_FUNCTIONS | TL_CLASSES}
    | {f"tl.math.{n}" for n in TL_MATH}
    | {f"tl.extra.cuda.{n}" for n in TL_CUDA}
    | {f"{prefix}.{n}" for n in LIBDEVICE for prefix in ("libdevice", "tl.extra.cuda.libdevice", "tl.extra.libdevice")}
    | {f"triton.{n}" for n in TRITON_FUNCTIONS}
)
_VALUES = frozenset({f"tl.{n}" for n in TL_TYPES | TL_CONSTANTS})
_ANNOTATIONS = frozenset({"tl.constexpr", "tl.tensor", "tl.tensor_descriptor"} | {f"tl.{n}" for n in TL_TYPES})
_HIGHER_ORDER = frozenset({"tl.reduce", "tl.associative_scan", "tl.map_elementwise"})
_LOOPS = loop_variables.COMPILED_LOOPS | {"tl.static_range"}

_STATEMENTS = (
    ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.While, ast.If, ast.Return, ast.Expr, ast.Pass, ast.Assert,
)  # fmt: skip
_EXPRESSIONS = (
    ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Compare, ast.Call, ast.Constant, ast.Attribute, ast.Subscript,
    ast.Name, ast.Tuple, ast.List, ast.Slice,
)  # fmt: skip


@dataclass(frozen=True)
class Scope:
    """The names that a file offers to its kernels."""

    file: str
    modules: set[str]
    constants: set[str]
    functions: set[str]
    imported: set[str]


def check(function: ast.FunctionDef, scope: Scope, lines: list[str]) -> None:
    """Raises KernelSourceError unless `function` only computes with what `scope` and Triton's language offer.

    `lines` are the lines of its file.
    """
    for number in range(function.decorator_list[0].lineno, (function.end_lineno or function.lineno) + 1):
        if number == function.lineno:
            if not re.match(rf"def {function.name}\(", lines[number - 1]):
                raise KernelSourceError(scope.file, number, "def_line", f"begin the kernel with `def {function.name}(`")
        elif _DEF_LINE.match(lines[number - 1]):
            raise KernelSourceError(scope.file, number, "def_line", "a line of a kernel may not look like another def")
    if "triton" not in scope.modules:
        reject(scope.file, function, "import", "@triton.jit needs `import triton` at module level")
    _Checker(function, scope).run()


class _Checker:
    def __init__(self, function: ast.FunctionDef, scope: Scope) -> None:
        self.function = function
        self.scope = scope
        self.locals: set[str] = set()

    def fail(self, node: ast.AST, reason: str, what: str) -> None:
        reject(self.scope.file, node, reason, what)

    def run(self) -> None:
        function = self.function
        self._signature(function.args)
        if function.returns is not None:
            self.fail(function, "annotation", "a return annotation is not allowed on a kernel")
        if getattr(function, "type_params", None):
            self.fail(function, "construct", "type parameters are not allowed in a kernel")
        for node in ast.walk(ast.Module(function.body, [])):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._bind(node, node.id)
        body = function.body
        if (
            isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
            and isinstance(body[0].value.value, str)
        ):
            body = body[1:]
        self._block(body)
        loop_variables.check(self.scope.file, body)

    def _bind(self, node: ast.AST, name: str) -> None:
        if name != "_":
            check_name(self.scope.file, node, name)
            if name.startswith("_"):
                self.fail(node, "name", f"the local name {name} is not allowed: no leading underscore")
        self.locals.add(name)

    def _signature(self, arguments: ast.arguments) -> None:
        if arguments.vararg or arguments.kwarg:
            self.fail(self.function, "signature", "*args and **kwargs are not allowed in a kernel")
        for parameter in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            self._bind(parameter, parameter.arg)
            if parameter.annotation is not None:
                self._annotation(parameter.annotation)
        for default in (*arguments.defaults, *arguments.kw_defaults):
            if default is not None and not self._is_default(default):
                self.fail(default, "default", "a default must be a literal or a module constant")

    def _annotation(self, node: ast.expr) -> None:
        if dotted(node) not in _ANNOTATIONS:
            self.fail(node, "annotation", "an annotation must be tl.constexpr or a type of Triton's language")
        self._module(node, "tl")

    def _is_default(self, node: ast.expr) -> bool:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return isinstance(node.operand, ast.Constant) and type(node.operand.value) in (int, float)
        if isinstance(node, ast.Name):
            return node.id in self.scope.constants | self.scope.imported
        if dotted(node) in _VALUES:
            self._module(node, "tl")
            return True
        return isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float | str | None)

    def _module(self, node: ast.AST, root: str) -> None:
        if root not in self.scope.modules:
            how = {"tl": "import triton.language as tl", "triton": "import triton"}
            self.fail(
                node,
                "import",
                f"{root} is not imported by `{how.get(root, 'from triton.language.extra import libdevice')}`",
            )

    # Statements

    def _block(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        if not isinstance(node, _STATEMENTS):
            self.fail(node, "construct", f"{type(node).__name__} is not allowed in a kernel")
        match node:
            case ast.Assign(targets=[target], value=value):
                self._target(target)
                self._expression(value)
            case ast.Assign():
                self.fail(node, "construct", "assign one target at a time")
            case ast.AugAssign(target=ast.Name(), value=value):
                self._expression(value)
            case ast.AnnAssign(target=ast.Name(), annotation=annotation, value=value):
                self._annotation(annotation)
                if value is not None:
                    self._expression(value, string=True)
            case ast.For(target=ast.Name(), iter=ast.Call(func=func) as loop, body=body, orelse=[]):
                if dotted(func) not in _LOOPS:
                    self.fail(node, "loop", "loop over range, tl.range or tl.static_range")
                self._call(loop)
                self._block(body)
            case ast.For(target=ast.Name(), orelse=[]):
                self.fail(node, "loop", "loop over range, tl.range or tl.static_range")
            case ast.While(test=test, body=body, orelse=[]):
                self._expression(test)
                self._block(body)
            case ast.If(test=test, body=body, orelse=orelse):
                self._expression(test)
                self._block(body)
                self._block(orelse)
            case ast.Return(value=value):
                if value is not None:
                    self._expression(value)
            case ast.Expr(value=value):
                # A string standing alone is a comment.
                if not (isinstance(value, ast.Constant) and isinstance(value.value, str)):
                    self._expression(value)
            case ast.Pass():
                pass
            case ast.Assert(test=test, msg=message):
                self._expression(test)
                if message is not None:
                    self._expression(message, string=True)
            case _:
                self.fail(node, "construct", f"this form of {type(node).__name__} is not allowed in a kernel")

    def _target(self, node: ast.expr) -> None:
        if isinstance(node, ast.Tuple | ast.List):
            for element in node.elts:
                self._target(element)
        elif not isinstance(node, ast.Name):
            self.fail(node, "construct", "assign to local names only")

    # Expressions

    def _expression(self, node: ast.expr, string: bool = False, function: bool = False) -> None:
        """Checks an expression; `string` and `function` say whether it may be a string or the name of a kernel."""
        if not isinstance(node, _EXPRESSIONS):
            self.fail(node, "construct", f"{type(node).__name__} is not allowed in a kernel")
        match node:
            case ast.Constant(value=value):
                if isinstance(value, str) and not string:
                    self.fail(node, "string", "a string is not allowed here")
                if not isinstance(value, bool | int | float | str | None):
                    self.fail(node, "construct", f"a {type(value).__name__} constant is not allowed in a kernel")
            case ast.Name(id=name):
                self._name(node, name, function)
            case ast.Attribute():
                self._attribute(node)
            case ast.Call():
                self._call(node)
            case ast.Compare(left=left, comparators=comparators):
                for operand in (left, *comparators):
                    self._expression(operand, string=True)
            case ast.Subscript(value=value, slice=index):
                self._expression(value)
                self._expression(index)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                for element in elements:
                    self._expression(element, string)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self._expression(test)
                self._expression(body, string)
                self._expression(orelse, string)
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self._expression(child)

    def _name(self, node: ast.Name, name: str, function: bool) -> None:
        if name in self.locals or name in self.scope.constants:
            return
        if name in self.scope.imported:
            return  # a kernel or a constant of another file, vetted there
        if name in self.scope.functions and function:
            return
        if name in self.scope.functions:
            self.fail(node, "name", f"the kernel {name} may be called, or passed to tl.reduce, not used as a value")
        if name in ("tl", "triton", "libdevice"):
            self.fail(node, "module", f"{name} may not be used as a value")
        self.fail(node, "name", f"{name} is not a parameter, a local, a kept constant or a kernel")

    def _attribute(self, node: ast.Attribute) -> None:
        path = dotted(node)
        root = path.split(".")[0] if path else None
        if root in ("tl", "triton", "libdevice"):
            self._module(node, root)
            # The longest allowed path is the value; whatever follows are attributes of that value.
            chain, attributes = node, []
            while isinstance(chain, ast.Attribute):
                if dotted(chain) in _VALUES:
                    return self._value_attributes(node, attributes)
                attributes.append(chain.attr)
                chain = chain.value
            self.fail(node, "path", f"{path} is not part of the language a kernel may use")
        self._value_attributes(node, [node.attr])
        self._expression(node.value)

    def _value_attributes(self, node: ast.AST, names: list[str]) -> None:
        for name in names:
            if name not in VALUE_ATTRIBUTES:
                self.fail(node, "attribute", f"the attribute {name} is not allowed in a kernel")

    def _call(self, node: ast.Call) -> None:
        path = dotted(node.func)
        root = path.split(".")[0] if path else None
        callee = None
        if isinstance(node.func, ast.Name):
            name = node.func.id
            if name in self.locals or name not in BUILTINS | self.scope.functions | self.scope.imported:
                self.fail(
                    node, "call", f"{name} is not a kernel, a kept import or one of {', '.join(sorted(BUILTINS))}"
                )
            callee = name
        elif root in ("tl", "triton", "libdevice") and path in _CALLABLE:
            self._module(node, root)
            callee = path
        elif isinstance(node.func, ast.Attribute):
            self._attribute(node.func)
        else:
            self.fail(node, "call", "only names and attributes may be called")
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        higher_order = callee in _HIGHER_ORDER or method in ("reduce", "associative_scan")
        kernel = callee in self.scope.functions | self.scope.imported
        if callee == "float" and len(node.args) == 1 and not node.keywords:
            (literal,) = node.args
            if isinstance(literal, ast.Constant) and literal.value in ("inf", "-inf", "+inf", "nan"):
                return
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                self.fail(argument, "construct", "unpacking is not allowed in a call")
            self._expression(argument, callee in STRING_CALLS or kernel, higher_order)
        for keyword in node.keywords:
            if keyword.arg is None or keyword.arg.startswith("_"):
                self.fail(node, "keyword", "keywords must be spelled out, without leading underscores")
            string = keyword.arg in STRING_KEYWORDS or callee in STRING_CALLS or kernel
            self._expression(keyword.value, string, higher_order)
