"""From a candidate's files to kernel sources that are safe to run, by an allow-list over the syntax tree.

Interpreting a kernel means running Python that an untrusted author wrote. What is kept here can compute with Triton's
language and nothing else: it cannot name a module, an underscore attribute, a builtin that reaches further, or anything
evaluated at import besides literals and `@triton.jit`. Host functions (`prepare`, `launch`, helpers) are left out; they
are no error. Kept statements keep their text and their line numbers, so that what is vetted, what is interpreted, what
is compiled and what an error message cites are the same lines.
"""

import ast
import posixpath
import re
from collections import Counter

from ..records import Frozen
from . import cuda_source, kernel_body, kernel_names
from .kernel_body import Scope
from .kernel_names import KernelSourceError, is_triton_jit, reject
from .kernel_vocabulary import BUILTINS, TL_TYPES

__all__ = ["KernelSource", "KernelSourceError", "extract"]

_IMPORTS = {
    "import triton": "triton",
    "import triton.language as tl": "tl",
    "from triton.language.extra import libdevice": "libdevice",
    "from triton.language.extra.cuda import libdevice": "libdevice",
}
_FUTURE = "from __future__ import annotations"
_RESERVED = BUILTINS | {"tl", "triton", "libdevice"}
# PEP 263. Python reads files by this line, ast.parse does not: the two must not disagree on what the text is.
_CODING = re.compile(r"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x85\u2028\u2029]")
_MAX_SHIFT = 64


class KernelSource(Frozen):
    """The kept subset of a candidate's files: POSIX path -> text.

    `files`: Python, each importable without running host code. `cuda`: CUDA C++ sources and headers as they are; they
    reach nothing but the device compiler.
    """

    files: dict[str, str]
    cuda: dict[str, str] = {}


class _File:
    """One candidate file while its kept subset is worked out."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = _readable(name, text)
        try:
            self.tree = ast.parse(self.text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise KernelSourceError(
                name, getattr(error, "lineno", None) or 1, "syntax", f"not Python: {error}"
            ) from error
        self.modules: set[str] = set()
        self.constants: dict[str, object] = {}
        self.functions: dict[str, ast.FunctionDef] = {}
        self.imported: dict[str, object] = {}
        self.kept: list[ast.stmt] = []
        self.candidates: list[ast.Assign | ast.AnnAssign] = []
        self.relative: list[ast.ImportFrom] = []

    def names(self) -> dict[str, object]:
        """Module-level names that other files may import, with the values of constants."""
        return dict.fromkeys(self.functions, _OPAQUE) | self.constants | self.imported


def extract(files: dict[str, str], entry: str) -> KernelSource:
    """The kernels of a candidate and what they need, vetted.

    `files` maps POSIX paths to text and `entry` is one of them. Kept are imports of Triton, relative imports of kept
    names, module constants and `@triton.jit` functions; the rest is dropped. CUDA files (`.cu`, `.cuh`) are kept as
    they are, their includes vetted. Raises KernelSourceError for a kernel (or something that looks like one) that is
    not allowed, and when no kernel is left.
    """
    if entry not in files:
        raise KernelSourceError(entry, 1, "entry", "the entry is not among the files")
    cuda = {name: _readable(name, text) for name, text in sorted(files.items()) if name.endswith((".cu", ".cuh"))}
    for name, text in cuda.items():
        cuda_source.check(name, text)
    parsed = {name: _File(name, text) for name, text in sorted(files.items()) if name not in cuda}
    for file in parsed.values():
        _collect(file)
    _resolve(parsed)
    for file in parsed.values():
        _check_bindings(file)
    for file in parsed.values():
        scope = Scope(file.name, file.modules, set(file.constants), set(file.functions), set(file.imported))
        for function in file.functions.values():
            try:
                kernel_body.check(function, scope, file.text.split("\n"))
            except RecursionError:
                reject(file.name, function, "depth", f"{function.name} is nested too deeply")
        _check_statements(file)
    if not any(file.functions for file in parsed.values()) and not any(name.endswith(".cu") for name in cuda):
        raise KernelSourceError(
            entry, 1, "no_kernel", "no @triton.jit function is left; kernels belong at module level"
        )
    return KernelSource(files={name: _render(file) for name, file in parsed.items() if file.kept}, cuda=cuda)


def _readable(name: str, text: str) -> str:
    """`text` with Unix line ends; refuses what different readers of a file would read differently."""
    text = text.replace("\r\n", "\n")
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if _CONTROL.search(line):
            raise KernelSourceError(name, number, "control_character", "control characters are not allowed in a source")
    for number, line in enumerate(lines[:2], 1):
        coding = _CODING.match(line)
        if coding and coding.group(1).lower() not in ("utf-8", "utf8"):
            raise KernelSourceError(name, number, "encoding", f"encoding {coding.group(1)!r}: sources are UTF-8")
    return text


def _collect(file: _File) -> None:
    """Sorts module-level statements into kept, dropped, and those that depend on other names."""
    for statement in file.tree.body:
        if isinstance(statement, ast.FunctionDef):
            _collect_function(file, statement)
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            _collect_import(file, statement)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            file.candidates.append(statement)
        elif isinstance(statement, ast.AsyncFunctionDef | ast.ClassDef):
            for decorator in statement.decorator_list:
                if is_triton_jit(decorator):
                    raise KernelSourceError(
                        file.name, statement.lineno, "decorator", "@triton.jit is for plain functions"
                    )


# What may stand at module level: nothing that runs in one process and not in another, or binds names in odd ways.
_STATEMENTS = (
    ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.FunctionDef, ast.ClassDef, ast.Expr, ast.Pass,
)  # fmt: skip


def _check_statements(file: _File) -> None:
    """Refuses control flow, deletion and star imports at module level."""
    for statement in file.tree.body:
        if not isinstance(statement, _STATEMENTS):
            what = f"{type(statement).__name__.lower()} at module level: write imports, constants, functions and classes"
            raise KernelSourceError(file.name, statement.lineno, "module_level", what)
        if isinstance(statement, ast.ImportFrom) and any(alias.name == "*" for alias in statement.names):
            raise KernelSourceError(file.name, statement.lineno, "star_import", "name what is imported")
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Name) and node.id in ("globals", "vars", "setattr", "delattr"):
            what = f"{node.id}() could bind a kernel's constant again: hosts and kernels would differ"
            raise KernelSourceError(file.name, node.lineno, "rebinding", what)


def _check_bindings(file: _File) -> None:
    """Refuses kept names that some other statement, kept or dropped, may bind again: hosts and kernels would differ."""
    bound = Counter(name for statement in file.tree.body for name in _bound_names(statement))
    for name in sorted({*file.modules, *file.names()}):
        if bound[name] > 1:
            raise KernelSourceError(file.name, 1, "rebound", f"{name} is bound more than once at module level")
        if name in _RESERVED and name not in file.modules:
            raise KernelSourceError(file.name, 1, "shadow", f"{name} may not be redefined")


def _bound_names(statement: ast.stmt) -> set[str]:
    """Names that a module-level statement may bind, however deep, outside of nested functions' own scopes."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name} | {n for n in _globals_declared(statement)}
    names = _globals_declared(statement)
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            names.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name.split(".")[0] for alias in node.names)
    if isinstance(statement, ast.Import) and not any(alias.asname for alias in statement.names):
        names.discard("triton")  # `import triton.testing` binds the same module once more
    return names


def _globals_declared(statement: ast.stmt) -> set[str]:
    return {name for node in ast.walk(statement) if isinstance(node, ast.Global) for name in node.names}


def _collect_function(file: _File, function: ast.FunctionDef) -> None:
    jit = [d for d in function.decorator_list if is_triton_jit(d)]
    if jit:
        kernel_names.check_decorators(file.name, function)
        kernel_names.check_name(file.name, function, function.name)
        file.functions[function.name] = function
        file.kept.append(function)
        return
    for decorator in function.decorator_list:
        if kernel_names.dotted(decorator) == "gluon.jit":
            reject(file.name, decorator, "gluon", "Gluon has no interpreted form: write Triton or CUDA C++")
        if kernel_names.looks_like_jit(decorator):
            reject(file.name, decorator, "decorator", "write exactly @triton.jit, with `import triton`")


def _collect_import(file: _File, statement: ast.Import | ast.ImportFrom) -> None:
    text = ast.unparse(statement)
    if text in _IMPORTS:
        file.modules.add(_IMPORTS[text])
        file.kept.append(statement)
    elif text == _FUTURE:
        file.kept.append(statement)
    elif isinstance(statement, ast.ImportFrom) and statement.level:
        file.relative.append(statement)


def _target(name: str, statement: ast.ImportFrom) -> str:
    """The candidate's file that a relative import names, without `.py`; not necessarily there."""
    folder = posixpath.dirname(name)
    for _ in range(statement.level - 1):
        if not folder:
            return ".."
        folder = posixpath.dirname(folder)
    return posixpath.join(folder, *(statement.module or "").split(".")).rstrip("/")


def _resolve(parsed: dict[str, _File]) -> None:
    """Keeps imports of kept names and constants over kept names, until nothing more can be kept."""
    grew = True
    while grew:
        grew = False
        for file in parsed.values():
            before = len(file.imported) + len(file.constants)
            for statement in file.relative:
                _keep_imports(file, statement, parsed)
            for statement in file.candidates:
                _keep_constant(file, statement)
            grew |= len(file.imported) + len(file.constants) > before
    for file in parsed.values():
        file.kept += [statement for statement in file.relative if _kept_aliases(file, statement)]
        file.kept.sort(key=lambda statement: (statement.lineno, statement.col_offset))


def _keep_imports(file: _File, statement: ast.ImportFrom, parsed: dict[str, _File]) -> None:
    target = _target(file.name, statement)
    source = parsed.get(f"{target}.py") or parsed.get(posixpath.join(target, "__init__.py"))
    for alias in statement.names:
        name = alias.asname or alias.name
        if source is not None and kernel_names.is_kept_name(name) and alias.name in (names := source.names()):
            file.imported.setdefault(name, names[alias.name])


def _is_relative(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.level > 0


def _kept_aliases(file: _File, statement: ast.ImportFrom) -> list[ast.alias]:
    return [alias for alias in statement.names if (alias.asname or alias.name) in file.imported]


def _keep_constant(file: _File, statement: ast.Assign | ast.AnnAssign) -> None:
    """Keeps `NAME = constant`; anything else on the right belongs to the host and is dropped."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    if len(targets) != 1 or not isinstance(targets[0], ast.Name) or statement.value is None:
        return
    if isinstance(statement, ast.AnnAssign):
        allowed = {"int", "float", "bool", "str"} | ({"tl.constexpr"} if "tl" in file.modules else set())
        if ast.unparse(statement.annotation) not in allowed:
            return
    name = targets[0].id
    if name in file.constants or name in _RESERVED or not kernel_names.is_kept_name(name):
        return
    try:
        value = _constant(statement.value, file)
    except (_NotConstant, ArithmeticError, TypeError, ValueError):
        return
    file.constants[name] = value
    file.kept.append(statement)


class _NotConstant(Exception):
    """The expression is not one of the constants that are kept."""


_OPAQUE = object()
_BINARY = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b, ast.FloorDiv: lambda a, b: a // b, ast.Mod: lambda a, b: a % b,
    ast.BitAnd: lambda a, b: a & b, ast.BitOr: lambda a, b: a | b, ast.BitXor: lambda a, b: a ^ b,
}  # fmt: skip
_BOUNDED = {ast.Pow: lambda a, b: a**b, ast.LShift: lambda a, b: a << b, ast.RShift: lambda a, b: a >> b}


def _constant(node: ast.expr, file: _File) -> object:
    """Value of a constant expression, `_OPAQUE` for Triton's own types. Raises _NotConstant."""
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return value
        case ast.Name(id=name) if name in file.constants:
            return file.constants[name]
        case ast.Name(id=name) if name in file.imported:
            return file.imported[name]
        case ast.Attribute(value=ast.Name(id="tl"), attr=attr) if "tl" in file.modules and attr in TL_TYPES:
            return _OPAQUE
        case ast.Call(func=ast.Attribute(value=ast.Name(id="tl"), attr="constexpr"), args=[argument], keywords=[]) if (
            "tl" in file.modules
        ):
            return _constant(argument, file)
        case ast.Tuple(elts=elements):
            return tuple(_constant(element, file) for element in elements)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Invert() as op, operand=operand):
            value = _number(_constant(operand, file))
            return -value if isinstance(op, ast.USub) else value if isinstance(op, ast.UAdd) else ~value
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _number(_constant(left, file)), _number(_constant(right, file))
            if type(op) in _BINARY:
                return _small(_BINARY[type(op)](a, b))
            if abs(b) <= _MAX_SHIFT:
                return _small(_BOUNDED[type(op)](a, b)) if type(op) in _BOUNDED else _small(None)
    raise _NotConstant


def _number(value: object) -> int | float:
    if type(value) not in (int, float, bool):
        raise _NotConstant
    return value


def _small(value: object) -> int | float:
    """Numbers that a kernel can hold: nothing that makes importing the file expensive."""
    if type(value) not in (int, float, bool) or abs(value) > 2.0**128:
        raise _NotConstant
    return value


def _render(file: _File) -> str:
    """The kept statements as text on their own lines, everything else blank; parsed again as proof."""
    lines = file.text.split("\n")
    output = [""] * len(lines)
    for statement in file.kept:
        if isinstance(statement, ast.FunctionDef):
            first = statement.decorator_list[0].lineno
            output[first - 1 : statement.end_lineno] = lines[first - 1 : statement.end_lineno]
            continue
        kept = statement
        if _is_relative(statement):
            kept = ast.ImportFrom(statement.module, _kept_aliases(file, statement), statement.level)
        row = statement.lineno - 1
        output[row] = f"{output[row]}; {ast.unparse(kept)}" if output[row] else ast.unparse(kept)
    text = "\n".join(output).rstrip("\n") + "\n"
    expected = [
        ast.dump(ast.ImportFrom(s.module, _kept_aliases(file, s), s.level) if _is_relative(s) else s) for s in file.kept
    ]
    if [ast.dump(statement) for statement in ast.parse(text).body] != expected:
        raise KernelSourceError(
            file.name, 1, "rendering", "kernels and host code share lines; put them on lines of their own"
        )
    return text
