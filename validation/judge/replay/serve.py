"""The worker's process: answers one judge's commands until nobody is at the other end.

An answer is {"ok": {...}}, or {"error": {"kind", "code", "message"}} where kind is command (malformed; nothing happened),
refused (plan and code do not fit), device (the driver said so; the judge then ends this process, since a context does not
outlive most of its errors), or defect (of the worker).
"""

import importlib
import os
import socket
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict

from pydantic import ValidationError

from ...sandbox.frames import FrameError
from . import transport
from .driver import DeviceError
from .program import Refused
from .requests import CommandError
from .worker import Worker

DRIVERS = {"cuda": f"{__package__}.cuda_driver", "fake": f"{__package__}.fake"}
_LOOK_SECONDS = 1.0
COMMANDS: tuple[str, ...] = (
    "load", "reload", "slot", "run", "capture", "replay", "restore", "freshen", "digest", "download", "probe", "release",
)  # fmt: skip


def main(descriptor: int, judge: int, kind: str, specification: str) -> None:
    """Serves commands on the socket `descriptor` until it closes or the process `judge` is gone."""
    threading.Thread(target=_end_with, args=(judge,), daemon=True).start()
    with socket.socket(fileno=descriptor) as connection:
        try:
            driver = importlib.import_module(DRIVERS[kind]).make(specification)
            worker = Worker(driver)
        except (DeviceError, ImportError, RuntimeError) as error:
            # cuda-bindings raises RuntimeError where there is no driver library to load.
            code = error.code if isinstance(error, DeviceError) else type(error).__name__
            transport.send(connection, {"error": {"kind": "device", "code": code, "message": str(error)}})
            return
        transport.send(connection, {"ok": asdict(driver.facts)})
        serve(connection, worker)


def serve(connection: socket.socket, worker: Worker) -> None:
    """Answers commands until the connection closes."""
    while True:
        try:
            document, blobs, memory = transport.receive(connection)
        except transport.Closed:
            return
        except FrameError as error:
            transport.send(connection, _error("command", "frame", str(error)))
            return  # what follows in the stream cannot be told apart
        try:
            answer = answered(worker, document, blobs, memory)
        finally:
            for one in memory:
                os.close(one)
        transport.send(connection, answer)


def answered(worker: Worker, document: dict, blobs: Sequence[bytes], memory: Sequence[int]) -> dict:
    """The answer to one command."""
    name = document.pop("command", None)
    if name not in COMMANDS:
        return _error("command", "unknown", f"no command {name!r}; there are {', '.join(COMMANDS)}")
    handler: Callable[..., dict] = getattr(worker, name)
    try:
        return {"ok": handler(document, blobs, memory)}
    except (CommandError, ValidationError) as error:
        return _error("command", "malformed", str(error))
    except Refused as error:
        return _error("refused", error.reason, str(error))
    except DeviceError as error:
        return _error("device", error.code, str(error))
    except Exception:
        # No candidate code runs here, so this is the judge's own doing; it must not look like a candidate's crash.
        return _error("defect", "exception", traceback.format_exc())


def _error(kind: str, code: str, message: str) -> dict:
    return {"error": {"kind": kind, "code": code, "message": message}}


def _end_with(judge: int) -> None:
    parent = os.getppid()  # the judge, or a tool between it and this process
    while os.getppid() == parent and _runs(judge):
        time.sleep(_LOOK_SECONDS)
    os._exit(1)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
