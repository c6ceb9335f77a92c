"""A process that carries out pieces of a run, one after the other, and says how far it is. It ends with who started it."""

import os
import re
import signal
import threading
import traceback
from multiprocessing.connection import Connection

import torch

from ...errors import UserError
from .orphans import end_with
from .pieces import Job, Pieces


_FULL_CARD = re.compile(r"OutOfMemoryError: (.*?\.) (GPU \d+ has a total capacity of .*?)\n")
_FULL_DISK = re.compile(r".*No space left on device.*")


def _full(story: str) -> tuple[str, str] | None:
    """What to say and do where a card's memory or a disk is full, in this process or in a path's own; None where it is neither."""
    if found := _FULL_CARD.search(story):
        others = "other processes on it, this run's own among them" if "Process " in found[2] else "nothing else on it"
        return (
            f"the card's memory does not hold what this piece needs ({found[1]} {others})",
            "end what else runs on it, or take a lower --tp or fewer of the --layers; the same command goes on with what is missing",
        )
    if found := _FULL_DISK.search(story):
        return f"a disk is full ({found[0].strip()})", "free some of it; the same command goes on where records end"
    return None


def main(descriptor: int, role: str, model: str, directory: str) -> None:
    """Answers "open", then any number of "run", until the connection closes: any number of ("did", piece, actions, all),
    then ("ok",), ("wrong", what, how) or ("error", text)."""
    end_with(os.getppid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who started this process
    torch.set_num_threads(1)
    pipe, pieces, lock = Connection(descriptor), None, threading.Lock()

    def say(piece: str, done: int, of: int) -> None:
        with lock:  # oracles of ops run in threads
            pipe.send(("did", piece, done, of))

    while True:
        try:
            command, arguments = pipe.recv()
        except EOFError:
            break
        try:
            if command == "open":
                pieces = Pieces(Job.model_validate(arguments["job"])).__enter__()
            else:
                pieces.run(arguments["piece"], say)
            pipe.send(("ok",))
        except UserError as error:
            pipe.send(("wrong", error.what, error.how))
        except Exception as error:  # the caller decides what it means, so it gets the whole story
            story = f"{error}\n{traceback.format_exc()}"
            pipe.send(("wrong", *full) if (full := _full(story)) else ("error", story))
    if pieces is not None:
        pieces.__exit__(None, None, None)
