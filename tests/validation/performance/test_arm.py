"""A path's process: what travels through its pipe, and what becomes of one that ends."""

from pathlib import Path

import pytest
import torch
from fasttrack_validation.performance.arm import Arm, ArmFailed, packed, unpacked
from fasttrack_validation.timing.session import Replay


@pytest.fixture
def arm(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "support"))
    monkeypatch.setenv("FASTTRACK_SECRET", "not for a path")
    with Arm("specialised", "kimi_k3", Path("/nowhere"), worker="pipe_worker") as one:
        yield one


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int32, torch.uint8])
def test_a_tensor_arrives_as_it_was_sent(dtype):
    sent = torch.arange(24).view(2, 3, 4).to(dtype).transpose(0, 2)
    got = unpacked(packed(sent))
    assert got.dtype is dtype and torch.equal(got, sent)


def test_selected_indices_come_back_over_the_pipe(arm):
    got = arm.produced({"a": torch.tensor([3, 1]), "b": torch.tensor([7])}, 2)
    assert torch.equal(got["a"], torch.tensor([[9.0, 10, 11], [3, 4, 5]]).bfloat16()) and got["b"].tolist() == [7]


def test_the_process_sees_nothing_of_the_environment_that_could_tune_it(arm):
    assert "FASTTRACK_SECRET" not in arm.machine()["environment"]


def test_both_clocks_come_back(arm):
    reading = arm.replay()
    assert (reading.event_ns, reading.host_ns) == (1000, 2000)


def test_a_timed_call_that_gave_something_else_is_a_fault(arm):
    right, wrong = Replay(seed=4, digests=("4", "same")), Replay(seed=5, digests=("5", "other"))
    assert arm.verify([right]) is None and arm.verify([]) is None
    assert arm.verify([right, wrong]).reason == "timing.wrong_result"


def test_what_a_path_cannot_do_is_said_in_its_words(arm):
    with pytest.raises(ArmFailed, match="cannot ceiling"):
        arm.ceiling()


def test_a_process_that_ended_is_named_and_a_fresh_one_takes_its_place(arm):
    before = arm.machine()["process"]
    with pytest.raises(ArmFailed, match="ended during 'free'"):
        arm.free()
    with pytest.raises(ArmFailed):
        arm.replay()
    arm.restart()
    assert arm.machine()["process"] != before
