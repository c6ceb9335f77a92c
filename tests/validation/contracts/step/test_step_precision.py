"""The precision switch: published rounding against the oracle, and what each named parameter changes."""

from dataclasses import replace

import k3_weights
import pytest
import torch

from fasttrack_validation.contracts.kimi_k3.layer_weights import MixWeights
from fasttrack_validation.contracts.kimi_k3.step.attn_res import Stream, mix
from fasttrack_validation.contracts.kimi_k3.step.model import Model
from fasttrack_validation.contracts.kimi_k3.step.norm import rms_norm
from fasttrack_validation.contracts.kimi_k3.step.precision import EXACT, L2, PUBLISHED, MixRounding
from fasttrack_validation.contracts.kimi_k3.step.state import Batch
from fasttrack_validation.errors import UserError

PICO, WEIGHTS = k3_weights.pico(), k3_weights.pico_weights()
TOKENS = k3_weights.tokens(PICO, 10)


def logits(precision, architecture=PICO, ranks=(WEIGHTS,)):
    model = Model(architecture, ranks, precision)
    state = model.new_state(1, 12)
    model.prefill(Batch(TOKENS[:8], (0,), (8,)), state)
    return model.decode(Batch(TOKENS[8:], (0,), (2,)), state)


def walk(precision, inputs, ranks=(WEIGHTS,)):
    """Each layer's stream from the given bfloat16 streams before it, so that layers are compared one by one."""
    model = Model(PICO, ranks, precision)
    state = model.new_state(1, 12)
    batch = Batch(TOKENS[:2], (0,), (2,))
    attention, outputs = model.decoding(batch, state), []
    for number, (blocks, prefix) in enumerate(inputs):
        stream = Stream(precision.wide(prefix), PICO.attn_res_block_size, precision)
        stream.blocks = [precision.wide(block) for block in blocks]
        model.layer(number, stream, [rank.layers[number] for rank in ranks], attention)
        outputs.append(stream.prefix)
    return outputs


def drawn_streams():
    rng = torch.Generator().manual_seed(0)

    def rows():
        return torch.randn(2, PICO.hidden_size, generator=rng).bfloat16()

    return [([rows() for _ in range(-(-n // PICO.attn_res_block_size))], rows()) for n in range(PICO.layers)]


def test_exact_rounds_nothing_and_published_leaves_bfloat16():
    value = torch.tensor([1 + 2.0**-40], dtype=torch.float64)
    assert torch.equal(EXACT.round(value), value)
    assert PUBLISHED.round(torch.tensor([1 + 2.0**-9 + 2.0**-20])).item() == 1.0
    for streams in walk(PUBLISHED, drawn_streams()):
        assert streams.dtype == torch.float32
        assert torch.equal(streams, streams.bfloat16().float())
    out = logits(PUBLISHED)
    assert torch.equal(out, out.bfloat16().float())
    assert logits(EXACT).dtype == torch.float64


def test_published_layers_stay_near_the_oracle():
    """One layer at a time, from the same stream: bfloat16 storage errs by parts in a thousand, not more."""
    for exact, plain in zip(walk(EXACT, drawn_streams()), walk(PUBLISHED, drawn_streams()), strict=True):
        assert 1e-4 < (plain - exact).norm() / exact.norm() < 2e-2


@pytest.mark.parametrize("tp", [2, 8, 16])
def test_published_ranks_add_up_within_rounding(tp):
    ranks = k3_weights.shard_model(WEIGHTS, PICO, tp)
    streams = drawn_streams()
    for one, many in zip(walk(PUBLISHED, streams), walk(PUBLISHED, streams, ranks), strict=True):
        assert (many - one).norm() / one.norm() < 2e-2


def test_all_reduce_sums_in_rank_order_and_rounds_once():
    """In bfloat16 at every step 256 + 1 + 1 stays 256; summed first it is 258."""
    partials = [torch.tensor([256.0]), torch.tensor([1.0]), torch.tensor([1.0])]
    assert PUBLISHED.all_reduce(partials).item() == 258.0


@pytest.mark.parametrize(
    "change",
    [
        {"l2": L2.MAX},
        {"mix": MixRounding.FINAL},
        {"mix": MixRounding.NEVER},
        {"round_normalised": False},
        {"round_convolved": True},
        {"round_core": True},
        {"round_routing_weights": True},
        {"recurrent_state": torch.bfloat16},
    ],
    ids=str,
)
def test_each_open_question_has_an_effect_and_a_small_one(change):
    """Layer by layer from given streams; the L2 epsilon needs arguments next to zero, so its embedding is tiny."""
    streams = drawn_streams()
    if "l2" in change:
        streams = [([1e-4 * block for block in blocks], 1e-4 * prefix) for blocks, prefix in streams]
    if change.get("mix") is MixRounding.FINAL or "recurrent_state" in change:
        # What it changes is read after the layer: by the head, or by the next step.
        published, other = logits(PUBLISHED), logits(replace(PUBLISHED, **change))
        assert not torch.equal(published, other)
        return
    published, other = walk(PUBLISHED, streams), walk(replace(PUBLISHED, **change), streams)
    differ = [not torch.equal(*pair) for pair in zip(published, other, strict=True)]
    assert any(differ)
    for one, two in zip(published, other, strict=True):
        assert (two - one).norm() / one.norm() < (1.0 if "l2" in change else 2e-2)


@pytest.mark.parametrize("name", ["backbone", "kda_output", "kda_l2", "mla_q_a", "mla_kv_a"])
def test_each_epsilon_is_read_by_the_norm_it_is_named_after(name):
    """A thousandth added to one epsilon moves the logits; the same graph with the published ones does not."""
    published = PICO.eps
    other = PICO.model_copy(update={"eps": published.model_copy(update={name: getattr(published, name) + 1e-3})})
    assert torch.equal(logits(EXACT), logits(EXACT))
    assert not torch.allclose(logits(EXACT), logits(EXACT, other), rtol=1e-6, atol=1e-9)


def test_published_epsilons():
    assert (PICO.eps.backbone, PICO.eps.kda_output) == (1e-5, 1e-5)
    assert (PICO.eps.kda_l2, PICO.eps.mla_q_a, PICO.eps.mla_kv_a) == (1e-6, 1e-6, 1e-6)


def test_mix_rounding_by_hand():
    """Half of 1 and half of 1 + 2^-7 is 1 + 2^-8: between two bfloat16 values, and even wins."""
    sources = [torch.tensor([[1.0]]), torch.tensor([[1 + 2.0**-7]])]
    weights = MixWeights(torch.ones(1), torch.zeros(1), torch.ones(1))
    results = {
        (rounding, final): mix(sources, weights, 1e-5, replace(PUBLISHED, mix=rounding), final=final).item()
        for rounding in MixRounding
        for final in (False, True)
    }
    between = 1 + 2.0**-8
    assert results == {
        (MixRounding.ALWAYS, False): 1.0,
        (MixRounding.ALWAYS, True): 1.0,
        (MixRounding.FINAL, False): between,
        (MixRounding.FINAL, True): 1.0,
        (MixRounding.NEVER, False): between,
        (MixRounding.NEVER, True): between,
    }


def test_norm_rounding_by_hand():
    """x / rms = 1 + 2^-8 + 2^-9 in the first channel; the weight shows whether that was rounded first."""
    first = 1 + 2.0**-8 + 2.0**-9
    second = (2 - first**2) ** 0.5  # so that the root mean square is one
    x, weight = torch.tensor([[first, second]]), torch.tensor([1.5, 1.0]).bfloat16()
    early = rms_norm(x, weight, 0.0, PUBLISHED)[0, 0].item()
    late = rms_norm(x, weight, 0.0, replace(PUBLISHED, round_normalised=False))[0, 0].item()
    assert early == 194 * 2.0**-7  # 1.5 (1 + 2^-7) is 193.5 units: even wins
    assert late == 193 * 2.0**-7  # 1.5 (1 + 2^-8 + 2^-9) is 193.125 units


def test_narrow_float32_products_are_refused():
    Model(PICO, [WEIGHTS], PUBLISHED)
    torch.set_float32_matmul_precision("high")
    try:
        Model(PICO, [WEIGHTS], EXACT)
        with pytest.raises(UserError, match="TF32"):
            Model(PICO, [WEIGHTS], PUBLISHED)
    finally:
        torch.set_float32_matmul_precision("highest")
