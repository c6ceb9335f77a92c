"""The allow-list over kernel sources: escapes that must be refused for their reason, honest twins that must pass."""

import ast
import subprocess
import sys
import textwrap

import pytest
from fasttrack_validation.judge import kernel_vocabulary as vocabulary
from fasttrack_validation.judge.kernel_source import KernelSourceError, extract
from hypothesis import given, settings
from hypothesis import strategies as st

HEADER = "import triton\nimport triton.language as tl\n"


def kernel(body: str, parameters: str = "X, N, BLOCK: tl.constexpr", before: str = "") -> str:
    return f"{HEADER}{before}@triton.jit\ndef kernel({parameters}):\n{textwrap.indent(textwrap.dedent(body), '    ')}\n"


def refused(files: dict[str, str] | str, reason: str) -> KernelSourceError:
    files = {"k.py": files} if isinstance(files, str) else files
    with pytest.raises(KernelSourceError) as error:
        extract(files, "k.py")
    assert error.value.reason == reason, error.value
    return error.value


def kept(files: dict[str, str] | str) -> dict[str, str]:
    return extract({"k.py": files} if isinstance(files, str) else files, "k.py").files


# Inside kernels. Each line would do harm, or hide it, if the file were run as it stands.
BODY = {
    "dunder walk": ("x = X.__class__.__bases__", "attribute"),
    "dunder on a literal": ("x = (1).__class__", "attribute"),
    "dunder on a call": ("x = tl.load(X).__init__.__globals__", "attribute"),
    "numpy behind the handle": ("x = tl.load(X).handle.data.tofile", "attribute"),
    "bound method of a string": ("x = 'a'.format", "attribute"),
    "internals of a tensor": ("x = X.type.to_ir(1)", "attribute"),
    "import": ("import os", "construct"),
    "import from": ("from os import system", "construct"),
    "global": ("global N", "construct"),
    "nested function": ("def inner():\n    pass", "def_line"),
    "lambda": ("f = lambda: 1", "construct"),
    "class body": ("class C:\n    pass", "construct"),
    "walrus": ("x = (y := 3)", "construct"),
    "list comprehension": ("x = [i for i in range(3)]", "construct"),
    "generator": ("x = sum(i for i in range(3))", "call"),
    "dict": ("x = {1: 2}", "construct"),
    "f-string": ("x = f'{N}'", "construct"),
    "f-string as message": ("tl.static_assert(N > 0, f'{X.__class__}')", "construct"),
    "starred call": ("tl.load(*X)", "construct"),
    "double starred call": ("tl.load(X, **N)", "keyword"),
    "private keyword": ("tl.load(X, _semantic=N)", "keyword"),
    "eval": ("eval('1')", "call"),
    "exec": ("exec('1')", "call"),
    "getattr": ("getattr(X, 'handle')", "call"),
    "open": ("open('/etc/passwd')", "call"),
    "import builtin": ("__import__('os')", "call"),
    "print": ("print(N)", "call"),
    "builtins as a name": ("x = __builtins__", "name"),
    "unknown name": ("x = np", "name"),
    "interpreter's own name": ("x = interpreter_semantic", "name"),
    "module alias": ("m = tl", "module"),
    "submodule": ("m = tl.core", "path"),
    "builtins through a submodule": ("x = tl.core.__builtins__", "path"),
    "submodule function": ("tl.core.builtins.eval(1)", "path"),
    "semantic": ("tl.semantic.os.system(1)", "path"),
    "standard": ("tl.standard.sum(X)", "path"),
    "runtime": ("triton.runtime.driver.active.utils.load_binary(1)", "path"),
    "triton.jit again": ("triton.jit(X)", "path"),
    "private name of tl": ("tl._experimental(X)", "path"),
    "unknown name of tl": ("tl.device_print('x', N)", "path"),
    "clock": ("x = tl.extra.cuda.globaltimer()", "path"),
    "function of tl as a value": ("f = tl.load", "path"),
    "call of a local": ("f = N\nf(1)", "call"),
    "call of a parameter": ("X(1)", "call"),
    "call of a call": ("tl.load(X)(1)", "call"),
    "call of a subscript": ("X[0](1)", "call"),
    "launch of a kernel": ("kernel[(1,)](X)", "call"),
    "kernel as a value": ("f = kernel", "name"),
    "attributes of a kernel": ("x = kernel.fn", "attribute"),
    "loop over a value": ("for i in X:\n    pass", "loop"),
    "loop over a tuple": ("for i in (1, 2):\n    pass", "loop"),
    "with": ("with X:\n    pass", "construct"),
    "try hides a violation": ("try:\n    tl.load(X)\nexcept Exception:\n    pass", "construct"),
    "delete": ("del X", "construct"),
    "write to the language": ("tl.load = N", "construct"),
    "write to an element": ("X[0] = N", "construct"),
    "rebind the language": ("tl = N", "shadow"),
    "rebind a builtin": ("range = N", "shadow"),
    "rebind the interpreter's name": ("interpreter_semantic = N", "name"),
    "dunder local": ("__x = N", "name"),
    "string as data": ("x = 'abc'", "string"),
    "string multiplication": ("x = 'abc' * 1000000000", "string"),
    "string into a function": ("tl.load('abc')", "string"),
    "bytes": ("x = b'abc'", "construct"),
    "two targets": ("x = y = N", "construct"),
    "yield": ("yield N", "construct"),
    "await": ("return (yield)", "construct"),
    "executing annotation": ("x: open('/tmp/x') = N", "annotation"),
    "libdevice without its import": ("x = libdevice.exp(N)", "import"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "reason"), BODY.values(), ids=BODY.keys())
def test_escape_inside_a_kernel(body, reason):
    error = refused(kernel(body), reason)
    assert error.file == "k.py" and error.line >= 3


SIGNATURES = {
    "default that calls": ("X, N=open('/tmp/x')", "default"),
    "default that is an attribute": ("X, N=tl.core", "default"),
    "default of a dropped name": ("X, N=HOST", "default"),
    "executing annotation": ("X: print('hello')", "annotation"),
    "string annotation": ("X: 'tl.constexpr'", "annotation"),
    "variadic": ("*X", "signature"),
    "keyword variadic": ("**X", "signature"),
    "private parameter": ("X, _semantic", "name"),
    "language as a parameter": ("X, tl", "shadow"),
}


@pytest.mark.parametrize(("parameters", "reason"), SIGNATURES.values(), ids=SIGNATURES.keys())
def test_escape_in_a_signature(parameters, reason):
    refused(kernel("pass", parameters), reason)


FILES = {
    "second decorator": (HEADER + "@effect\n@triton.jit\ndef kernel(X):\n    pass\n", "decorator"),
    "decorator argument that runs": (HEADER + "@triton.jit(repr=open('x'))\ndef kernel(X):\n    pass\n", "decorator"),
    "autotune": (HEADER + "@triton.autotune([], [])\n@triton.jit\ndef kernel(X):\n    pass\n", "decorator"),
    "another spelling of jit": ("import triton as t\n@t.jit\ndef kernel(X):\n    pass\n", "decorator"),
    "jit imported": ("from triton import jit\n@jit\ndef kernel(X):\n    pass\n", "decorator"),
    "jit on a class": (HEADER + "@triton.jit\nclass kernel:\n    pass\n", "decorator"),
    "return annotation": (HEADER + "@triton.jit\ndef kernel(X) -> print(1):\n    pass\n", "annotation"),
    "triton not imported": ("import triton.language as tl\n@triton.jit\ndef kernel(X):\n    pass\n", "import"),
    "language not imported": ("import triton\n@triton.jit\ndef kernel(X):\n    x = tl.load(X)\n", "import"),
    "language from elsewhere": ("import triton\nimport os as tl\n@triton.jit\ndef k(X):\n    tl.load(X)\n", "import"),
    "language rebound": (HEADER + "tl = evil\n@triton.jit\ndef kernel(X):\n    tl.load(X)\n", "rebound"),
    "language rebound in a branch": (
        HEADER + "if 1:\n    import os as tl\n@triton.jit\ndef k(X):\n    tl.load(X)\n", "rebound"),
    "constant rebound": (HEADER + "B = 1\nB = evil()\n@triton.jit\ndef kernel(X):\n    x = B\n", "rebound"),
    "constant rebound by global": (
        HEADER + "B = 1\ndef host():\n    global B\n    B = 2\n@triton.jit\ndef kernel(X):\n    x = B\n", "rebound"),
    "kernel defined twice": (
        HEADER + "@triton.jit\ndef kernel(X):\n    pass\n@triton.jit\ndef kernel(X):\n    pass\n", "rebound"),
    "host function called": (HEADER + "def host(x):\n    return x\n@triton.jit\ndef kernel(X):\n    host(X)\n", "call"),
    "host value used": (HEADER + "B = open('x')\n@triton.jit\ndef kernel(X):\n    x = B\n", "name"),
    "constant too large": (HEADER + "B = 2 ** 100000\n@triton.jit\ndef kernel(X):\n    x = B\n", "name"),
    "constant that repeats a string": (HEADER + "B = 'a' * 10 ** 9\n@triton.jit\ndef kernel(X):\n    x = B\n", "name"),
    "dunder kernel": (HEADER + "@triton.jit\ndef __getattr__(X):\n    pass\n", "name"),
    "builtin as a kernel": (HEADER + "@triton.jit\ndef range(X):\n    pass\n", "shadow"),
    "no kernel": (HEADER + "x = 1\n", "no_kernel"),
    "kernel in a branch": (HEADER + "if True:\n    @triton.jit\n    def kernel(X):\n        pass\n", "module_level"),
    "rebinding by match": (
        HEADER + "S = tl.constexpr(1.0)\nmatch tl.constexpr(2.0):\n    case S: pass\n" + kernel("pass")[len(HEADER):],
        "module_level"),
    "rebinding by except": (
        HEADER + "S = 1\ntry:\n    pass\nexcept OSError as S:\n    pass\n" + kernel("pass")[len(HEADER):], "module_level"),
    "rebinding through globals": (kernel("pass") + "def launch(c, b, a, f):\n    globals()['S'] = 2\n", "rebinding"),
    "not python": ("def (", "syntax"),
    "NUL": (HEADER + "#\0\n", "control_character"),
    "carriage return hides a line": (HEADER + "#\rimport os\n", "control_character"),
    "form feed": (HEADER + "\f@triton.jit\ndef kernel(X):\n    pass\n", "control_character"),
    "encoding that reads comments as code": ("# coding: utf-7\n" + kernel("pass"), "encoding"),
    "encoding on the second line": (
        "import triton\n# -*- coding: utf-7 -*-\n@triton.jit\ndef k(X):\n    pass\n", "encoding"),
    # Triton's interpreter looks for the last line that starts with "def" and runs from there.
    "code in a docstring": (
        HEADER + '@triton.jit\ndef kernel(X):\n    """\n    def kernel(X): evil() # """\n    pass\n', "def_line"),
    "code in a string": (
        HEADER + '@triton.jit\ndef kernel(X):\n    tl.abs(X, """\ndef kernel(X): evil() # """)\n', "def_line"),
    "code in a decorator": (
        HEADER + '@triton.jit(repr="""\ndef kernel(X): evil() #""")\ndef kernel(X):\n    pass\n', "def_line"),
    "def on two lines": (HEADER + "@triton.jit\ndef \\\n  kernel(X):\n    pass\n", "def_line"),
    "deep nesting": (HEADER + "@triton.jit\ndef kernel(X):\n    x = " + "-" * 3000 + "1\n", "depth"),
}  # fmt: skip


@pytest.mark.parametrize(("source", "reason"), FILES.values(), ids=FILES.keys())
def test_escape_at_module_level(source, reason):
    error = (
        refused(source, reason)
        if reason != "depth"
        else pytest.raises(KernelSourceError, extract, {"k.py": source}, "k.py").value
    )
    assert error.reason in (reason, "syntax")  # where the parser's own limit comes first


HONEST = {
    "docstring": '"""Copies X.\n\nDefault block: 128. Definitely fine.\n"""\ntl.store(X, tl.load(X))',
    "masked tail": 'i = tl.arange(0, BLOCK)\n'
    'x = tl.load(X + i, mask=i < N, other=float("-inf"), eviction_policy="evict_first")',
    "loops": "acc = tl.zeros([BLOCK], tl.float32)\nfor k in range(0, N, BLOCK):\n    acc += k\n"
    "for _ in tl.static_range(4):\n    acc *= 2",
    "pipelined loop": "for k in tl.range(0, N, num_stages=3):\n    tl.debug_barrier()",
    "while": "i = 0\nwhile i < N:\n    i += 1",
    "conditional": "if N > 3 and not BLOCK == 2:\n    x = 1\nelif N == 0:\n    x = 2\nelse:\n    x = 3\n"
    "y = x if N else 0",
    "dot": 'a = tl.load(X)\nc = tl.dot(a, a.T, input_precision="ieee", out_dtype=tl.float32)',
    "dot scaled": 'a = tl.load(X)\nc = tl.dot_scaled(a, None, "bf16", a, a, "e2m1")',
    "atomics": 'tl.atomic_add(X, 1.0, sem="relaxed", scope="gpu")',
    "types": "x = tl.load(X).to(X.dtype.element_ty).to(tl.bfloat16)\np = X.to(tl.pointer_type(tl.int8))",
    "constants": "x: tl.constexpr = BLOCK // 2\ny = tl.full((x, 2), 0.0, tl.float32)",
    "methods": "x = tl.load(X)[:, None]\ny = x.sum(1).max(0).reshape(1)\nz = x.shape[0]",
    "pdl": "tl.extra.cuda.gdc_wait()\ntl.extra.cuda.gdc_launch_dependents()",
    "math": "x = tl.math.exp(tl.load(X)) + tl.sigmoid(tl.load(X)) + tl.extra.cuda.libdevice.tanh(1.0)",
    "tuples": "a, b = tl.load(X), 2\nreturn a, b",
    "builtins": "x = min(N, BLOCK) + max(N, 1) + int(3.0) + len((1, 2))",
    "host arithmetic": "x = triton.cdiv(N, BLOCK) + triton.next_power_of_2(BLOCK)",
    "assertions": 'tl.static_assert(BLOCK >= 16, "too small")\nassert N > 0, "empty"',
    "inline assembly": 'x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [tl.load(X)], tl.int32, True, 1)',
    "mode": 'if BLOCK == "silu":\n    pass',
}  # fmt: skip


@pytest.mark.parametrize("body", HONEST.values(), ids=HONEST.keys())
def test_honest_kernel_passes(body):
    source = kernel(body)
    assert kept(source) == {"k.py": source}


def test_windows_line_ends_and_a_utf8_cookie_are_fine():
    source = "# -*- coding: utf-8 -*-\n" + kernel("tl.store(X, N)")
    assert kept(source.replace("\n", "\r\n"))["k.py"] == source.replace("# -*- coding: utf-8 -*-", "")


CANDIDATE = '''"""A candidate."""
from __future__ import annotations

import os, torch
import triton
import triton.language as tl
import triton.testing
from .tiles import BLOCK_K, host_helper, _silu as silu

BLOCK: tl.constexpr = 4 * BLOCK_K
HOST = torch.empty(3)
EPS = tl.constexpr(1e-6); SHIFT = 1 << 4
ACC = tl.float32


@triton.jit(do_not_specialize=["N"])
def _kernel(X, N, B: tl.constexpr = BLOCK, eps: tl.constexpr = 1e-6, s=-1):
    # the tile is read once
    x = silu(tl.load(X + tl.arange(0, B))) + EPS + SHIFT
    tl.store(X + tl.arange(0, B), x.to(ACC))


def launch(ctx, buffers, axes, config):
    os.system("true")
    _kernel[(1,)](buffers["x"], 3)
'''
TILES = f"""{HEADER}import torch
BLOCK_K = 32

def host_helper():
    return torch.cuda.synchronize()

@triton.jit
def _silu(x):
    return x * tl.sigmoid(x)
"""


def test_host_code_is_dropped_and_lines_stay_where_they_were():
    files = kept({"k.py": CANDIDATE, "tiles.py": TILES, "host.py": "import os\n\ndef f():\n    return os.environ\n"})
    assert set(files) == {"k.py", "tiles.py"}
    text = files["k.py"]
    original = CANDIDATE.split("\n")
    for number, line in enumerate(text.split("\n")[:-1]):
        if line and not line.startswith("from .tiles"):
            assert line == original[number].replace("1e-6);", "1e-06);")
    assert "torch" not in text and "os" not in text.replace("constexpr", "") and "launch" not in text
    assert "from .tiles import BLOCK_K, _silu as silu" in text and "host_helper" not in files["tiles.py"]
    assert "# the tile is read once" in text


def test_names_are_resolved_through_chains_of_imports():
    files = {
        "k.py": HEADER + "from .a import f\n@triton.jit\ndef kernel(X):\n    f(X)\n",
        "a.py": "from .pkg.b import f\n",
        "pkg/b.py": HEADER + "from ..c import ONE\n@triton.jit\ndef f(x):\n    return x + ONE\n",
        "c.py": "ONE = 1\n",
    }
    assert set(kept(files)) == set(files)


def test_a_name_that_its_file_drops_is_not_imported():
    files = {
        "k.py": HEADER + "from .a import f\n@triton.jit\ndef kernel(X):\n    f(X)\n",
        "a.py": "def f(x):\n    return x\n",
    }
    refused(files, "call")


def test_a_relative_import_cannot_leave_the_candidate():
    files = {"k.py": HEADER + "from ...errors import f\n@triton.jit\ndef kernel(X):\n    f(X)\n"}
    refused(files, "call")


def test_entry_must_be_given():
    refused({"other.py": kernel("pass")}, "entry")


def test_the_error_names_file_line_and_reason():
    error = refused({"k.py": kernel("pass"), "a.py": kernel("x = 1\neval('2')")}, "call")
    assert (error.file, error.line) == ("a.py", 6) and str(error).startswith("a.py:6: ") and "[call]" in str(error)


ATOMS = st.sampled_from(
    ["X", "N", "1", "2.5", "None", "True", "tl", "tl.float32", "tl.core", "triton", "kernel", "__import__", "eval",
     "'s'",
     "X.dtype", "X.handle", "tl.load(X)", "tl.load", "open", "range", "(lambda: 1)", "[i for i in X]", "(y := 1)",
     "f'{X}'"]
)  # fmt: skip
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds("({} + {})".format, inner, inner),
        st.builds("{}({})".format, inner, inner),
        st.builds(
            "{}.{}".format, inner, st.sampled_from(["T", "shape", "to", "__class__", "handle", "fn", "core", "sum"])
        ),
        st.builds("{}[{}]".format, inner, inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("tl.where({}, {}, {})".format, inner, inner, inner),
        st.builds("tl.load(X, mask={})".format, inner),
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(EXPRESSIONS)
def test_whatever_passes_names_nothing_but_the_vocabulary(expression):
    source = kernel(f"x = {expression}")
    try:
        ast.parse(source)
        text = kept(source)["k.py"]
    except (SyntaxError, KernelSourceError):
        return
    tree = ast.parse(text)
    assert ast.dump(tree) == ast.dump(ast.parse(source))
    function = tree.body[-1]
    language = vocabulary.TL_FUNCTIONS | vocabulary.TL_TYPES | vocabulary.TL_CLASSES
    called = {id(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}
    for node in ast.walk(function):
        assert not isinstance(node, ast.Lambda | ast.NamedExpr | ast.ListComp | ast.JoinedStr)
        if isinstance(node, ast.Attribute):
            assert not node.attr.startswith("_")
            root = isinstance(node.value, ast.Name) and node.value.id == "tl"
            assert node.attr in (language | {"jit"} if root else vocabulary.VALUE_ATTRIBUTES | {"jit"})
        if isinstance(node, ast.Name):
            assert node.id in {"X", "N", "BLOCK", "x", "tl", "triton"} or id(node) in called
            assert node.id in {"X", "N", "BLOCK", "x", "tl", "triton", "kernel", "range"}


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_refused_or_kept_without_a_crash(text):
    try:
        files = kept({"k.py": kernel("pass"), "a.py": text})
    except KernelSourceError:
        return
    for source in files.values():
        ast.parse(source)


def test_the_vocabulary_names_what_triton_has_and_no_module():
    script = """
import inspect, sys, triton, triton.language as tl
from triton.language.extra import libdevice
from fasttrack_validation.judge import kernel_vocabulary as v
missing = [n for n in v.TL_FUNCTIONS | v.TL_TYPES | v.TL_CLASSES if not hasattr(tl, n)]
allowed_missing = {"atomic_load", "atomic_store", "atomic_poll", "mul", "add", "sub"}  # newer than 3.8
assert set(missing) <= allowed_missing, missing
assert not [n for n in v.TL_MATH if not hasattr(tl.math, n)]
assert not [n for n in v.LIBDEVICE if not hasattr(libdevice, n)], [n for n in v.LIBDEVICE if not hasattr(libdevice, n)]
assert not [n for n in v.TL_CUDA if not hasattr(tl.extra.cuda, n)]
for module, names in ((tl, v.TL_FUNCTIONS | v.TL_TYPES | v.TL_CLASSES), (tl.math, v.TL_MATH), (libdevice, v.LIBDEVICE)):
    assert not [n for n in names if inspect.ismodule(getattr(module, n, None))]
"""
    subprocess.run([sys.executable, "-c", script], check=True)


_LOOPS = """import triton
import triton.language as tl


@triton.jit
def kernel(out, n):
    {body}
"""


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("for i in range(0, n):\n        n += 0\n    tl.store(out, i)", 9),
        ("for i in tl.range(0, n):\n        n += 0\n    i += 1", 9),
        ("i = 5\n    for i in range(0, n):\n        n += 0\n    if n > i:\n        n = 0", 10),
        ("i = 5\n    for k in range(0, n):\n        tl.store(out, i)\n        for i in range(0, n):\n            n += 0", 9),
    ],
)
def test_a_loop_variable_is_not_read_behind_its_loop(body, line):
    with pytest.raises(KernelSourceError) as caught:
        extract({"k.py": _LOOPS.format(body=body)}, "k.py")
    assert (caught.value.reason, caught.value.line) == ("loop_variable", line)


@pytest.mark.parametrize(
    "body",
    [
        "for i in range(0, n):\n        n += i\n    for i in range(0, n):\n        n += i",
        "for i in range(0, n):\n        n += 0\n    i = 3\n    tl.store(out, i)",
        "for i in tl.static_range(0, 3):\n        n += 0\n    tl.store(out, i)",
        "i = 5\n    tl.store(out, i)\n    for i in range(i, n):\n        n += i",
    ],
)
def test_a_loop_variable_that_has_a_value_may_be_read(body):
    extract({"k.py": _LOOPS.format(body=body)}, "k.py")
