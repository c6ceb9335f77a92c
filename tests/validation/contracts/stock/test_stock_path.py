"""What the stock path says on a machine that cannot run it, and its host-side logic: tables, units, bookkeeping."""

import sys
from dataclasses import replace

import k3_weights
import pytest
import torch

from fasttrack_validation.contracts.kimi_k3 import stock
from fasttrack_validation.contracts.kimi_k3.step.precision import PUBLISHED
from fasttrack_validation.contracts.kimi_k3.step.state import PADDING, Batch, State
from fasttrack_validation.contracts.kimi_k3.stock import require
from fasttrack_validation.contracts.kimi_k3.stock.step import Tables
from fasttrack_validation.errors import UserError


def test_without_a_gpu_the_path_says_what_it_needs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device in ("cpu", "cuda"):
        with pytest.raises(UserError) as caught:
            stock.path(k3_weights.nano(), 1, device=device)
        assert repr(device) in caught.value.what
        assert "fasttrack[gpu]" in caught.value.how


@pytest.mark.parametrize(
    ("capability", "missing", "what"),
    [((7, 5), None, "8.0, this GPU has 7.5"), ((9, 0), "fla", "fla-core"), ((9, 0), "cuda.bindings", "cuda-bindings")],
)
def test_an_old_gpu_or_a_missing_package_is_named(monkeypatch, capability, missing, what):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(require, "_installed", lambda module: module != missing)
    with pytest.raises(UserError, match=what):
        require.gpu("cuda")


def test_a_complete_machine_is_accepted(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(require, "_installed", lambda module: True)
    assert require.gpu("cuda:0") == torch.device("cuda:0")


def test_a_module_inside_a_missing_package_is_not_installed():
    assert require._installed("torch")
    assert not require._installed("no_such_package.inside")


def test_asking_for_the_path_imports_no_gpu_library():
    """Where it is refused, neither triton's kernels nor CUDA's bindings have been touched."""
    gpu_only = {f"{stock.__name__}.{module}" for module in ("layer", "mla", "kda", "nvrtc", "graph")}
    before = set(sys.modules)
    with pytest.raises(UserError):
        stock.path(k3_weights.nano(), 1, device="cpu")
    assert not gpu_only & (set(sys.modules) - before)


@pytest.fixture
def state():
    state = State.allocate(k3_weights.pico(), 1, PUBLISHED, 3, 40, verify_width=3)
    state.lengths = [7, 0, 31]
    return state


def test_tables_of_a_ragged_batch_with_padding(state):
    batch = Batch(torch.zeros(7, dtype=torch.int64), (2, PADDING, 0), (3, 2, 2))
    tables = Tables.of(batch, state, "cpu")
    assert tables.starts.tolist() == [0, 3, 5, 7]
    assert tables.request_of.tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert tables.live.tolist() == [True] * 3 + [False] * 2 + [True] * 2
    assert tables.lengths.tolist() == [31, 0, 7]
    assert tables.slots.tolist() == [[9, 10, 11, 12], [0] * 4, [1, 2, 3, 4]]
    assert tables.pages[1].eq(0).all() and (tables.pages[[0, 2]] > 0).all()
    assert tables.width == 3


def test_the_slot_before_the_first_is_the_committed_one(state):
    """How fla-core is made to read slot 0 and write slots 1, 2, ...: index -1 of a view that starts at slot 1."""
    tables = Tables.of(Batch(torch.zeros(2, dtype=torch.int64), (1,), (2,)), state, "cpu")
    view = tables.slots[:, 1:]
    accepted = int(tables.unaccepted[0])
    flat = tables.slots.flatten()
    assert flat[view.storage_offset() + accepted - 1] == state.slots[1, 0]
    assert [int(flat[view.storage_offset() + t]) for t in range(2)] == state.slots[1, 1:3].tolist()


def test_refilled_tables_are_the_tables_of_the_new_state(state):
    first = Batch(torch.zeros(3, dtype=torch.int64), (0, 1), (1, 2))
    tables = Tables.of(first, state, "cpu")
    addresses = {name: value.data_ptr() for name, value in vars(tables).items() if isinstance(value, torch.Tensor)}
    state.offer(first)
    state.commit(first, (1, 2))
    second = replace(first, requests=(PADDING, 1))
    tables.refill(second, state)
    expected = vars(Tables.of(second, state, "cpu"))
    for name, address in addresses.items():
        value = getattr(tables, name)
        assert value.data_ptr() == address
        assert torch.equal(value, expected[name])
