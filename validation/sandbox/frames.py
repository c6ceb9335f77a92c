"""Length-prefixed frames between the judge, the supervisor and the jailed code. Parsing expects a liar.

A frame is the magic, a count, that many 64-bit lengths, and the parts, with nothing after them. Part 0 is a JSON
object; the others are bytes. All integers are big-endian.
"""

import json
import struct
from typing import Any

from ..records import canonical_json

MAGIC = b"FTS1"
MAX_PARTS = 4096
# Small JSON can unfold into much larger objects: this bounds what a reader allocates. Bulk belongs into blobs.
MAX_DOCUMENT_BYTES = 16 << 20


class FrameError(ValueError):
    """Bytes that are no frame, or a document that is no finite JSON object."""


def encode(document: dict[str, Any], blobs: tuple[bytes, ...] = ()) -> bytes:
    """The frame of a document and blobs. Raises FrameError where `decode` would refuse it."""
    try:
        # Not the canonical form: an object's order can matter to the reader (a kernel's parameters, say).
        text = json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise FrameError(f"not a finite JSON object: {error}") from error
    parts = (text, *blobs)
    if len(text) > MAX_DOCUMENT_BYTES or len(parts) > MAX_PARTS:
        raise FrameError(f"a document of {len(text)} bytes (at most {MAX_DOCUMENT_BYTES}), {len(blobs)} blobs")
    lengths = [len(part) for part in parts]
    return b"".join((MAGIC, struct.pack(f">I{len(parts)}Q", len(parts), *lengths), *parts))


def decode(data: bytes) -> tuple[dict[str, Any], tuple[bytes, ...]]:
    """The document and the blobs of exactly one frame. Raises FrameError, and nothing else."""
    head = len(MAGIC) + 4
    if len(data) < head or data[: len(MAGIC)] != MAGIC:
        raise FrameError("no frame")
    (count,) = struct.unpack_from(">I", data, len(MAGIC))
    start = head + 8 * count
    if not 1 <= count <= MAX_PARTS or len(data) < start:
        raise FrameError(f"a frame of {count} parts in {len(data)} bytes")
    lengths = struct.unpack_from(f">{count}Q", data, head)
    if start + sum(lengths) != len(data):
        raise FrameError(f"parts of {sum(lengths)} bytes in a frame with room for {len(data) - start}")
    if lengths[0] > MAX_DOCUMENT_BYTES:
        raise FrameError(f"a document of {lengths[0]} bytes, at most {MAX_DOCUMENT_BYTES}")
    parts = []
    for length in lengths:
        parts.append(data[start : start + length])
        start += length
    return _document(parts[0]), tuple(parts[1:])


def _document(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_unique)
        # Refuses what only shows after parsing: 1e999 is infinity, an escaped half of a surrogate pair is no text.
        canonical_json(value).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise FrameError(f"not a finite JSON object: {error}") from error
    if not isinstance(value, dict):
        raise FrameError(f"a JSON object was expected, not a {type(value).__name__}")
    return value


def _no_constant(name: str) -> float:
    raise FrameError(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise FrameError("a key appears twice")
    return value
