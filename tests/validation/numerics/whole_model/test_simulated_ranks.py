"""What simulated ranks hand to each other around one call; calls here are made up."""

from contextlib import contextmanager
from types import SimpleNamespace

import torch
from fasttrack_validation.numerics.whole_model.simulated_ranks import Group

RANKS = 3
PARTIAL = "4.o_proj_residual.partial"


class Memory:
    def __init__(self, rank: int) -> None:
        self.rank, self.sent, self.others, self.stream = rank, torch.zeros(2), torch.zeros(RANKS - 1, 2), torch.zeros(2)

    def written(self, value: str):
        assert value == PARTIAL
        return self.sent

    def peers(self):
        return self.others


class Lane:
    def __init__(self, rank: int) -> None:
        self.memory, self.state = Memory(rank), torch.full((2,), 10.0 * rank)

    def of(self, place, tensor: str):
        assert tensor == "recurrent_state"
        return self.state


class Executor:
    """Moves the state on by one, sends it, and adds what it finds of the others."""

    def __init__(self, lane: Lane) -> None:
        self.lane, self.launches = lane, 0

    def enqueue(self, bound) -> None:
        lane, memory = self.lane, self.lane.memory
        self.launches += 1
        lane.state += 1
        memory.sent.copy_(lane.state)
        memory.stream.copy_(memory.sent + memory.others.sum(0))


class Context:
    def __init__(self) -> None:
        self.waited: list[str] = []

    def wait(self, name: str) -> None:
        self.waited.append(name)

    @contextmanager
    def stream(self, name: str):
        yield


def _run(*, reads_back: bool, stream: str = "main"):
    lanes = [Lane(rank) for rank in range(RANKS)]
    sources = [SimpleNamespace(value=PARTIAL, via="peers")] if reads_back else []
    state = {"recurrent_state": "4.recurrent_state"}
    place = SimpleNamespace(sources=sources, reads=state, writes={**state, "partial": PARTIAL})
    call = SimpleNamespace(sends=(PARTIAL,), members=[SimpleNamespace(place=place)], stream=stream)
    group = object.__new__(Group)
    group._exchanged, group._card = {"peers"}, SimpleNamespace(context=Context())
    executors = [Executor(lane) for lane in lanes]
    group._call(executors, [SimpleNamespace(call=call)] * RANKS, lanes)
    return executors, lanes, group._card.context


def test_a_launch_that_reads_what_all_send_in_it_runs_twice_and_moves_states_once():
    executors, lanes, _ = _run(reads_back=True)
    assert [executor.launches for executor in executors] == [2] * RANKS
    assert [lane.state.tolist() for lane in lanes] == [[10.0 * rank + 1] * 2 for rank in range(RANKS)]
    # 1 + 11 + 21, on every rank.
    assert [lane.memory.stream.tolist() for lane in lanes] == [[33.0, 33.0]] * RANKS


def test_another_launch_runs_once_and_what_it_sent_is_there_for_the_next_one():
    executors, lanes, context = _run(reads_back=False, stream="shared")
    assert [executor.launches for executor in executors] == [1] * RANKS
    assert lanes[0].memory.others.tolist() == [[11.0, 11.0], [21.0, 21.0]]
    # What is copied is waited for, on whatever stream it was written.
    assert context.waited == ["shared"]
