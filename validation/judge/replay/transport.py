"""Messages between the judge and its GPU worker: frames (see sandbox/frames.py) with a length before, and memfds."""

import socket
import struct
from collections.abc import Sequence
from typing import Any

from ...sandbox import frames

MAX_FRAME_BYTES = 1 << 30
MAX_DESCRIPTORS = 4
_HEAD = struct.Struct(">Q")


class Closed(Exception):
    """The other end is gone."""


def send(
    connection: socket.socket, document: dict[str, Any], blobs: tuple[bytes, ...] = (), descriptors: Sequence[int] = ()
) -> None:
    """Sends one message. Raises Closed, FrameError (not JSON), TimeoutError where the socket has a time limit."""
    frame = frames.encode(document, blobs)
    if len(frame) > MAX_FRAME_BYTES:
        raise frames.FrameError(f"a message of {len(frame)} bytes, at most {MAX_FRAME_BYTES}")
    try:
        # The head is shorter than any socket buffer: it goes out whole, and the descriptors with it.
        socket.send_fds(connection, [_HEAD.pack(len(frame))], list(descriptors))
        connection.sendall(frame)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise Closed from error


def receive(connection: socket.socket) -> tuple[dict[str, Any], tuple[bytes, ...], list[int]]:
    """One message with its descriptors, which the caller closes. Raises Closed, FrameError, TimeoutError."""
    try:
        head, descriptors, _, _ = socket.recv_fds(connection, _HEAD.size, MAX_DESCRIPTORS)
        head += _exactly(connection, _HEAD.size - len(head)) if head else b""
        if not head:
            raise Closed
        (length,) = _HEAD.unpack(head)
        if length > MAX_FRAME_BYTES:
            raise frames.FrameError(f"a message of {length} bytes, at most {MAX_FRAME_BYTES}")
        document, blobs = frames.decode(_exactly(connection, length))
    except ConnectionResetError as error:
        raise Closed from error
    return document, blobs, descriptors


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = bytearray(length)
    view, done = memoryview(data), 0
    while done < length:
        count = connection.recv_into(view[done:])
        if not count:
            raise Closed
        done += count
    return bytes(data)
