"""Layers of the published model with drawn weights, here at small widths: what they are, and the paths over them."""

import pytest
import torch
from fasttrack_validation.contracts.kimi_k3.architecture import NANO, Architecture
from fasttrack_validation.contracts.kimi_k3.numerics import material, published
from fasttrack_validation.contracts.kimi_k3.numerics.observed import Observed
from fasttrack_validation.contracts.kimi_k3.numerics.paths import Paths, TorchPath
from fasttrack_validation.contracts.kimi_k3.numerics.reordered import Reordered
from fasttrack_validation.contracts.kimi_k3.step.precision import EXACT, PUBLISHED
from fasttrack_validation.contracts.kimi_k3.step.state import Batch
from fasttrack_validation.errors import UserError

TOKENS = 9


@pytest.fixture
def small(monkeypatch) -> published.Published:
    nano = Architecture.from_config(NANO)
    monkeypatch.setattr(published.Architecture, "from_config", classmethod(lambda cls: nano))
    return published.Published((0, 1, 3), 5, "cpu")


def _after(path: TorchPath):
    path.begin(1, 2 * TOKENS, 1)
    path.prefill(Batch(torch.arange(TOKENS), (0,), (TOKENS,)))
    return path.decode(Batch(torch.tensor([TOKENS]), (0,), (1,)))


def _error(own, exact) -> torch.Tensor:
    return (own.streams.double() - exact.streams).norm(dim=-1) / exact.streams.norm(dim=-1)


def test_unpacking_chosen_experts_together_changes_nothing():
    """Against one expert at a time, over the trained nano model, in float64."""
    torch.set_num_threads(1)
    paths = Paths(material.CHECKPOINT)
    one, together = (
        _after(TorchPath(model(paths.architecture, paths.shards(2), EXACT))) for model in (Observed, published.Gathered)
    )
    assert torch.allclose(one.logits, together.logits, rtol=1e-12, atol=1e-12)
    assert all(torch.equal(one.chosen[layer], together.chosen[layer]) for layer in one.chosen)


def test_reordered_products_are_the_same_sums_in_another_order():
    random = torch.Generator().manual_seed(0)
    x, matrices = torch.randn(3, 5, 40, generator=random), torch.randn(3, 8, 40, generator=random)
    exact = torch.einsum("nmk,nok->nmo", x.double(), matrices.double())
    got = Reordered(seed=3).products(x, matrices)
    assert torch.equal(got, got.bfloat16().float()) and torch.allclose(got.double(), exact, rtol=2**-8, atol=2**-8)


def test_drawn_layers_are_those_of_the_names_and_ranks_share_what_is_replicated(small):
    of = small.architecture
    assert (of.layers, of.kda_layers, of.mla_layers) == (3, (0, 1), (2,))
    ranks = small.shards(published.TP)
    assert len(ranks) == published.TP
    first, second = (rank.layers[1] for rank in ranks[:2])
    assert first.mlp.router.data_ptr() == second.mlp.router.data_ptr()
    assert not torch.equal(first.mlp.w13.packed, second.mlp.w13.packed)
    columns = of.kda_shard(published.TP).columns
    assert torch.equal(first.attention.in_proj[columns["f_a"]], second.attention.in_proj[columns["f_a"]])
    assert not first.attention.in_proj[columns["pad"]].any()
    again = published.Published((0, 1, 3), 5, "cpu").shards(published.TP)[1].layers[1]
    assert torch.equal(again.mlp.w2.packed, second.mlp.w2.packed)
    assert torch.equal(again.attention.a_log, second.attention.a_log)


def test_the_plain_path_and_its_repetition_stay_near_the_oracle(small):
    torch.set_num_threads(1)
    exact = _after(small.oracle())
    paths = small.stock(published.TP), small.again(published.TP, 1)
    rounded = [_error(_after(path), exact) for path in paths]
    assert all((0 < error).all() and (error < 0.05).all() for error in rounded), rounded
    assert not torch.equal(*(path.committed(0)["1.recurrent_state"] for path in paths))
    wrong = _error(_after(TorchPath(small.variant(published.TP, _NoShared, PUBLISHED))), exact)
    assert wrong[-1] > 0.1


class _NoShared(published.Gathered):
    def shared(self, y, weights):
        return 0 * super().shared(y, weights)


@pytest.mark.parametrize("text", ["1,3", "0,3,1", "0,0", "0,93", "0,x"])
def test_layers_that_there_are_not_are_refused(text):
    with pytest.raises(UserError):
        published.checked(text)
