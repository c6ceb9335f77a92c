"""The adapter that goes into every solution: states, axes, and when `prepare` runs again."""

from types import SimpleNamespace

import pytest
import torch

from fasttrack_validation.contracts.trace.adapter import Adapter

FACTS = {
    "static": ["w"], "states": {"new_acc": "acc"}, "fixed": {"tp": 8}, "config": {"warps": 4},
    "sizes": {"rows": ["x", 0], "slots": ["acc", 0]}, "strides": {"x_stride": ["x", 0]},
    "hardware": {"name": "h200", "capability": 90, "multiprocessors": 132, "max_shared": 232448},
}  # fmt: skip


class Candidate:
    """out = x + 2 w, acc += 1; keeps what it was given."""

    def __init__(self):
        self.prepared = 0
        self.axes = None

    def prepare(self, ctx, static, axes, config):
        self.prepared += 1
        return {"twice": 2 * static.w}

    def scratch(self, axes, config):
        return {"sum": ((axes["rows"], config["warps"]), torch.float32)}

    def launch(self, ctx, buffers, axes, config):
        self.axes = axes
        assert buffers.sum.shape == (axes["rows"], 4) and ctx.hardware.multiprocessors == 132
        with ctx.stream("side"), ctx.prefetch():
            ctx.wait("main")
        buffers.acc += 1
        buffers.out.copy_(buffers.x + buffers.twice)


def call(adapter, w, rows: int = 2):
    inputs = {"w": w, "x": torch.ones(rows, 3), "acc": torch.zeros(5)}
    outputs = {"new_acc": torch.full((5,), 9.0), "out": torch.empty(rows, 3)}
    adapter(inputs, outputs)
    return SimpleNamespace(**inputs, **outputs)


def test_states_go_to_outputs_and_axes_come_from_tensors():
    candidate = Candidate()
    after = call(Adapter(candidate, FACTS), torch.full((3,), 2.0))
    assert after.acc.tolist() == [0] * 5 and after.new_acc.tolist() == [1] * 5
    assert after.out.tolist() == [[5] * 3] * 2
    assert candidate.axes == {"tp": 8, "rows": 2, "slots": 5, "x_stride": 3}


def test_weights_are_prepared_once():
    candidate, w = Candidate(), torch.ones(3)
    adapter = Adapter(candidate, FACTS)
    for _ in range(3):
        call(adapter, w)
    assert candidate.prepared == 1


@pytest.mark.parametrize("how", ["written to", "replaced at the same address", "other axes"])
def test_what_was_prepared_is_never_stale(how):
    candidate, w = Candidate(), torch.ones(3)
    adapter, rows = Adapter(candidate, FACTS), 2
    call(adapter, w)
    match how:
        case "written to":
            w.fill_(4)
        case "replaced at the same address":
            address, w = w.data_ptr(), w.view(3)
            assert w.data_ptr() == address
            w.detach().numpy()[:] = 4  # a write that no counter sees, and a new object over it
        case "other axes":
            w.fill_(4)
            rows = 3
    assert call(adapter, w, rows).out[0].tolist() == [9] * 3
    assert candidate.prepared == 2
