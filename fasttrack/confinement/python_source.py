"""What a kernel's Python may say, read from its syntax tree: it is never imported, and never run here.

This is a first reader, not a sandbox: it turns away what no kernel needs, with the line, before anything runs. What
hides from it meets the judge's sandbox, which assumes hostile code.
"""

import ast
from collections.abc import Iterator
from typing import NamedTuple

_ROOTS = frozenset({"torch", "triton", "cuda"})
_STANDARD = frozenset(
    {"__future__", "abc", "collections", "collections.abc", "dataclasses", "enum", "functools", "itertools", "math",
     "typing"}
)  # fmt: skip
_NAMES = frozenset(
    "__import__ __builtins__ __loader__ __spec__ exec eval compile open breakpoint globals locals vars setattr "
    "delattr".split()
)
# Modules that allowed libraries import for themselves, and that must not be reached through them.
_MODULES = frozenset(
    "os sys importlib subprocess socket ctypes builtins shutil inspect gc threading multiprocessing pickle "
    "pathlib types tempfile io signal atexit weakref operator time random json platform glob site runpy code codecs "
    "marshal mmap urllib http asyncio concurrent logging warnings traceback linecache tokenize ast dis".split()
)
_DUNDERS = frozenset(
    "__name__ __doc__ __init__ __post_init__ __call__ __len__ __iter__ __eq__ __hash__ __repr__ __str__ __enter__ "
    "__exit__ __version__ __all__ __annotations__ __getitem__ __contains__ __add__ __mul__ __slots__".split()
)
# What an allowed library offers to reach files, compilers, processes, other code, or state that others share.
_LIBRARY = frozenset((
    "torch.hub", "torch.load", "torch.save", "torch.serialization", "torch.package", "torch.multiprocessing",
    "torch.utils.cpp_extension", "torch.utils.data", "torch.utils.model_zoo", "torch.utils.tensorboard",
    "torch.utils.benchmark", "torch.testing", "torch.jit", "torch.library", "torch.classes", "torch.overrides",
    "torch.ops.load_library", "torch.distributed.rpc", "torch._C", "torch._dynamo", "torch._inductor", "torch.fx",
    "torch.utils._python_dispatch", "torch.set_default_dtype", "torch.set_default_device", "torch.manual_seed",
    "torch.set_default_tensor_type", "torch.set_num_threads", "torch.use_deterministic_algorithms",
    "torch.set_float32_matmul_precision", "torch.cuda.memory.change_current_allocator", "torch.compile",
    "torch.profiler", "torch.autograd.profiler",
    "triton.runtime", "triton.compiler", "triton.backends", "triton.knobs", "triton.testing", "triton.profiler",
    "triton.tools", "triton._C", "triton.language.core.builtin",
))  # fmt: skip

# Longer chains of attributes are refused: nothing honest needs them, and reading them costs time.
_DEEPEST = 12


class Found(NamedTuple):
    """One broken rule: id, line (from 1), and what was found."""

    rule: str
    line: int
    message: str


def check_python(relative: str, text: str) -> Iterator[Found]:
    """Every rule that the source breaks. `relative` is its path in the model directory."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        yield Found("content.syntax", getattr(error, "lineno", None) or 0, getattr(error, "msg", None) or str(error))
        return
    depth = len(relative.split("/"))
    imported = _imported(tree)
    for node in ast.walk(tree):
        yield from _imports(node, depth)
        yield from _names(node, imported)
        yield from _patches(node, imported)


def _imported(tree: ast.AST) -> dict[str, str]:
    """Local name -> dotted origin for each import, and for each name that is bound to a part of one."""
    origins: dict[str, str] = {}
    bound: dict[str, list[tuple[str, ast.AST]]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                origins[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom):
            source = "." * node.level + (node.module or "")
            origins |= {alias.asname or alias.name: f"{source}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Assign | ast.NamedExpr | ast.AnnAssign) and node.value is not None:
            root = _chain(node.value)[0]
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name) and isinstance(root, ast.Name):
                    bound.setdefault(root.id, []).append((target.id, node.value))
    waiting = list(origins)
    while waiting:
        for name, value in bound.get(waiting.pop(), ()):
            if name not in origins:
                origins[name] = _origin(value, origins)
                waiting.append(name)
    return origins


def _chain(node: ast.AST) -> tuple[ast.AST, list[str]]:
    """The expression that a chain of attributes starts from, and their names; cut after _DEEPEST of them."""
    names: list[str] = []
    while len(names) < _DEEPEST:
        if isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        elif isinstance(node, ast.Call) and _getattr_name(node):
            names.append(_getattr_name(node))
            node = node.args[0]
        else:
            break
    return node, names[::-1]


def _origin(node: ast.AST, origins: dict[str, str]) -> str | None:
    """The dotted name that an expression denotes when it starts at an import: `t.cuda.Event` -> torch.cuda.Event."""
    root, names = _chain(node)
    if len(names) == _DEEPEST:
        return ".".join(["(deep)", *names])
    base = origins.get(root.id) if isinstance(root, ast.Name) else None
    return base and ".".join([*base.split("."), *names][: _DEEPEST + 1])


def _getattr_name(node: ast.Call) -> str | None:
    if isinstance(node.func, ast.Name) and node.func.id == "getattr" and len(node.args) >= 2:
        name = node.args[1]
        return name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else None
    return None


def _imports(node: ast.AST, depth: int) -> Iterator[Found]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.split(".")[0] not in _ROOTS and alias.name not in _STANDARD:
                yield Found("content.import", node.lineno, f"import {alias.name}")
    elif isinstance(node, ast.ImportFrom):
        if node.level > depth:
            yield Found("content.relative_import", node.lineno, f"from {'.' * node.level}{node.module or ''} import")
        elif not node.level and node.module.split(".")[0] not in _ROOTS and node.module not in _STANDARD:
            yield Found("content.import", node.lineno, f"from {node.module} import")
        if any(alias.name == "*" for alias in node.names):
            yield Found("content.import", node.lineno, "import *: what it brings cannot be read")


def _names(node: ast.AST, imported: dict[str, str]) -> Iterator[Found]:
    line = getattr(node, "lineno", 0)
    spelled = [value for field in ("id", "attr", "arg", "name", "asname")
               if isinstance(value := getattr(node, field, None), str)]  # fmt: skip
    for name in spelled:
        if not name.isascii():
            yield Found("content.identifier", line, f"{name.encode('ascii', 'backslashreplace').decode()}")
    reached = []
    if isinstance(node, ast.Name):
        if node.id in _NAMES:
            reached.append(node.id)
        elif isinstance(node.ctx, ast.Load) and node.id in imported and "." in imported[node.id]:
            reached += _denied(imported[node.id])
    elif isinstance(node, ast.Attribute):
        reached += _attribute(node.attr) + _denied(_origin(node, imported))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        name = _getattr_name(node)
        reached += ["getattr with a computed name"] if name is None else (
            _attribute(name) + _denied(_origin(node, imported)))  # fmt: skip
    elif isinstance(node, ast.alias):
        reached += _attribute(node.name)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        for alias in node.names:
            reached += _denied(f"{node.module}.{alias.name}")
    elif isinstance(node, ast.Import):
        for alias in node.names:
            reached += _denied(alias.name)
    yield from (Found("content.forbidden_name", line, name) for name in reached)


def _attribute(name: str) -> list[str]:
    hidden = name.startswith("__") and name.endswith("__") and name not in _DUNDERS
    return [name] if hidden or name in {"f_globals", "f_builtins", "f_locals", "gi_frame", "tb_frame"} else []


def _denied(origin: str | None) -> list[str]:
    """The origin itself when it is, or passes through, something that no kernel needs."""
    if not origin or origin.startswith("."):
        return []
    parts = origin.split(".")
    through = any(part.lstrip("_") in _MODULES for part in parts[1:])
    listed = any(".".join(parts[:end]) in _LIBRARY for end in range(2, len(parts) + 1))
    return [origin] if through or listed or len(parts) > _DEEPEST else []


def _patches(node: ast.AST, imported: dict[str, str]) -> Iterator[Found]:
    match node:
        case ast.Assign() | ast.Delete():
            targets = list(node.targets)
        case ast.AugAssign() | ast.AnnAssign() | ast.For() | ast.AsyncFor() | ast.comprehension():
            targets = [node.target]
        case ast.withitem(optional_vars=target) if target:
            targets = [target]
        case _:
            return
    while targets:
        target = targets.pop()
        if isinstance(target, ast.Tuple | ast.List):
            targets += target.elts
        elif isinstance(target, ast.Starred):
            targets.append(target.value)
        elif isinstance(target, ast.Attribute | ast.Subscript):
            root = target.value
            while isinstance(root, ast.Attribute | ast.Subscript):
                root = root.value
            if isinstance(root, ast.Name) and root.id in imported:
                yield Found("content.global_patch", target.lineno, f"into {root.id}, which is {imported[root.id]}")
