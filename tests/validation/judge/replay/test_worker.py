"""The worker's commands in this process, on the fake device: what is malformed, what is packed, what is given back."""

import json
import os
import socket
import struct
import threading

import numpy as np
import pytest
from fake_kernels import CHAIN, chain_pack, device_code

from fasttrack_validation.judge.device_code.records import TensorMapLayout
from fasttrack_validation.judge.pack import (
    BufferArgument, Launch, PeerTableArgument, ScalarArgument, TensorMapArgument,
)  # fmt: skip
from fasttrack_validation.judge.replay import arguments, serve, transport, worker
from fasttrack_validation.judge.replay.driver import TensorMap
from fasttrack_validation.judge.replay.fake import FakeDriver, read_tensor_map
from fasttrack_validation.judge.replay.kernels import drawn, host_digest
from fasttrack_validation.sandbox import sealed_memory
from fasttrack_validation.tensors import DType

N = 4
SIZE = 4096
REGIONS = {
    "x": {"offset": 0, "bytes": 4 * N, "kind": "fixed"}, "mid": {"offset": 256, "bytes": 4 * N, "kind": "scratch"},
    "out": {"offset": 512, "bytes": 4 * N, "kind": "written"},
}  # fmt: skip


@pytest.fixture
def driver():
    return FakeDriver()


@pytest.fixture
def memory():
    made = sealed_memory(SIZE)
    os.pwrite(made, struct.pack("<4f", 0, 1, 2, 3), 0)
    yield made
    os.close(made)


@pytest.fixture
def send(driver):
    """send(command, blobs=(), memory=(), **request) -> answer of one worker."""
    made = worker.Worker(driver)
    return lambda command, blobs=(), memory=(), **request: serve.answered(
        made, {"command": command, **request}, blobs, memory
    )


def load(send, text=CHAIN, side="side"):
    plan = chain_pack(N)
    text_of_plan = plan.model_dump_json().replace('"side"', f'"{side}"')
    codes, cubins = [], []
    for key, kernel in plan.kernels.items():
        code = device_code(text, kernel.function)
        codes.append({"key": key, **code.model_dump(mode="json", exclude={"cubin"})})
        cubins.append(code.cubin)
    return send("load", cubins, pack=json.loads(text_of_plan), codes=codes)


def slot(send, memory, **changes):
    fields = {"slot": 0, "size": SIZE, "regions": REGIONS, "seed": 5, "lead": 512, "slack": 1024, **changes}
    return send("slot", memory=[memory], **fields)


def test_a_plan_runs_and_everything_is_given_back(send, driver, memory):
    held = set(driver.memory)
    assert load(send) == {"ok": {"kernels": 2}}
    assert slot(send, memory)["ok"]["address"] % 256 == 0
    for request in ({}, {"graph": True}, {"repeats": 3, "graph": True}):
        assert "ok" in send("run", slots=[0], **request)
    assert "ok" in send("capture", slots=[0, 0]) and "ok" in send("replay")
    assert send("download", memory=[memory], slot=0) == {"ok": {}}
    assert struct.unpack("<4f", os.pread(memory, 16, 512)) == (2, 4, 6, 8)
    assert driver.graphs == 1 and driver.modules == 3  # the judge's own is one of them
    assert send("release") == {"ok": {}}
    assert (set(driver.memory), driver.graphs, driver.modules) == (held, 0, 1)
    assert send("replay")["error"]["kind"] == "command"


def test_a_worker_that_saw_many_plans_holds_no_more_than_one_needs(send, driver, memory):
    held = []
    for number in range(4):
        load(send, side=f"side {number}")
        send("slot", memory=[memory], slot=0, size=SIZE, regions=REGIONS, seed=1)
        assert "ok" in send("run", slots=[0], graph=True) and "ok" in send("run", slots=[0])
        assert "ok" in send("release")
        held.append((len(driver._streams), len(driver._events), sum(len(event.times) for event in driver._events)))
    assert set(held) == {held[0]} and held[0][0] == 3  # the origin's, and one each for main and side


def test_scratch_is_noise_that_changes_and_is_not_part_of_a_digest(send, driver, memory):
    load(send)
    base = slot(send, memory)["ok"]["address"]
    digest = lambda: send("digest", slots=[0], key=[1, 2], everything=True)["ok"]["digests"]  # noqa: E731
    seen, first = [driver.array(base + 256, "u1", 16).tobytes()], digest()
    for seed in (8, 9):
        assert send("restore", slots=[0], seed=seed) == {"ok": {}}
        seen.append(driver.array(base + 256, "u1", 16).tobytes())
    assert len(set(seen)) == 3 and digest() == first
    driver.array(base + SIZE + 100, "u1", 1)[0] ^= 1  # behind the arena, inside of the allocation
    assert digest() != first


MALFORMED = {
    "unknown command": lambda send, memory: send("launch"),
    "no plan": lambda send, memory: slot(send, memory),
    "unknown slot": lambda send, memory: (load(send), send("run", slots=[3]))[1],
    "too many repeats": lambda send, memory: (load(send), send("run", slots=[0], repeats=65))[1],
    "unknown field": lambda send, memory: send("release", now=True),
    "seed is no number": lambda send, memory: send("restore", slots=[], seed="1"),
    "no memory": lambda send, memory: (load(send), send("slot", slot=0, size=SIZE, regions=REGIONS, seed=1))[1],
    "memory too small": lambda send, memory: (load(send), slot(send, memory, size=2 * SIZE))[1],
    "region outside": lambda send, memory: (
        load(send), slot(send, memory, regions={"x": {"offset": 3840, "bytes": 512, "kind": "fixed"}})
    )[1],
    "region unaligned": lambda send, memory: (
        load(send), slot(send, memory, regions={"x": {"offset": 8, "bytes": 8, "kind": "fixed"}})
    )[1],
    "unknown kind": lambda send, memory: (
        load(send), slot(send, memory, regions={"x": {"offset": 0, "bytes": 8, "kind": "any"}})
    )[1],
    "lead beyond slack": lambda send, memory: (load(send), slot(send, memory, lead=2048))[1],
    "a region is missing": lambda send, memory: (
        load(send), slot(send, memory, regions={name: REGIONS[name] for name in ("x", "out")})
    )[1],
    "slot taken": lambda send, memory: (load(send), slot(send, memory), slot(send, memory))[2],
    "no such plan": lambda send, memory: send("load", pack={}, codes=[]),
    "codes without cubins": lambda send, memory: send("load", pack=chain_pack(N).model_dump(mode="json"), codes=[{}]),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_command_is_answered_and_changes_nothing(send, memory, case):
    assert MALFORMED[case](send, memory)["error"]["kind"] == "command"
    assert "ok" in load(send) and "ok" in slot(send, memory) and "ok" in send("run", slots=[0])


def test_bytes_that_are_no_frame_end_the_worker():
    ours, theirs = socket.socketpair()
    with ours:
        thread = threading.Thread(target=serve.serve, args=(theirs, None))
        thread.start()
        ours.sendall(struct.pack(">Q", 5) + b"hello")
        assert transport.receive(ours)[0]["error"]["code"] == "frame"
        thread.join(5)
        assert not thread.is_alive()
    theirs.close()


def test_a_device_that_is_out_of_memory_says_so(send, memory):
    load(send)
    answer = slot(send, memory, slack=1 << 25, size=SIZE)
    assert "ok" in answer
    big = sealed_memory(1 << 28)
    try:
        error = slot(send, big, slot=1, size=1 << 28)["error"]
    finally:
        os.close(big)
    assert (error["kind"], error["code"]) == ("device", "CUDA_ERROR_OUT_OF_MEMORY")


class Placed:
    """Answers what argument packing asks, and remembers it."""

    asked: list

    def __init__(self):
        self.asked = []

    def address(self, buffer, offset):
        return {"a": 0x7000_0000_0000, "b": 0x7000_0001_0000}[buffer] + offset

    def tensor_map(self, request):
        self.asked.append(request)
        return bytes(128)

    def table(self, addresses):
        self.asked.append(list(addresses))
        return 0x1234

    def scratch(self, size, align):
        self.asked.append((size, align))
        return 0x5678 if size else 0


def packed(given: dict, placed=None, **fields) -> tuple[bytes, ...]:
    code = device_code("", "k", parameters=tuple(given), **fields)
    launch = Launch(kernel="k", grid=(3, 2, 1), arguments=given)
    return arguments.parameters(launch, code, placed or Placed())


def test_scalars_have_the_width_of_their_type():
    values = {
        "u1": (True, "01"), "i8": (-1, "ff"), "u8": (255, "ff"), "i16": (-2, "feff"), "i32": (-2, "feffffff"),
        "u32": (2**32 - 1, "ffffffff"), "i64": (-(2**63), "0000000000000080"), "u64": (2**64 - 1, "ff" * 8),
        "fp16": (1.5, "003e"), "fp32": (1.5, "0000c03f"), "fp64": (1.5, "000000000000f83f"), "bf16": (1.5, "c03f"),
    }  # fmt: skip
    given = {name: ScalarArgument(type=name, value=value) for name, (value, _) in values.items()}
    found = packed(given, trailing_scratch=False)
    assert [one.hex() for one in found] == [text for _, text in values.values()]


def test_pointers_carry_offsets_and_two_scratch_pointers_follow():
    placed = Placed()
    given = {"p": BufferArgument(buffer="b", offset=48, dtype=DType.F32)}
    found = packed(given, placed, ctas=2, global_scratch_bytes=100, global_scratch_align=128)
    assert [int.from_bytes(one, "little") for one in found] == [0x7000_0001_0030, 0x5678, 0]
    assert placed.asked == [(3 * 2 * 2 * 100, 128), (0, 128)]


def test_a_peer_table_is_an_array_of_addresses():
    placed = Placed()
    ranks = tuple(BufferArgument(buffer=name, offset=8, dtype=DType.I64) for name in ("b", "a"))
    (found,) = packed({"p": PeerTableArgument(buffers=ranks)}, placed, trailing_scratch=False)
    assert int.from_bytes(found, "little") == 0x1234
    assert placed.asked == [[0x7000_0001_0008, 0x7000_0000_0008]]


MAP = TensorMapArgument(
    buffer="a", offset=64, dtype=DType.BF16, shape=(10, 64), strides=(128, 1), block_shape=(8, 64), swizzle=128
)


def test_a_tensor_map_is_encoded_innermost_first():
    placed = Placed()
    assert packed({"p": MAP}, placed, trailing_scratch=False) == (bytes(128),)
    # CUtensorMapDataType 9 is BFLOAT16, CUtensorMapSwizzle 3 is 128 bytes; a row is 128 elements of 2 bytes.
    assert placed.asked == [TensorMap(0x7000_0000_0040, 9, (64, 10), (256,), (64, 8), 3, False)]


def test_tritons_tensor_map_is_followed_by_shape_and_strides():
    placed = Placed()
    layout = TensorMapLayout(swizzle=2, element=0, element_bytes=1, box=(8, 32), doubled=True)
    argument = MAP.model_copy(update={"swizzle": None, "padding": "nan", "dtype": DType.U8})
    found = packed({"p": argument}, placed, trailing_scratch=False, tensor_maps={"p": layout})
    assert [one.hex() for one in found[1:]] == ["0a000000", "40000000", "8000000000000000", "0100000000000000"]
    assert placed.asked == [TensorMap(0x7000_0000_0040, 0, (128, 10), (128,), (32, 8), 2, True)]
    rounded = arguments.tensor_map(argument.model_copy(update={"round_to_tf32": True}), layout, 0)
    assert rounded.element == 11


def test_the_fake_encodes_what_it_is_given(driver):
    request = TensorMap(0x1000, 9, (64, 10), (256,), (64, 8), 3)
    encoded = driver.tensor_map(request)
    assert len(encoded) == 128 and read_tensor_map(encoded) == request


def test_a_digest_is_of_every_byte_in_order():
    key = (3, 4)
    data = [b"abc", b"0123456789"]
    whole = host_digest(data, key)
    assert len(whole) == 32 and whole == host_digest(data, key)
    assert whole != host_digest(data, (3, 5)) and whole != host_digest(data[::-1], key)
    for part in range(2):
        for at in range(len(data[part])):
            changed = [bytearray(one) for one in data]
            changed[part][at] ^= 1
            assert host_digest([bytes(one) for one in changed], key) != whole


def test_noise_is_splitmix64():
    # The first outputs of SplitMix64 from seed 1234567, as its reference implementation (Vigna) prints them.
    assert drawn(1234567, 0, 3).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert np.array_equal(drawn(1234567, 1, 2), drawn(1234567, 0, 3)[1:])
