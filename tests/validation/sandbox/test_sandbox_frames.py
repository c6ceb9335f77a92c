"""Frames: what is encoded comes back; what is not a frame is refused, never anything else."""

import json
import math
import struct

import pytest
from fasttrack_validation.sandbox import frames
from hypothesis import given, settings
from hypothesis import strategies as st

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=12,
)


def frame(*parts: bytes, count: int | None = None) -> bytes:
    """A frame put together by hand."""
    lengths = b"".join(len(part).to_bytes(8, "big") for part in parts)
    return b"FTS1" + (len(parts) if count is None else count).to_bytes(4, "big") + lengths + b"".join(parts)


@settings(deadline=None)
@given(st.dictionaries(_TEXT, _JSON, max_size=4), st.lists(st.binary(max_size=50), max_size=4))
def test_what_is_encoded_comes_back(document, blobs):
    assert frames.decode(frames.encode(document, tuple(blobs))) == (document, tuple(blobs))


def test_layout_is_the_documented_one():
    assert frames.encode({"a": 1}, (b"xy",)) == frame(b'{"a":1}', b"xy")


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=80) | st.binary(max_size=60).map(lambda tail: b"FTS1" + tail))
def test_arbitrary_bytes_are_refused_or_read_and_nothing_else(data):
    try:
        document, _ = frames.decode(data)
    except frames.FrameError:
        return
    assert isinstance(document, dict)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_changed_byte_never_raises_anything_but_a_frame_error(position, change):
    data = bytearray(frames.encode({"key": [1.5, "text"]}, (b"blob", b"")))
    data[position % len(data)] ^= change
    try:
        frames.decode(bytes(data))
    except frames.FrameError:
        pass


@pytest.mark.parametrize(
    "data",
    {
        "nothing": b"",
        "another magic": b"FTS2" + frame(b"{}")[4:],
        "cut short": frame(b"{}")[:-1],
        "something after the frame": frame(b"{}") + b"x",
        "two frames": frame(b"{}") + frame(b"{}"),
        "no parts": frame(),
        "a count beyond the data": frame(b"{}", count=2**31),
        "a length beyond the data": b"FTS1" + struct.pack(">IQ", 1, 2**63) + b"{}",
        "lengths that wrap around": b"FTS1" + struct.pack(">IQQ", 2, 2**64 - 1, 3) + b"{}",
        "no object": frame(b"[]"),
        "NaN": frame(b'{"a":NaN}'),
        "infinity": frame(b'{"a":-Infinity}'),
        "infinity by overflow": frame(b'{"a":1e999}'),
        "half a surrogate pair": frame(b'{"a":"\\ud800"}'),
        "not UTF-8": frame(b'{"a":"\xff"}'),
        "a repeated key": frame(b'{"a":1,"a":2}'),
        "a repeated key inside": frame(b'{"b":[{"a":1,"a":2}]}'),
        "deep nesting": frame(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        "a long integer": frame(b'{"a":' + b"9" * 10_000 + b"}"),
    }.items(),
    ids=lambda item: item[0],
)
def test_refused(data):
    with pytest.raises(frames.FrameError):
        frames.decode(data[1])


def test_a_document_past_the_limit_is_refused_before_it_is_parsed(monkeypatch):
    monkeypatch.setattr(json, "loads", lambda *_, **__: pytest.fail("it was parsed"))
    with pytest.raises(frames.FrameError, match="at most"):
        frames.decode(frame(b'"' + b"a" * frames.MAX_DOCUMENT_BYTES + b'"'))


@pytest.mark.parametrize("value", [math.nan, math.inf, "\ud800", {1, 2}, b"bytes"])
def test_what_is_no_finite_json_is_not_encoded(value):
    with pytest.raises(frames.FrameError):
        frames.encode({"a": value})
