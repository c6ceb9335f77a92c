"""The differentiable model against oracle and plain path: same weights, same logits; gradients by other means."""

from dataclasses import replace

import k3_weights
import pytest
import torch
from fasttrack_validation.contracts.kimi_k3.kda_decode.oracle import Step
from fasttrack_validation.contracts.kimi_k3.layer_weights import KdaWeights, MlaWeights, MoeWeights, Shard
from fasttrack_validation.contracts.kimi_k3.nano import parameters as nano_parameters
from fasttrack_validation.contracts.kimi_k3.nano.model import UNROUNDED, Forward, TensorCores
from fasttrack_validation.contracts.kimi_k3.nano.recurrence import delta_rule
from fasttrack_validation.contracts.kimi_k3.step.kda import Core
from fasttrack_validation.contracts.kimi_k3.step.model import Model
from fasttrack_validation.contracts.kimi_k3.step.precision import EXACT, PUBLISHED
from fasttrack_validation.contracts.kimi_k3.step.state import Batch
from fasttrack_validation.contracts.kimi_k3.weights import mxfp4
from fasttrack_validation.contracts.kimi_k3.weights.checkpoint import Checkpoint
from fasttrack_validation.contracts.kimi_k3.weights.shard import load_model

PICO = k3_weights.pico()
TOKENS = k3_weights.tokens(PICO, 2 * 75).view(2, 75)
"""Not a whole number of chunks."""


def drawn() -> nano_parameters.Parameters:
    """Parameters of which none is still what it was initialised to: norms, mixes and biases are alive."""
    rng = torch.Generator().manual_seed(1)
    found = nano_parameters.initial(PICO, seed=1)
    return {
        name: x + 0.2 * torch.randn(x.shape, generator=rng) if x.unique().numel() == 1 else x
        for name, x in found.items()
    }


PARAMETERS = drawn()
WEIGHTS = nano_parameters.weights(PARAMETERS, PICO)


def stepped(precision, weights=WEIGHTS) -> torch.Tensor:
    """Logits by `step`: a prefill of most of each sequence, then one decode step."""
    model, found = Model(PICO, [weights], precision), []
    for tokens in TOKENS:
        state = model.new_state(1, len(tokens))
        parts = [model.prefill(Batch(tokens[:70], (0,), (70,)), state)]
        parts.append(model.decode(Batch(tokens[70:], (0,), (5,)), state))
        found.append(torch.cat(parts))
    return torch.stack(found).double()


def trained(precision, weights=WEIGHTS, **options) -> torch.Tensor:
    return Forward(PICO, weights, precision, **options)(TOKENS).double()


@pytest.fixture(scope="module")
def oracle() -> torch.Tensor:
    return stepped(EXACT)


def test_in_float64_it_is_the_oracle(oracle):
    assert oracle.std() > 0.5
    torch.testing.assert_close(trained(EXACT), oracle, rtol=0, atol=1e-11)


def test_in_float32_it_is_the_oracle_to_float32(oracle):
    torch.testing.assert_close(trained(UNROUNDED), oracle, rtol=0, atol=2e-4)


def test_with_bfloat16_products_it_errs_as_the_plain_path_does(oracle):
    """Held to the plain path's own error, at the median and the ninth decile: beyond, a token may change experts."""
    mine, plain = ((found - oracle).abs() for found in (trained(TensorCores()), stepped(PUBLISHED)))
    for quantile in (0.5, 0.9):
        assert mine.quantile(quantile) < 1.25 * plain.quantile(quantile)
    assert plain.median() > 1e-3


def faulty(change) -> "nano_parameters.ModelWeights":
    return replace(WEIGHTS, layers={number: change(layer) for number, layer in WEIGHTS.layers.items()})


def of_attention(kind, change):
    def changed(layer):
        return replace(layer, attention=change(layer.attention)) if isinstance(layer.attention, kind) else layer

    return changed


def of_moe(change):
    return lambda layer: replace(layer, mlp=change(layer.mlp)) if isinstance(layer.mlp, MoeWeights) else layer


FAULTS = {
    "A_log of the next head": of_attention(KdaWeights, lambda w: replace(w, a_log=w.a_log.roll(1))),
    "convolution taps newest first": of_attention(KdaWeights, lambda w: replace(w, conv_weight=w.conv_weight.flip(1))),
    "one head's gate swapped": of_attention(
        MlaWeights,
        lambda w: replace(
            w,
            qkv_a_g=torch.cat([w.qkv_a_g[: -2 * 8], w.qkv_a_g[-8:], w.qkv_a_g[-2 * 8 : -8]]),
        ),
    ),
    "no selection bias": of_moe(lambda w: replace(w, correction_bias=torch.zeros_like(w.correction_bias))),
    "up and gate of experts swapped": of_moe(
        lambda w: replace(w, w13=replace(w.w13, values=w.w13.values.roll(w.w13.values.shape[1] // 2, 1)))
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_comparison_sees_a_fault(oracle, fault):
    error = (trained(EXACT, faulty(FAULTS[fault])) - oracle).abs()
    assert error.median() > 1e-6 and error.max() > 1e-3


def test_recomputing_changes_nothing():
    torch.testing.assert_close(trained(UNROUNDED, recompute=True), trained(UNROUNDED), rtol=0, atol=0)


@pytest.mark.parametrize("tokens", [1, 16, 17, 75])
def test_the_recurrence_over_chunks_is_the_one_token_by_token(tokens):
    """Values and gradients against S = diag(a) S; S += b k (v - S^T k)^T; o = S^T q in a loop; decays to the bound."""
    rng = torch.Generator().manual_seed(tokens)
    query, key, value = (torch.randn(2, 3, tokens, 8, dtype=torch.float64, generator=rng) for _ in range(3))
    key = key / key.norm(dim=-1, keepdim=True)
    log_decay = -5 * torch.rand(2, 3, tokens, 8, dtype=torch.float64, generator=rng) ** 4
    beta = torch.rand(2, 3, tokens, dtype=torch.float64, generator=rng)
    inputs = [x.requires_grad_() for x in (query, key, value, log_decay, beta)]

    state, outputs = torch.zeros(2, 3, 8, 8, dtype=torch.float64), []
    for t in range(tokens):
        state = log_decay[:, :, t, :, None].exp() * state
        error = value[:, :, t] - torch.einsum("bhkv,bhk->bhv", state, key[:, :, t])
        state = state + torch.einsum("bh,bhk,bhv->bhkv", beta[:, :, t], key[:, :, t], error)
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, query[:, :, t]))
    expected = torch.stack(outputs, 2)
    found = delta_rule(*inputs)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)

    upstream = torch.randn(expected.shape, dtype=torch.float64, generator=rng)
    for mine, theirs in zip(*(torch.autograd.grad(x, inputs, upstream) for x in (found, expected)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("decay", [-5.0, -1e-6])
def test_the_strongest_and_the_weakest_decay_in_float32(decay):
    """Whole chunks at the bound of -5 a token: nothing overflows, forwards or backwards."""
    rng = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 1, 64, 32, generator=rng) for _ in range(3))
    key = key / key.norm(dim=-1, keepdim=True)
    inputs = [x.requires_grad_() for x in (query, key, value, torch.full((1, 1, 64, 32), decay), torch.ones(1, 1, 64))]
    found = delta_rule(*inputs)
    torch.testing.assert_close(found.double(), delta_rule(*(x.detach().double() for x in inputs)), rtol=0, atol=1e-4)
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(found.sum(), inputs))


def test_the_oracle_of_one_token_is_the_same_recurrence():
    """The step's own recurrence, on a state that two tokens have left: fixes the orientation of S."""
    core = Core(PICO, 1, EXACT)
    rng = torch.Generator().manual_seed(4)
    query, key, value = (torch.randn(3, 16, 8, dtype=torch.float64, generator=rng) for _ in range(3))
    decay, beta = torch.rand(3, 16, 8, dtype=torch.float64, generator=rng), torch.rand(3, 16, generator=rng).double()
    state, outputs = torch.zeros(1, 16, 8, 8, dtype=torch.float64), []

    class Given(Core):
        def convolved(self, step):
            return query[step.window], key[step.window], value[step.window]

        def decay(self, step):
            return decay[step.window]

        def beta(self, step):
            return beta[step.window]

    given = Given(PICO, 1, EXACT)
    for t in range(3):
        out, state = given.recurrence(Step({}, slice(t, t + 1), state, {}))
        outputs.append(out[0])
    mine = delta_rule(
        *(x.transpose(0, 1) for x in (core.scaled(core.normalised(query)), core.normalised(key), value)),
        decay.log().transpose(0, 1),
        beta.T,
    )
    torch.testing.assert_close(mine.transpose(0, 1), torch.stack(outputs), rtol=1e-11, atol=1e-12)


def test_gradients_are_those_of_the_steps_graph():
    """Change of the summed logits along a random direction, by differences in float64 and by the gradient."""
    rng = torch.Generator().manual_seed(2)

    def logits(scale: float) -> torch.Tensor:
        moved = {n: x.double() + scale * directions[n] if n in directions else x for n, x in PARAMETERS.items()}
        return (Forward(PICO, nano_parameters.weights(moved, PICO), EXACT)(TOKENS[:, :20]) * upstream).sum()

    # Only what is not rounded on its way can be moved by little: float32 tensors of the checkpoint.
    smooth = [n for n in PARAMETERS if n.endswith(("A_log", "dt_bias", "conv1d.weight"))]
    directions = {n: torch.randn(PARAMETERS[n].shape, generator=rng).double() for n in smooth}
    upstream = torch.randn(2, 20, PICO.vocab_size, generator=rng).double()
    leaves = {n: x.double().requires_grad_() if n in directions else x for n, x in PARAMETERS.items()}
    value = (Forward(PICO, nano_parameters.weights(leaves, PICO), EXACT)(TOKENS[:, :20]) * upstream).sum()
    gradients = torch.autograd.grad(value, [leaves[n] for n in smooth])
    slope = sum((g * directions[n]).sum() for g, n in zip(gradients, smooth, strict=True))
    step = 1e-6
    torch.testing.assert_close((logits(step) - logits(-step)) / (2 * step), slope, rtol=1e-5, atol=1e-6)


def test_experts_are_seen_in_mxfp4_and_their_gradient_passes_straight_through():
    master = torch.randn(2, 4, 64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    found = nano_parameters.quantised(master)
    assert found.values.equal(mxfp4.dequantise(found.packed, found.scale, torch.float32))
    assert (found.values - master).abs().max() > 0.05  # it is four bits indeed
    upstream = torch.randn(2, 4, 64)
    assert torch.autograd.grad(found.values, master, upstream)[0].equal(upstream)


def test_a_checkpoint_holds_what_was_trained(tmp_path, oracle):
    """Exported, read by the published names, walked by the step: the logits of the parameters in memory."""
    nano_parameters.export(PARAMETERS, PICO, tmp_path / "checkpoint")
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    assert checkpoint.architecture == PICO
    torch.testing.assert_close(stepped(EXACT, load_model(checkpoint, Shard())), oracle, rtol=0, atol=1e-11)
    again = nano_parameters.weights(nano_parameters.imported(checkpoint), PICO)
    torch.testing.assert_close(trained(EXACT, again), oracle, rtol=0, atol=1e-11)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_on_a_gpu_it_errs_as_the_plain_path_does_and_its_gradients_are_those_of_the_cpu(oracle):
    plain = (stepped(PUBLISHED) - oracle).abs()
    leaves = {name: x.cuda().requires_grad_() for name, x in PARAMETERS.items()}
    found = Forward(PICO, nano_parameters.weights(leaves, PICO), TensorCores())(TOKENS.cuda())
    error = (found.detach().cpu().double() - oracle).abs()
    for quantile in (0.5, 0.9):
        assert error.quantile(quantile) < 1.25 * plain.quantile(quantile)

    def gradients(parameters, device):
        read = nano_parameters.weights(parameters, PICO)
        value = Forward(PICO, read, UNROUNDED)(TOKENS.to(device)).square().sum()
        learning = [x for x in parameters.values() if x.requires_grad]
        return torch.autograd.grad(value, learning, allow_unused=True)

    here = {name: x.clone().requires_grad_() for name, x in PARAMETERS.items()}
    for mine, theirs in zip(gradients(leaves, "cuda"), gradients(here, "cpu"), strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            assert (mine.cpu() - theirs).norm() <= 1e-2 * theirs.norm()
