"""What a process of a run says of what went wrong in it, and in the processes that it has itself."""

import errno
import os
import socket
import threading
from multiprocessing.connection import Connection

import pytest
import torch
from fasttrack_validation.errors import UserError
from fasttrack_validation.numerics.whole_model import bench_worker
from fasttrack_validation.performance.arm import ArmFailed

FULL = (
    "CUDA out of memory. Tried to allocate 1.22 GiB. GPU 0 has a total capacity of 139.80 GiB of which 398.25 MiB is free. "
    "{}Including non-PyTorch memory, this process has 99.86 GiB memory in use.\n"
)
OTHER = "Process 522 has 37.84 GiB memory in use. "


def answer(monkeypatch, error: Exception) -> tuple:
    """What the process answers where a piece ends with `error`."""

    class Pieces:
        def __init__(self, job):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def run(self, piece, say):
            raise error

    monkeypatch.setattr(bench_worker, "Pieces", Pieces)
    monkeypatch.setattr(bench_worker.Job, "model_validate", lambda job: job)
    monkeypatch.setattr(bench_worker.signal, "signal", lambda *given: None)
    monkeypatch.setattr(bench_worker.torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr(bench_worker, "end_with", lambda parent: None)
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=bench_worker.main, args=(theirs.detach(), "bench", "kimi_k3", "."))
    thread.start()
    with Connection(ours.detach()) as pipe:
        pipe.send(("open", {"job": {}}))
        assert pipe.recv() == ("ok",)
        pipe.send(("run", {"piece": "op"}))
        found = pipe.recv()
    thread.join(10)
    return found


@pytest.mark.parametrize("others,said", [("", "nothing else on it"), (OTHER, "other processes on it")])
def test_a_full_card_is_the_users_to_empty_whoever_met_it(monkeypatch, others, said):
    text = FULL.format(others)
    nested = ArmFailed(f"{text}\nTraceback (most recent call last):\n  ...\ntorch.OutOfMemoryError: {text}")
    for error in (torch.OutOfMemoryError(text), nested):
        outcome, what, how = answer(monkeypatch, error)
        assert outcome == "wrong" and "Tried to allocate 1.22 GiB" in what and said in what and "--layers" in how


def test_a_full_disk_is_the_users_to_empty_whoever_met_it(monkeypatch):
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/run/op.jsonl")
    saving = ArmFailed(f"{error}\nTraceback ...\n")
    for error, said in ((error, "'/run/op.jsonl'"), (saving, "'/run/op.jsonl'")):
        outcome, what, how = answer(monkeypatch, error)
        assert outcome == "wrong" and what.startswith("a disk is full (") and said in what and "goes on" in how
        assert "\n" not in what and "Traceback" not in what


def test_other_errors_are_told_whole(monkeypatch):
    outcome, story = answer(monkeypatch, ValueError("of no use"))
    assert outcome == "error" and story.startswith("of no use\n") and "Traceback" in story
    assert answer(monkeypatch, UserError("what", "how")) == ("wrong", "what", "how")
