"""SiTU, and the latent MoE against a loop over tokens, experts and channels in float64."""

import math
from dataclasses import replace

import k3_weights
import numpy as np
import pytest
import torch

from fasttrack_validation.contracts.kimi_k3.architecture import Architecture
from fasttrack_validation.contracts.kimi_k3.layer_weights import Mxfp4, Shard
from fasttrack_validation.contracts.kimi_k3.step.moe import experts, moe
from fasttrack_validation.contracts.kimi_k3.step.norm import rms_norm
from fasttrack_validation.contracts.kimi_k3.step.precision import EXACT, PUBLISHED
from fasttrack_validation.contracts.kimi_k3.step.router import choose, router_logits
from fasttrack_validation.contracts.kimi_k3.step.situ import situ
from fasttrack_validation.contracts.kimi_k3.step.unpack import unpack

PICO = k3_weights.pico()
WEIGHTS = k3_weights.pico_weights().layers[1].mlp


def test_situ_of_the_published_constants():
    """4 tanh(g / 4) sigmoid(g) 25 tanh(u / 25) at (4, 25) is 100 tanh(1)^2 sigmoid(4) = 56.959...; SwiGLU gives 98."""
    constants = Architecture.from_config().situ
    assert (constants.beta, constants.linear_beta) == (4.0, 25.0)
    value = situ(torch.tensor(4.0).double(), torch.tensor(25.0).double(), constants).item()
    assert value == pytest.approx(100 * math.tanh(1) ** 2 / (1 + math.exp(-4)), rel=1e-12)
    assert value == pytest.approx(56.959, abs=1e-3)
    assert 4 * 25 / (1 + math.exp(-4)) > 1.7 * value
    far = situ(torch.tensor([1e4, -1e4]).double(), torch.tensor([1e4, 1e4]).double(), constants)
    assert far.tolist() == [100.0, 0.0]


def unpacked(matrix: Mxfp4) -> np.ndarray:
    """A second reading of the format, byte by byte."""
    packed, scale = matrix.packed.numpy(), matrix.scale.numpy()
    values = np.empty((*packed.shape[:-1], 2 * packed.shape[-1]))
    for nibble in (0, 1):
        code = packed >> (4 * nibble) & 15
        exponent, mantissa = code >> 1 & 3, code & 1
        magnitude = np.where(exponent == 0, 0.5 * mantissa, (1 + 0.5 * mantissa) * 2.0 ** (exponent.astype(int) - 1))
        values[..., nibble::2] = np.where(code & 8, -magnitude, magnitude)
    return values * np.repeat(np.ldexp(1.0, scale.astype(int) - 127), 32, -1)


def test_moe_is_a_loop_over_tokens_and_experts():
    y = torch.randn(5, PICO.hidden_size, generator=torch.Generator().manual_seed(3)).double()
    w13, w2 = unpacked(WEIGHTS.w13), unpacked(WEIGHTS.w2)

    def array(tensor):
        return tensor.double().numpy()

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    def gated(g, u):
        return 4 * np.tanh(g / 4) * sigmoid(g) * 25 * np.tanh(u / 25)

    expected = []
    for row in y.numpy():
        scores = sigmoid(array(WEIGHTS.router) @ row)
        order = sorted(range(PICO.moe.experts), key=lambda e: (-(scores[e] + float(WEIGHTS.correction_bias[e])), e))
        best = order[: PICO.moe.top_k]
        total = sum(scores[e] for e in best) + 1e-20
        latent = array(WEIGHTS.latent_down) @ row
        summed = np.zeros(PICO.moe.latent_size)
        for e in best:
            gate, up = np.split(w13[e] @ latent, 2)
            summed += scores[e] / total * (w2[e] @ gated(gate, up))
        normed = summed / np.sqrt(np.mean(summed**2) + PICO.eps.backbone) * array(WEIGHTS.latent_norm)
        gate, up = np.split(array(WEIGHTS.shared_gate_up) @ row, 2)
        expected.append(array(WEIGHTS.latent_up) @ normed + array(WEIGHTS.shared_down) @ gated(gate, up))
    torch.testing.assert_close(
        moe(y, [WEIGHTS], PICO, EXACT), torch.from_numpy(np.stack(expected)), rtol=1e-11, atol=1e-11
    )


def _partials(tp: int):
    y = torch.randn(4, PICO.hidden_size, generator=torch.Generator().manual_seed(4)).double()
    ranks = [k3_weights.shard_moe(WEIGHTS, Shard(tp, rank)) for rank in range(tp)]
    ids, weights = choose(router_logits(y, WEIGHTS.router, EXACT), WEIGHTS.correction_bias, PICO.moe, EXACT)
    latent = EXACT.linear(y, WEIGHTS.latent_down)
    return y, ranks, [experts(latent, ids, weights, rank, PICO.situ, EXACT) for rank in ranks]


def test_the_latent_norm_comes_after_the_sum_over_ranks():
    """Norms of partial sums, added, are something else; the sum of the partials is the unsharded sum."""
    _, _, whole = _partials(1)
    _, _, partials = _partials(8)

    def norm(x):
        return rms_norm(x, WEIGHTS.latent_norm, PICO.eps.backbone, EXACT)

    right = norm(sum(partials))
    torch.testing.assert_close(right, norm(whole[0]), rtol=1e-11, atol=1e-11)
    wrong = sum(norm(partial) for partial in partials)
    assert ((wrong - right).norm() / right.norm()) > 0.5


def test_an_intermediate_size_padded_with_zeros_changes_nothing():
    """What engines do at TP16: 192 channels a rank become 256."""
    y, ranks, _ = _partials(16)
    channels = PICO.moe.expert_intermediate_size // 16
    padded = []
    for rank in ranks:
        gate_up = [
            torch.cat([part, part.new_zeros(PICO.moe.experts, channels, part.shape[-1])], 1)
            for tensor in (rank.w13.packed, rank.w13.scale)
            for part in tensor.chunk(2, 1)
        ]
        padded.append(
            replace(
                rank,
                w13=Mxfp4(torch.cat(gate_up[:2], 1), torch.cat(gate_up[2:], 1)),
                w2=Mxfp4(*(torch.cat([t, torch.zeros_like(t)], 2) for t in (rank.w2.packed, rank.w2.scale))),
            )
        )
    torch.testing.assert_close(moe(y, padded, PICO, EXACT), moe(y, ranks, PICO, EXACT), rtol=1e-12, atol=1e-12)


def test_a_row_of_nan_stays_in_its_row():
    y = torch.randn(3, PICO.hidden_size, generator=torch.Generator().manual_seed(5)).double()
    clean = moe(y, [WEIGHTS], PICO, EXACT)
    y[1] = math.nan
    soiled = moe(y, [WEIGHTS], PICO, EXACT)
    assert soiled[1].isnan().all()
    torch.testing.assert_close(soiled[[0, 2]], clean[[0, 2]], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("precision", [EXACT, PUBLISHED], ids=["exact", "published"])
def test_unpacked_weights_give_the_same_bits(precision):
    model = k3_weights.pico_weights()
    kept = unpack(model, precision)
    y = torch.randn(6, PICO.hidden_size, generator=torch.Generator().manual_seed(7)).bfloat16()
    outs = [moe(precision.wide(y), [of.layers[1].mlp], PICO, precision) for of in (model, kept)]
    assert torch.equal(*outs)
    assert kept.layers[1].mlp.w13.values.dtype == kept.layers[0].attention.in_proj.dtype == precision.arithmetic
    assert torch.equal(kept.embedding, model.embedding.to(precision.arithmetic))


def test_published_rounding_stays_near_the_oracle():
    y = torch.randn(16, PICO.hidden_size, generator=torch.Generator().manual_seed(6)).bfloat16()
    exact, plain = (moe(p.wide(y), [WEIGHTS], PICO, p) for p in (EXACT, PUBLISHED))
    assert plain.dtype == torch.float32
    assert torch.equal(plain, plain.bfloat16().float())
    error = (plain - exact).norm() / exact.norm()
    assert 1e-4 < error < 2e-2
