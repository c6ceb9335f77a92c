"""Where results of examined rows are worked out: on the device of the cell's tensors, all of it. And what a cache is held to."""

import k3_weights
import pytest
import torch
from fasttrack_validation.contracts.kimi_k3.rows_examined import Sample
from fasttrack_validation.contracts.kimi_k3.weights import mxfp4
from grid_shards import small_grid, spec
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

OF = k3_weights.nano()
CACHED = spec("mla_moe", 2, 3).model_copy(update={"context": 70})
CELLS = (
    spec("kda_moe", 2, 3), spec("kda_moe", 2, 6, 3), CACHED, spec("mla_moe", 2, 6, 3).model_copy(update={"context": 62}),
    spec("step", 2, 2).model_copy(update={"context": 70}),
)  # fmt: skip


class Elsewhere(Exception):
    pass


class OneDevice(TorchDispatchMode):
    """Stands for a GPU: an operation on tensors of which some are here and others elsewhere is refused.

    Here is what was given, what is made for a named device, as `torch.device` names it as a context, what is moved to one, and
    what follows from these. As on a GPU, a single number may come from elsewhere.
    """

    def __init__(self, given) -> None:
        super().__init__()
        self._here, self._calls = {_memory(tensor) for tensor in given}, _Calls(self.take)

    def take(self, *tensors) -> None:
        self._here |= {_memory(tensor) for tensor in tensors}

    def __enter__(self):
        mxfp4._tables.cache_clear()  # kept for a device, of which nobody told here
        self._calls.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._calls.__exit__(*error)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        taken, result = _tensors((args, kwargs)), None
        here = [_memory(tensor) in self._here for tensor in taken]
        if any(here) and any(tensor.dim() and tensor.numel() and not one for tensor, one in zip(taken, here, strict=True)):
            raise Elsewhere(str(function))
        result = function(*args, **(kwargs or {}))
        if any(here) or (not taken and (kwargs or {}).get("device") is not None):
            self.take(*_tensors(result))
        return result


class _Calls(TorchFunctionMode):
    """Tells `take` of what reaches a device without an operation that is seen, as long as it is the CPU."""

    def __init__(self, take) -> None:
        super().__init__()
        self._take = take

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        named = any(isinstance(leaf, torch.device) for leaf in tree_leaves((args[1:], kwargs)))
        if named and function in (torch.tensor, torch.as_tensor):
            self._take(result)
        if named and function is torch.Tensor.to:
            result = torch.tensor(result.tolist(), dtype=result.dtype)  # of its own, as between devices
            self._take(result)
        return result


def _tensors(tree) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _memory(tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.key)
def test_all_of_it_is_worked_out_where_the_tensors_are(cell):
    shard = small_grid(OF).shard(cell, "h200")
    tensors = shard.draw(5, "cpu")
    alone = shard.examined(tensors)
    with OneDevice(tensors.values()):
        within = shard.examined(tensors)
    for path, found in within.items():
        assert found.rows == alone[path].rows
        assert {name: indices.tolist() for name, indices in found.selection.items()} == {
            name: indices.tolist() for name, indices in alone[path].selection.items()
        }


def test_a_constant_that_lies_elsewhere_is_noticed(monkeypatch):
    from fasttrack_validation.contracts.kimi_k3.experts import maths

    class Stays(torch.Tensor):
        def to(self, *where):
            return self.as_subclass(torch.Tensor)

    monkeypatch.setattr(maths, "_PAIRS", maths._PAIRS.as_subclass(Stays))
    shard = small_grid(OF).shard(CELLS[0], "h200")
    tensors = shard.draw(5, "cpu")
    with OneDevice(tensors.values()), pytest.raises(Elsewhere, match="index_select"):
        shard.examined(tensors)


def test_of_a_cache_the_rows_are_compared_that_the_plain_path_or_another_changes():
    """By hand: three rows write one cached row each; a path that also writes one that is nobody's is compared there with what lay there."""
    shard = small_grid(OF).shard(CACHED, "h200")
    tensors = shard.draw(5, "cpu")
    found = shard.examined(tensors)["specialised"]
    (value,) = (value for value in found.selection if value.endswith("cache"))
    sample = Sample(shard.own, tensors, range(3))
    left = sample.walk(lambda contract: contract.plain)
    pages = next(pages for key, pages in sample.pages.items() if key.endswith("cache")).tolist()
    own = torch.tensor([1 + pages.index(page) for page in found.selection[value].tolist()])
    produced = {name: left[name][indices] for name, indices in found.selection.items() if name != value}
    honest = left[value][own].clone()
    (name,) = (wanted.comparison.tensor for wanted in found._wanted if wanted.value == value)

    exact, plain, got = found.results(produced | {value: honest})[name]
    assert len(exact) == len(found.rows) and torch.equal(plain, got) and not torch.equal(exact, plain.double())

    astray = honest.clone()
    astray[0, 3] += 1
    exact, plain, got = found.results(produced | {value: astray})[name]
    assert len(exact) == len(found.rows) + 1
    before = next(tensor for key, tensor in tensors.items() if key.endswith("mla_query.cache"))[found.selection[value][0], 3]
    assert torch.equal(exact[-1, 0], before.double()) and torch.equal(plain[-1, 0], before)
    assert torch.equal(got[-1, 0], astray[0, 3])
