"""From a checkpoint on disk to logits: the loader's shards add up to the loader's whole, ties and padding included."""

import k3_weights
import pytest
import torch

from fasttrack_validation.contracts.kimi_k3.layer_weights import Shard
from fasttrack_validation.contracts.kimi_k3.step.model import Model
from fasttrack_validation.contracts.kimi_k3.step.precision import EXACT
from fasttrack_validation.contracts.kimi_k3.step.router import choose, router_logits
from fasttrack_validation.contracts.kimi_k3.step.state import PADDING, Batch
from fasttrack_validation.contracts.kimi_k3.weights import synthetic
from fasttrack_validation.contracts.kimi_k3.weights.checkpoint import Checkpoint
from fasttrack_validation.contracts.kimi_k3.weights.shard import load_model

PICO = k3_weights.pico()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Checkpoint:
    directory = tmp_path_factory.mktemp("step") / "pico"
    synthetic.write(directory, PICO, seed=1, ties=True)
    return Checkpoint(directory)


def ranks(checkpoint: Checkpoint, tp: int, padded_to: int = 0):
    return [load_model(checkpoint, Shard(tp, rank), min_expert_intermediate=padded_to) for rank in range(tp)]


def logits(architecture, weights):
    """A prompt of five tokens, then a verify of three, both beside padding."""
    model = Model(architecture, weights, EXACT)
    state = model.new_state(1, 8)
    tokens = k3_weights.tokens(PICO, 9)
    model.prefill(Batch(tokens[:6], (0, PADDING), (5, 1)), state)
    return model.decode(Batch(tokens[5:], (PADDING, 0), (1, 3)), state)[1:]


@pytest.mark.parametrize("tp, padded_to", [(2, 0), (8, 0), (16, 0), (16, 64)])
def test_loaded_shards_add_up(checkpoint, tp, padded_to):
    whole = logits(checkpoint.architecture, ranks(checkpoint, 1))
    assert whole.std() > 0.01
    sharded = logits(checkpoint.architecture, ranks(checkpoint, tp, padded_to))
    torch.testing.assert_close(sharded, whole, rtol=1e-9, atol=1e-9 * float(whole.std()))


@pytest.mark.slow
def test_a_nano_checkpoint_written_and_read_back_is_the_same_at_tp1_and_tp16(tmp_path):
    """All 13 layers from disk: logits of the prompt's last token and of a verify of three, whole and on 16 ranks."""
    nano = k3_weights.nano()
    synthetic.write(tmp_path / "nano", nano, seed=2)
    checkpoint, found = Checkpoint(tmp_path / "nano"), {}
    assert checkpoint.architecture == nano
    tokens = k3_weights.tokens(nano, 8)
    for tp in (1, 16):
        model = Model(nano, ranks(checkpoint, tp), EXACT)
        state = model.new_state(1, 8)
        prompt = model.prefill(Batch(tokens[:5], (0,), (5,)), state)
        found[tp] = torch.cat([prompt[-1:], model.decode(Batch(tokens[5:], (0,), (3,)), state)])
    assert found[1].std() > 0.01
    torch.testing.assert_close(found[16], found[1], rtol=1e-9, atol=1e-9 * float(found[1].std()))


def test_ties_of_a_checkpoint_go_to_the_lower_expert(checkpoint):
    """Its experts 2 n and 2 n + 1 always score the same, so that the even one comes first and the odd one next."""
    moe = load_model(checkpoint, Shard()).layers[1].mlp
    y = torch.randn(64, PICO.hidden_size, generator=torch.Generator().manual_seed(0)).double()
    ids, weights = choose(router_logits(y, moe.router, EXACT), moe.correction_bias, PICO.moe, EXACT)
    assert (ids[:, 0] % 2 == 0).all()
    assert torch.equal(ids[:, 1], ids[:, 0] + 1)
    assert torch.equal(weights, torch.full_like(weights, 0.5))


def test_padding_alone_is_a_batch(checkpoint):
    """A graph bucket nobody filled: nothing is committed, and nothing is written."""
    model = Model(checkpoint.architecture, ranks(checkpoint, 1), EXACT)
    state = model.new_state(1, 8)
    batch = Batch(torch.tensor([1, 2]), (PADDING,), (2,))
    for form in (model.decode, model.prefill):
        assert form(batch, state).isfinite().all()
    state.commit(batch, (1,))
    assert state.lengths == [0]
    assert not any(pool.any() for cache in state.ranks[0].values() for pool in vars(cache).values())
