"""Names and decorators that a kernel file may use, and the error that names what it may not."""

import ast
import re

from .kernel_vocabulary import BUILTINS


class KernelSourceError(Exception):
    """A construct that a kernel may not use. `reason` is a stable id; `what` says it in words."""

    def __init__(self, file: str, line: int, reason: str, what: str) -> None:
        super().__init__(f"{file}:{line}: {what} [{reason}]")
        self.file = file
        self.line = line
        self.reason = reason
        self.what = what

    def __reduce__(self):
        return (type(self), (self.file, self.line, self.reason, self.what))


def reject(file: str, node: ast.AST, reason: str, what: str) -> None:
    """Raises KernelSourceError at `node`."""
    raise KernelSourceError(file, getattr(node, "lineno", 1), reason, what)


# Names that the interpreter's rewriting of a kernel puts into its code.
_INTERPRETER_NAMES = re.compile(r"interpreter_|_Interpreter")
_NAME = re.compile(r"_?[A-Za-z][A-Za-z0-9_]*")


def is_kept_name(name: str) -> bool:
    """Whether a module-level name may be used by kernels: ASCII, at most one leading underscore, no trailing dunder."""
    return bool(_NAME.fullmatch(name)) and "__" not in name and not _INTERPRETER_NAMES.match(name)


def is_triton_jit(decorator: ast.expr) -> bool:
    """Whether a decorator is `@triton.jit` or `@triton.jit(...)`."""
    call = decorator.func if isinstance(decorator, ast.Call) else decorator
    return dotted(call) == "triton.jit"


def looks_like_jit(decorator: ast.expr) -> bool:
    """Whether a decorator is some other spelling of jit, whose kernel would be dropped in silence."""
    call = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (dotted(call) or "").split(".")[-1] == "jit"


def dotted(node: ast.expr) -> str | None:
    """`a.b.c` as text when `node` is a chain of attributes on a name."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def check_decorators(file: str, function: ast.FunctionDef) -> None:
    """Refuses anything beside one `@triton.jit` with literal keywords."""
    if len(function.decorator_list) != 1:
        reject(
            file, function, "decorator", f"{function.name} has decorators beside @triton.jit; the judge picks variants"
        )
    (decorator,) = function.decorator_list
    if isinstance(decorator, ast.Call):
        if decorator.args or any(k.arg is None or not _is_literal(k.value) for k in decorator.keywords):
            reject(file, decorator, "decorator", "@triton.jit takes literal keyword arguments only")


def _is_literal(node: ast.expr) -> bool:
    if isinstance(node, ast.List | ast.Tuple):
        return all(_is_literal(element) for element in node.elts)
    return isinstance(node, ast.Constant) and isinstance(node.value, bool | int | str | None)


def check_name(file: str, node: ast.AST, name: str) -> None:
    """Refuses names with dunders, names of the language and of the interpreter."""
    if not is_kept_name(name):
        reject(file, node, "name", f"the name {name} is not allowed")
    if name in BUILTINS or name in ("tl", "triton", "libdevice"):
        reject(file, node, "shadow", f"{name} may not be redefined")
