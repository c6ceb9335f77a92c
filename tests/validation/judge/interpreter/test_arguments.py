"""Arguments beyond pointers and numbers: descriptors, tuples, element types, fp8, tables of addresses."""

import pytest
import torch

F32, BF16, I32 = torch.float32, torch.bfloat16, torch.int32


def normal(seed: int, *shape: int, dtype=F32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def pointer(buffer, dtype="fp32", offset=0):
    return {"kind": "buffer", "buffer": buffer, "offset": offset, "dtype": dtype}


def tensor_map(buffer, shape, block, *, dtype="fp32", strides=None, offset=0, **options):
    strides = strides or (*(shape[1:]), 1)
    return {"kind": "tensor_map", "buffer": buffer, "offset": offset, "dtype": dtype, "shape": shape,
            "strides": strides, "block_shape": block, **options}  # fmt: skip


BOX = """
@triton.jit
def kernel(D, Y, R, C, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    i = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tl.store(Y + i, D.load([R, C]).to(tl.float32))
"""
MADE = """
@triton.jit
def kernel(X, Y, R, C, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    D = tl.make_tensor_descriptor(X, shape=[5, 24], strides=[32, 1], block_shape=[ROWS, COLUMNS]{padding})
    i = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tl.store(Y + i, D.load([R, C]).to(tl.float32))
"""


def box(x: torch.Tensor, row: int, column: int, padding: float) -> torch.Tensor:
    """4 x 16 of the 5 x 24 tensor in `x` [5, 32], padded where it lies outside; element by element."""
    out = torch.full((4, 16), padding)
    for i in range(4):
        for j in range(16):
            if 0 <= row + i < 5 and 0 <= column + j < 24:
                out[i, j] = x[row + i, column + j].float()
    return out


@pytest.mark.parametrize("dtype", [F32, BF16, torch.float16, torch.float8_e5m2])
@pytest.mark.parametrize("padding", ["zero", "nan"])
@pytest.mark.parametrize(("row", "column"), [(0, 0), (3, 16), (-2, -16), (7, 0)])
def test_a_box_is_padded_as_hardware_pads_it(interpreter, dtype, padding, row, column):
    names = {F32: "fp32", BF16: "bf16", torch.float16: "fp16", torch.float8_e5m2: "fp8e5"}
    x = normal(1, 5, 32, dtype=dtype)
    fill = float("nan") if padding == "nan" else 0.0
    for source, argument in (
        (BOX, tensor_map("X", (5, 24), (4, 16), dtype=names[dtype], strides=(32, 1), padding=padding)),
        (MADE.replace("{padding}", f', padding_option="{padding}"'), pointer("X", names[dtype])),
    ):
        name = "D" if argument["kind"] == "tensor_map" else "X"
        reply, after = interpreter.run(
            source, {"X": x, "Y": torch.zeros(4, 16)}, read_only=("X",), constexprs={"ROWS": 4, "COLUMNS": 16},
            arguments={
                name: argument, "Y": pointer("Y"), "R": {"kind": "scalar", "type": "i32", "value": row},
                "C": {"kind": "scalar", "type": "i32", "value": column},
            },
        )  # fmt: skip
        assert reply["status"] == "ok", reply
        torch.testing.assert_close(after["Y"], box(x, row, column, fill), rtol=0, atol=0, equal_nan=True)


def test_rounding_to_tf32_on_the_way(interpreter):
    x = torch.full((5, 32), 1 + 2.0**-11 + 2.0**-13)  # between two tf32 numbers, above the middle
    argument = tensor_map("X", (5, 24), (4, 16), strides=(32, 1), round_to_tf32=True)
    zero = {"kind": "scalar", "type": "i32", "value": 0}
    reply, after = interpreter.run(
        BOX, {"X": x, "Y": torch.zeros(4, 16)}, constexprs={"ROWS": 4, "COLUMNS": 16},
        arguments={"D": argument, "Y": pointer("Y"), "R": zero, "C": zero},
    )  # fmt: skip
    assert reply["status"] == "ok" and (after["Y"] == 1 + 2.0**-10).all()


STORE = "@triton.jit\ndef kernel(D, V):\n    D.{call}([{at}], tl.full([4, 16], 1.0, tl.float32) * V)\n"


@pytest.mark.parametrize("call", ["store", "atomic_add"])
def test_what_is_stored_outside_is_dropped(interpreter, call):
    x = normal(2, 6, 32)
    reply, after = interpreter.run(
        STORE.format(call=call, at="3, 16"), {"X": x},
        arguments={
            "D": tensor_map("X", (5, 24), (4, 16), strides=(32, 1)), "V": {"kind": "scalar", "type": "fp32", "value": 2.0},
        },
    )  # fmt: skip
    expected = x.clone()
    inside = expected[3:5, 16:24]
    inside.copy_(inside + 2 if call == "atomic_add" else torch.full_like(inside, 2))
    assert reply["status"] == "ok" and torch.equal(after["X"], expected)


def test_a_descriptor_to_a_read_only_buffer_does_not_store(interpreter):
    reply, after = interpreter.run(
        STORE.format(call="store", at="0, 0"), {"X": torch.zeros(6, 32)}, read_only=("X",),
        arguments={
            "D": tensor_map("X", (5, 24), (4, 16), strides=(32, 1)), "V": {"kind": "scalar", "type": "fp32", "value": 2.0},
        },
    )  # fmt: skip
    assert reply["status"] == "violation" and reply["details"]["fault"] == "read_only" and not after["X"].any()


def test_a_descriptor_made_too_large_is_caught_at_the_access(interpreter):
    source = MADE.replace("[5, 24]", "[500, 24]").replace("{padding}", "")
    scalars = {name: {"kind": "scalar", "type": "i32", "value": value} for name, value in (("R", 3), ("C", 0))}
    reply, _ = interpreter.run(
        source, {"X": normal(1, 5, 32), "Y": torch.zeros(4, 16)}, constexprs={"ROWS": 4, "COLUMNS": 16},
        arguments={"X": pointer("X"), "Y": pointer("Y"), **scalars},
    )  # fmt: skip
    assert reply["status"] == "violation" and reply["details"]["buffer"] == "X" and reply["details"]["fault"] == "past"


def test_tuples_element_types_and_tuple_constants(interpreter):
    source = """
@triton.jit
def kernel(pair, Y, T: tl.constexpr, SHAPE: tl.constexpr):
    i = tl.arange(0, SHAPE[0])
    x = (tl.load(pair[0] + i) * pair[1] + pair[2][0] + pair[2][1]).to(T)
    tl.store(Y + i, x.to(tl.float32))
"""
    x = normal(3, 64)
    reply, after = interpreter.run(
        source, {"X": x, "Y": torch.zeros(64)},
        constexprs={"T": {"dtype": "bfloat16"}, "SHAPE": [64, 2], "pair.2.1": 1},
        arguments={
            "pair.0": pointer("X"), "Y": pointer("Y"), "pair.1": {"kind": "scalar", "type": "fp32", "value": 4.0},
            "pair.2.0": {"kind": "scalar", "type": "i32", "value": 7},
        },
    )  # fmt: skip
    assert reply["status"] == "ok", reply
    assert torch.equal(after["Y"], (x * 4 + 8).bfloat16().float())


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8_is_read_and_written(interpreter, dtype):
    source = """
@triton.jit
def kernel(X, Y):
    i = tl.arange(0, 64)
    tl.store(Y + i, (tl.load(X + i).to(tl.float32) * 0.5).to(Y.dtype.element_ty))
"""
    x = normal(4, 64, dtype=dtype)
    reply, after = interpreter.run(source, {"X": x, "Y": torch.zeros(64).to(dtype)})
    assert reply["status"] == "ok", reply
    assert torch.equal(after["Y"].float(), (x.float() * 0.5).to(dtype).float())


PEERS = """
@triton.jit
def kernel(T, Y, N: tl.constexpr):
    for rank in range(N):
        peer = tl.load(T + rank).to(tl.pointer_type(tl.float32))
        i = tl.arange(0, 8)
        tl.store(Y + i, tl.load(Y + i) + tl.load(peer + i))
    {more}
"""


def peers(interpreter, more="pass", **options):
    a, b = normal(5, 8), normal(6, 32)
    table = {"kind": "peers", "buffers": [pointer("A"), pointer("B", offset=64)]}
    reply, after = interpreter.run(
        PEERS.replace("{more}", more), {"A": a, "B": b, "Y": torch.zeros(8), "other": torch.zeros(8)},
        constexprs={"N": 2}, arguments={"T": table, "Y": pointer("Y")}, **options,
    )  # fmt: skip
    return (a, b), reply, after


def test_a_table_of_addresses_leads_to_the_buffers(interpreter):
    (a, b), reply, after = peers(interpreter)
    assert reply["status"] == "ok", reply
    assert torch.equal(after["Y"], a + b[16:24])


@pytest.mark.parametrize(
    ("more", "fault", "buffer"),
    [
        ("tl.store(T, 0)", "read_only", "table of peers T"),
        ("tl.load(T + 2)", "past", "table of peers T"),
        ("tl.store(tl.load(T).to(tl.pointer_type(tl.float32)), 1.0)", "read_only", "A"),
        ("tl.load(tl.load(T).to(tl.pointer_type(tl.float32)) + 8)", "past", "A"),
    ],
)
def test_a_table_gives_no_more_than_its_buffers(interpreter, more, fault, buffer):
    _, reply, _ = peers(interpreter, more, read_only=("A", "B"))
    assert reply["status"] == "violation"
    assert (reply["details"]["fault"], reply["details"]["buffer"]) == (fault, buffer)


def test_an_address_made_up_is_caught(interpreter):
    _, reply, _ = peers(interpreter, "tl.store((tl.load(T) + 4096 * 4096).to(tl.pointer_type(tl.float32)), 1.0)")
    assert reply["status"] == "violation"


def test_a_prefetch_may_not_write_through_a_table(interpreter):
    _, reply, _ = peers(interpreter, "tl.store(tl.load(T).to(tl.pointer_type(tl.float32)), 1.0)", role="prefetch")
    assert reply["status"] == "prefetch_writes"


def test_programmatic_launches_wait_for_nothing(interpreter):
    source = """
@triton.jit
def kernel(Y):
    tl.extra.cuda.gdc_wait()
    tl.store(Y, 1.0)
    tl.extra.cuda.gdc_launch_dependents()
"""
    reply, after = interpreter.run(source, {"Y": torch.zeros(1)})
    assert reply["status"] == "ok" and after["Y"].item() == 1


def test_a_cuda_kernel_is_not_interpreted(interpreter):
    pack = {
        "op": "op", "workload": "w", "candidate_digest": "0", "scratch": {}, "prepared": {}, "toolchain": {},
        "kernels": {"k": {"language": "cuda", "file": "k.cu", "function": "k", "signature": {}, "constexprs": {},
                          "divisible_by_16": (), "options": {}}},
        "launches": [{"kernel": "k", "grid": (1, 1, 1), "arguments": {}}],
    }  # fmt: skip
    source = {"files": {}, "cuda": {"k.cu": ""}}
    reply = interpreter.job({"source": source, "pack": pack, "buffers": {}, "order": "ascending"})
    assert reply["status"] == "error" and "not a @triton.jit" in reply["message"]
