"""AttnRes: the sources of every mix of the real model from first principles, and the mix against a second form."""

import math

import pytest
import torch

from fasttrack_validation.contracts.kimi_k3.architecture import Architecture
from fasttrack_validation.contracts.kimi_k3.layer_weights import MixWeights
from fasttrack_validation.contracts.kimi_k3.step.attn_res import Stream, mix, mix_norm
from fasttrack_validation.contracts.kimi_k3.step.precision import EXACT, PUBLISHED, Precision
from fasttrack_validation.errors import UserError

K3 = Architecture.from_config()
LAYERS, BLOCK = K3.layers, K3.attn_res_block_size


def table() -> list[list[frozenset]]:
    """For each of the 187 mixes its sources, each as the set of sublayer outputs that add up to it.

    Stated without any walk. ("embedding",), ("attention", l) and ("mlp", l) name what is added to the stream. A
    stream that begins at layer s holds all outputs of the layers from s on; blocks begin at multiples of 12; the bank
    of block b is what the block before it left, or the embedding for the first.
    """

    def outputs(first: int, attention_until: int, mlp_until: int) -> frozenset:
        return frozenset(
            [("attention", layer) for layer in range(first, attention_until)]
            + [("mlp", layer) for layer in range(first, mlp_until)]
        )

    def banked(block: int) -> frozenset:
        return outputs(BLOCK * (block - 1), BLOCK * block, BLOCK * block) if block else frozenset([("embedding",)])

    mixes = []
    for layer in range(LAYERS):
        # Before attention the stream ends with layer - 1; its block is that of layer - 1.
        earlier = math.ceil(layer / BLOCK)
        stream = outputs(BLOCK * (earlier - 1), layer, layer) if layer else frozenset([("embedding",)])
        mixes.append([banked(block) for block in range(earlier)] + [stream])
        # After attention the stream's block is that of the layer itself.
        block = layer // BLOCK
        mixes.append([banked(b) for b in range(block + 1)] + [outputs(BLOCK * block, layer + 1, layer)])
    last = (LAYERS - 1) // BLOCK
    mixes.append([banked(b) for b in range(last + 1)] + [outputs(BLOCK * last, LAYERS, LAYERS)])
    return mixes


def test_table_has_the_published_source_counts():
    """The counts that the published description spells out, layer by layer."""
    counts = [len(sources) for sources in table()]
    assert len(counts) == 187
    assert counts[:2] == [1, 2]
    assert counts[2:24] == [2, 2] * 11
    assert counts[24:26] == [2, 3]
    assert counts[26:48] == [3, 3] * 11
    assert counts[2 * 84 : 2 * 85] == [8, 9]
    assert counts[2 * 85 :] == [9] * 17
    assert max(counts) == 9


def test_every_mix_of_the_real_model_reads_what_the_table_says():
    """Sublayer outputs are distinct basis vectors, so that a source shows what it is the sum of."""
    names = [("embedding",)] + [(kind, layer) for layer in range(LAYERS) for kind in ("attention", "mlp")]
    basis = dict(zip(names, torch.eye(len(names), dtype=torch.float64)[:, None], strict=True))

    def read(sources):
        assert all(set(source.unique().tolist()) <= {0.0, 1.0} for source in sources)
        return [frozenset(names[i] for i in source[0].nonzero()[:, 0].tolist()) for source in sources]

    stream, seen = Stream(basis[("embedding",)], BLOCK, EXACT), []
    for layer in range(LAYERS):
        seen.append(read(stream.enter(layer)))
        stream.after_attention(layer, basis[("attention", layer)])
        seen.append(read(stream.sources))
        stream.after_mlp(basis[("mlp", layer)])
    seen.append(read(stream.sources))
    assert seen == table()


def test_a_walk_that_is_split_keeps_its_banks():
    """A second part on a fresh stream would read none of them; the same part on the stream carried over is right."""
    carried = Stream(torch.ones(1, 4), BLOCK, EXACT)
    for layer in range(13):
        carried.enter(layer)
    assert len(carried.enter(13)) == 3
    with pytest.raises(UserError, match="layer 13 reads 2 banked blocks, but this stream holds 0"):
        Stream(torch.ones(1, 4), BLOCK, EXACT).enter(13)


def _drawn(sources: int, rows: int, d: int, dtype=torch.float64, seed=0):
    rng = torch.Generator().manual_seed(seed)
    values = [torch.randn(rows, d, generator=rng).bfloat16().to(dtype) for _ in range(sources)]
    return values, MixWeights(*(torch.randn(d, generator=rng).bfloat16() for _ in range(3)))


@pytest.mark.parametrize("sources", [1, 2, 9])
def test_mix_is_the_naive_form_of_fla(sources):
    from fla.ops.attnres.naive import naive_attnres

    values, weights = _drawn(sources, 5, 96, torch.float32)
    float32 = Precision(torch.float32, torch.float32, torch.float32)
    ours = mix(values, weights, 1e-5, float32)
    theirs = naive_attnres(weights.res_proj, values, weights.res_norm, rms_eps=1e-5)
    torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=2e-6)
    normed = naive_attnres(weights.res_proj, values, weights.res_norm, weights.out_norm, rms_eps=1e-5)
    torch.testing.assert_close(mix_norm(values, weights, 1e-5, float32), normed, rtol=5e-6, atol=5e-6)


def test_mix_by_hand():
    """Two sources in two dimensions: rms 1 and 2, logits ln 3 and 0, so weights 3/4 and 1/4 of the raw sources."""
    first, second = torch.tensor([[1.0, -1.0]]), torch.tensor([[2.0, 2.0]])
    weights = MixWeights(torch.tensor([2.0, 2.0]), torch.tensor([0.25, -0.25]) * math.log(3), torch.ones(2))
    mixed = mix([first.double(), second.double()], weights, 0.0, EXACT)
    torch.testing.assert_close(mixed, torch.tensor([[1.25, -0.25]], dtype=torch.float64), rtol=1e-7, atol=1e-7)


def test_one_source_is_returned_bit_for_bit():
    values, weights = _drawn(1, 3, 64, torch.float32)
    assert torch.equal(mix(values, weights, 1e-5, PUBLISHED), values[0])


def test_rows_further_apart_than_they_are_wide():
    """A kernel that takes the row stride for d reads the gaps; here they are NaN."""
    values, weights = _drawn(3, 4, 64)
    padded = []
    for value in values:
        buffer = torch.full((4, 80), math.nan, dtype=torch.float64)
        buffer[:, :64] = value
        padded.append(buffer[:, :64])
    assert torch.equal(mix(values, weights, 1e-5, EXACT), mix(padded, weights, 1e-5, EXACT))
    assert mix([torch.as_strided(p, (4, 64), (64, 1)) for p in padded], weights, 1e-5, EXACT).isnan().any()


def test_the_stream_is_rounded_before_it_is_a_source():
    stream = Stream(torch.tensor([[1.0]]), BLOCK, PUBLISHED)
    stream.enter(0)
    stream.after_attention(0, torch.tensor([[256.0]]))
    stream.after_mlp(torch.tensor([[1.0]]))  # 257 lies between the bfloat16 values 256 and 258: even wins
    assert stream.sources[-1].item() == 256.0
    assert stream.sources[0].item() == 1.0
