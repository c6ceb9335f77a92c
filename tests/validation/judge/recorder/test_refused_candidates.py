"""Host code that no plan can hold: refused for the stated reason, at the stated place."""

import pytest

# conftest.HEADER has nine lines: line n of a snippet is line HEADER_LINES + n of kernel.py.
HEADER_LINES = 9


def launch(*lines, before=""):
    return before + "\ndef launch(ctx, buffers, axes, config):\n" + "".join(f"    {line}\n" for line in lines)


GO = "copy[(1,)](buffers.x, buffers.o, 5, BLOCK=32)"

REFUSALS = {
    "tensor made in launch": (
        "record.allocation", "empty", launch("t = torch.empty(64)", "copy[(1,)](t, buffers.o, 5, BLOCK=32)")),
    "tensor of a list": ("record.allocation", "torch.tensor", launch("torch.tensor([1.0])", GO)),
    "tensor out of place": ("record.torch_operation", "mm", launch("torch.mm(buffers.w, buffers.w, out=buffers.w)", GO)),
    "functional": ("record.torch_operation", "mm", launch("torch.nn.functional.linear(buffers.w, buffers.w)", GO)),
    "operation by its name": ("record.torch_operation", "mm", launch("torch.ops.aten.mm(buffers.w, buffers.w)", GO)),
    "compiled function": ("record.torch_cuda", "torch.cuda", launch("torch.compile(lambda x: x + 1)(buffers.x)", GO)),
    "graph": ("record.torch_cuda", "CUDAGraph", launch("torch.cuda.CUDAGraph()", GO)),
    "resized": ("record.torch_operation", "resize_", launch("buffers.x.resize_(3)", GO)),
    "other storage": ("record.torch_operation", "set_", launch("buffers.x.set_()", GO)),
    "storage that is read": ("record.allocation", "empty", launch("buffers.x.untyped_storage()[0]", GO)),
    "tensor like another": ("record.torch_operation", "zeros_like", launch("torch.zeros_like(buffers.x)", GO)),
    "tensor kept from import": (
        "record.unknown_storage", "'x'",
        launch("copy[(1,)](KEPT, buffers.o, 5, BLOCK=32)", before="KEPT = torch.empty(64)")),
    "meta tensor": (
        "record.fake_tensor", "meta",
        launch("copy[(1,)](KEPT, buffers.o, 5, BLOCK=32)", before="KEPT = torch.empty(64, device='meta')")),
    "tensor subclass": (
        "record.fake_tensor", "Mine",
        launch("copy[(1,)](buffers.x.as_subclass(Mine), buffers.o, 5, BLOCK=32)",
               before="class Mine(torch.Tensor): pass")),
    "address as an integer": (
        "record.raw_pointer", "'x'", launch("copy[(1,)](buffers.x, buffers.o, buffers.x.data_ptr(), BLOCK=32)")),
    "address arithmetic": (
        "record.raw_pointer", "'o'", launch("copy[(1,)](buffers.x, buffers.o, buffers.o.data_ptr() + 8, BLOCK=32)")),
    "torch does the work": ("record.torch_operation", "copy_", launch("buffers.o.copy_(buffers.x)", GO)),
    "in-place arithmetic": ("record.torch_operation", "add_", launch("buffers.o += 1", GO)),
    "matmul": ("record.torch_operation", "mm", launch("buffers.w @ buffers.w", GO)),
    "hidden copy": ("record.torch_operation", "clone", launch("buffers.x.contiguous()", GO)),
    "item": ("record.data_read", "item", launch("buffers.x[0, 0].item()", GO)),
    "float": ("record.data_read", "float", launch("float(buffers.x[0, 0])", GO)),
    "branch on data": ("record.data_read", "bool", launch("if buffers.x[0, 0]: pass", GO)),
    "tolist": ("record.data_read", "tolist", launch("buffers.x.tolist()", GO)),
    "numpy": ("record.data_read", "numpy", launch("buffers.x.numpy()", GO)),
    "cpu": ("record.data_read", "cpu", launch("buffers.x.cpu()", GO)),
    "synchronise": ("record.torch_cuda", "synchronize", launch("torch.cuda.synchronize()", GO)),
    "current stream": ("record.torch_cuda", "current_stream", launch("torch.cuda.current_stream()", GO)),
    "new stream": ("record.torch_cuda", "Stream", launch("torch.cuda.Stream()", GO)),
    "device properties": ("record.torch_cuda", "get_device_prop", launch("torch.cuda.get_device_properties(0)", GO)),
    "function kept from torch.cuda": (
        "record.torch_cuda", "torch.cuda",
        launch("synchronize()", GO, before="from torch.cuda import synchronize")),
    "no launch": ("record.no_launches", "no kernel", launch("pass")),
    "endless launches": ("record.too_many_launches", "4096", launch("while True:", "    " + GO)),
    "grid of floats": ("record.grid", "2.5", launch("copy[(2.5,)](buffers.x, buffers.o, 5, BLOCK=32)")),
    "grid of four": ("record.grid", "4 dimensions", launch("copy[(1, 1, 1, 2)](buffers.x, buffers.o, 5, BLOCK=32)")),
    "autotune": (
        "record.autotune", "2 @autotune configs",
        launch("tuned[(1,)](buffers.x)", before="""
@triton.autotune(configs=[triton.Config({}, num_warps=2), triton.Config({}, num_warps=4)], key=[])
@triton.jit
def tuned(x):
    tl.store(x, 0.0)
""")),
    "nested kernel": (
        "record.nested_kernel", "inner",
        launch("@triton.jit", "def inner(x):", "    tl.store(x, 0.0)", "inner[(1,)](buffers.x)")),
    "closure": (
        "record.nested_kernel", "inner",
        launch("make()[(1,)](buffers.x)", before="""
def make(value=1.0):
    value = value + 1
    @triton.jit
    def inner(x):
        tl.store(x, value)
    return inner
""")),
    "library kernel": (
        "record.foreign_kernel", "zeros_like",
        launch("tl.zeros_like[(1,)](buffers.x)")),
    "patched source": (
        "record.kernel_identity", "copy",
        launch("copy._unsafe_update_src('def copy(x, o, n, BLOCK: tl.constexpr):\\n    pass\\n')", GO)),
    "renamed kernel": (
        "record.kernel_identity", "copy",
        launch("first[(1,)](buffers.x, buffers.o, 5, BLOCK=32)", before="""
first = copy

@triton.jit
def copy(x, o, n, BLOCK: tl.constexpr):
    tl.store(o, 0.0)
""")),
    "named tuple": (
        "record.tuple_argument", "'x'",
        launch("copy[(1,)](Pair(buffers.x, buffers.o), buffers.o, 5, BLOCK=32)", before="""
import collections
Pair = collections.namedtuple("Pair", "first second")
""")),
    "descriptor of a kept tensor": (
        "record.unknown_storage", "'x'",
        launch("d = TensorDescriptor.from_tensor(KEPT, [1, 64])", "copy[(1,)](d, buffers.o, 5, BLOCK=32)",
               before="from triton.tools.tensor_descriptor import TensorDescriptor\nKEPT = torch.empty(4, 64)")),
    "torch's dtype as constexpr": (
        "record.constexpr", "dtype", launch("copy[(1,)](buffers.x, buffers.o, 5, BLOCK=torch.float32)")),
    "function as constexpr": (
        "record.constexpr", "JITFunction", launch("copy[(1,)](buffers.x, buffers.o, 5, BLOCK=copy)")),
    "Gluon": (
        "record.gluon", "Gluon",
        launch("inner[(1,)](buffers.x)", before="""
from triton.experimental import gluon

@gluon.jit
def inner(x):
    pass
""")),
    "peers of nothing": ("record.peers", "0 peers", launch("ctx.peers([])", GO)),
    "peers of other memory": (
        "record.unknown_storage", "rank 1",
        launch("ctx.peers([buffers.x, KEPT])", GO, before="KEPT = torch.empty(64)")),
    "empty tensor": (
        "record.empty_tensor", "'x' has shape (0,", launch("copy[(1,)](buffers.x[:0], buffers.o, 5, BLOCK=32)")),
    "part of a table": (
        "record.peers", "pass the table",
        launch("copy[(1,)](ctx.peers([buffers.x, buffers.o])[1:], buffers.o, 5, BLOCK=32)")),
    "too many tables": (
        "record.peers", "64 tables",
        launch("for n in range(65):", "    ctx.peers([buffers.x[0, n % 64:]] * (1 + n // 64))", GO)),
    "peers while preparing": (
        "record.launch_outside", "ctx.peers",
        launch(GO, before="def prepare(ctx, static, a, c):\n    ctx.peers([static.w])\n")),
    "persistent of bool": (
        "record.dtype", "bool", launch(GO, before="def persistent(a, c): return {'t': ((4,), torch.bool)}")),
    "persistent of words": (
        "record.exception", "initial",
        launch(GO, before="def persistent(a, c): return {'t': ((4,), torch.int32, 256)}")),
    "persistent with more": (
        "record.exception", "unpack",
        launch(GO, before="def persistent(a, c): return {'t': ((4,), torch.int32, 0, 'epoch', 1)}")),
    "no CUDA source": ("record.no_cuda_file", "it has: none", launch("ctx.cuda('k.cu', 'k', threads=32)[1]()")),
    "CUDA with a float for threads": (
        "record.no_cuda_file", "k.cu", launch("ctx.cuda('k.cu', 'k', threads=32.5)[1]()")),
    "CUDA grid of floats": ("record.grid", "2.5", launch("ctx.cuda('k.cu', 'k', threads=32)[2.5]()")),
    "scalar of no type": ("record.exception", "bf16", launch("ctx.scalar('bf16', 1.0)", GO)),
    "infinite constexpr": (
        "record.constexpr", "inf", launch("copy[(1,)](buffers.x, buffers.o, 5, BLOCK=float('inf'))")),
    "infinite scalar": (
        "record.scalar", "inf", launch("copy[(1,)](buffers.x, buffers.o, float('-inf'), BLOCK=32)")),
    "compiler option": (
        "record.option", "ptx_options",
        launch("copy[(1,)](buffers.x, buffers.o, 5, BLOCK=32, ptx_options='--opt-level 0')")),
    "foreign intermediate code": (
        "record.option", "ir_override",
        launch("copy[(1,)](buffers.x, buffers.o, 5, BLOCK=32, ir_override='/tmp/other.ptx')")),
    "unknown dtype": (
        "record.dtype", "fp8e4b15",
        launch("copy[(1,)](triton.reinterpret(buffers.x, tl.float8e4b15), buffers.o, 5, BLOCK=32)")),
    "launch while preparing": (
        "record.launch_outside", "copy",
        launch(GO, before="def prepare(ctx, static, a, c):\n    copy[(1,)](static.w, static.w, 5, BLOCK=32)\n")),
    "launch while importing": (
        "record.launch_outside", "copy",
        launch(GO, before="copy[(1,)](torch.empty(64), torch.empty(64), 5, BLOCK=32)")),
    "another plan the second time": (
        "record.not_deterministic", "launch 0",
        launch("calls.append(1)", "copy[(len(calls),)](buffers.x, buffers.o, 5, BLOCK=32)", before="calls = []")),
    "more launches the second time": (
        "record.not_deterministic", "1 launches, then 2",
        launch("calls.append(1)", "for _ in calls: " + GO, before="calls = []")),
    "plan by address": (
        "record.not_deterministic", "launch 0",
        launch("seen.append(buffers.x.data_ptr())",
               "copy[(1 + (seen[0] != seen[-1]),)](buffers.x, buffers.o, 5, BLOCK=32)", before="seen = []")),
    "scratch under a tensor's name": (
        "record.buffer_name", "'x'", launch(GO, before="def scratch(a, c): return {'x': ((4,), torch.float32)}")),
    "scratch without a size": (
        "record.shape", "'t'", launch(GO, before="def scratch(a, c): return {'t': ((0,), torch.float32)}")),
    "scratch of bool": (
        "record.dtype", "bool", launch(GO, before="def scratch(a, c): return {'t': ((4,), torch.bool)}")),
    "prepared list": (
        "record.prepared", "list", launch(GO, before="def prepare(ctx, static, a, c): return {'t': [1, 2]}")),
    "device questions": (
        "record.device", "ctx.hardware",
        launch("triton.runtime.driver.active.utils.get_device_properties(0)", GO)),
    "no entry": ("record.no_launch", "launch(ctx", "x = 1\n"),
    "unknown buffer": ("record.exception", "it has o, w, x", launch("buffers.y", GO)),
    "wait for nothing": ("record.exception", "nothing was launched", launch("ctx.wait('side')", GO)),
    "exit": ("record.exception", "SystemExit", launch("raise SystemExit(0)")),
}  # fmt: skip


IMPORTS = "import numpy, torch\nKEPT = torch.empty(64, 64)\nMETA = torch.empty(64, device='meta')\n"

CUDA_REFUSALS = {
    "list": ("record.cuda_argument", "list", "[1, 2]"),
    "number of numpy": ("record.cuda_argument", "float32", "numpy.float32(1)"),
    "kept tensor": ("record.unknown_storage", "'p0'", "KEPT"),
    "empty tensor": ("record.empty_tensor", "'p0'", "buffers.x[:, :0]"),
    "tensor on no device": ("record.fake_tensor", "meta", "META"),
    "large integer": ("record.scalar", "ctx.scalar", "2**31"),
    "float for an integer": ("record.scalar", "i64", "ctx.scalar('i64', 1.5)"),
    "text for an integer": ("record.scalar", "str", "ctx.scalar('i64', '7')"),
    "infinity": ("record.scalar", "inf", "float('inf')"),
    "address": ("record.raw_pointer", "'x'", "ctx.scalar('i64', buffers.x.data_ptr())"),
    "complex numbers": ("record.dtype", "complex64", "buffers.x.view(torch.complex64)"),
    "map of a kept tensor": ("record.unknown_storage", "'p0'", "ctx.tensor_map(KEPT, (16, 16))"),
    "part of a table": ("record.peers", "pass the table", "ctx.peers([buffers.x, buffers.o])[1:]"),
    "tensor that is computed": ("record.torch_operation", "mul", "buffers.x * 2"),
    "value that is read": ("record.data_read", "item", "buffers.x[0, 0].item()"),
    "value after a synchronisation": ("record.torch_cuda", "synchronize", "torch.cuda.synchronize()"),
}  # fmt: skip


@pytest.mark.parametrize("name", CUDA_REFUSALS)
def test_arguments_of_cuda_kernels_are_refused_for_the_stated_reason(record, name):
    reason, words, value = CUDA_REFUSALS[name]
    code = launch(f"ctx.cuda('k.cu', 'k', threads=32)[1]({value})", before=IMPORTS)
    answer, _ = record("", files={"kernel.py": code, "k.cu": ""})
    assert answer["rejected"]["reason"] == reason, answer
    assert words in answer["rejected"]["message"]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ("threads='many'", "'many'"),
        ("threads=32, max_registers=[1]", "[1]"),
        ("threads=32, cluster=object()", "object"),
    ],
)
def test_options_that_are_no_data_are_refused(record, options, word):
    code = launch(f"ctx.cuda('k.cu', 'k', {options})[1]()")
    answer, _ = record("", files={"kernel.py": code, "k.cu": ""})
    if "rejected" in answer:
        assert answer["rejected"]["reason"] == "record.option" and word in answer["rejected"]["message"]
    else:  # plain data, which the plan's rules refuse
        (variant,) = answer["packs"][0]["kernels"].values()
        assert variant["options"]["threads"] == "many"


@pytest.mark.parametrize("name", REFUSALS)
def test_refused_for_the_stated_reason(record, name):
    reason, words, code = REFUSALS[name]
    answer, blobs = record(code)
    assert "rejected" in answer, answer
    assert answer["rejected"]["reason"] == reason, answer
    assert words in answer["rejected"]["message"]
    assert blobs == []


@pytest.mark.parametrize("handler", ["except Exception:", "except:"])
def test_a_fallback_does_not_swallow_the_refusal(record, handler):
    answer, _ = record(launch("try:", "    buffers.o.copy_(buffers.x)", handler, "    " + GO))
    assert answer["rejected"]["reason"] == "record.torch_operation"


def test_the_line_is_named(record):
    answer, _ = record(launch("pass", "buffers.o.zero_()"))
    # launch() pushes two lines (blank, def) before its body.
    assert answer["rejected"]["where"] == f"kernel.py:{HEADER_LINES + 4}"


def test_a_traceback_shows_the_candidate_only(record):
    answer, _ = record(launch("helper()", before="def helper():\n    raise ValueError('no such tile')\n"))
    rejected = answer["rejected"]
    assert rejected["reason"] == "record.exception"
    first, *lines = rejected["message"].splitlines()
    assert first == "launch raised ValueError: no such tile"
    assert [line.strip().partition(" in ")[2] for line in lines] == ["launch", "helper"]
    assert all(line.strip().startswith("kernel.py:") for line in lines)
    assert rejected["where"] == f"kernel.py:{HEADER_LINES + 2}"


def test_a_syntax_error_names_its_line(record):
    answer, _ = record("", files={"kernel.py": "x = 1\ny = = 2\n"})
    assert answer["rejected"]["reason"] == "record.exception"
    assert answer["rejected"]["where"] == "kernel.py:2"


def test_an_unknown_launch_keyword_is_explained(record):
    answer, _ = record(launch("copy[(1,)](buffers.x, buffers.o, 5, BLOCK=32, num_wraps=4)"))
    assert answer["rejected"]["reason"] == "record.exception"
    assert "num_wraps" in answer["rejected"]["message"]


def test_half_a_surrogate_pair_in_a_message_stays_valid_text(record):
    answer, _ = record(launch("raise ValueError('\\ud800')"))
    assert answer["rejected"]["message"].encode()
