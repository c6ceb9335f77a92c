"""Stands in for arm_worker at the other end of a path's pipe."""

import os
from multiprocessing.connection import Connection

import torch
from fasttrack_validation.performance.arm import packed

VALUES = {"a": torch.arange(12.0).view(4, 3).bfloat16(), "b": torch.arange(8, dtype=torch.int32)}


def main(descriptor: int, role: str, model: str, directory: str) -> None:
    pipe = Connection(descriptor)
    while True:
        try:
            command, arguments = pipe.recv()
        except EOFError:
            return
        match command:
            case "produced":
                found = {name: VALUES[name][indices] for name, indices in arguments["selection"].items()}
                pipe.send(("ok", {name: packed(tensor) for name, tensor in found.items()}))
            case "machine":
                pipe.send(("ok", {"process": str(os.getpid()), "role": role, "environment": ",".join(sorted(os.environ))}))
            case "replay":
                pipe.send(("ok", (1000, 2000)))
            case "rerun":
                pipe.send(("ok", [f"{arguments['seed']}", "same"]))
            case "free":
                os._exit(7)
            case _:
                pipe.send(("error", f"cannot {command}"))
