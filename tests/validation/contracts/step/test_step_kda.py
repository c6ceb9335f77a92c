"""KDA: against fla-core's naive forms, against the op's plain path, one pass against two, chunks against tokens."""

import math
from dataclasses import replace

import k3_weights
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fasttrack_validation.contracts.kimi_k3.kda_decode import plain as kda_decode_plain
from fasttrack_validation.contracts.kimi_k3.layer_weights import Shard
from fasttrack_validation.contracts.kimi_k3.step.kda import Core, Kda
from fasttrack_validation.contracts.kimi_k3.step.precision import EXACT, PUBLISHED, L2, Precision
from fasttrack_validation.contracts.kimi_k3.step.state import KdaCache
from fasttrack_validation.errors import UserError

PICO = k3_weights.pico()
WEIGHTS = k3_weights.pico_weights().layers[1].attention
SHARD = PICO.kda_shard(1)
FLOAT32 = Precision(torch.float32, torch.float32, torch.float32)


def pools(precision=EXACT, slots=12, seed=0) -> KdaCache:
    rng = torch.Generator().manual_seed(seed)
    conv = torch.randn(slots, SHARD.conv_width - 1, 3 * SHARD.channels, generator=rng).bfloat16()
    recurrent = 0.3 * torch.randn(slots, SHARD.heads, SHARD.head_dim, SHARD.head_dim, generator=rng)
    return KdaCache(conv.to(precision.storage), recurrent.to(precision.recurrent_state))


def inputs(rows: int, precision=EXACT, seed=1) -> Tensor:
    x = torch.randn(rows, PICO.hidden_size, generator=torch.Generator().manual_seed(seed)).bfloat16()
    return precision.wide(x)


def stages(x: Tensor, cache: KdaCache, slot: int, precision: Precision):
    """q, k, v, log decay and beta of consecutive tokens, [T, h, ...], from torch's own operators."""
    columns = SHARD.columns
    projected = precision.linear(x, WEIGHTS.in_proj)
    raw = torch.cat([precision.wide(cache.conv[slot]), projected[:, : 3 * SHARD.channels]])
    weight = precision.wide(WEIGHTS.conv_weight)[:, None]
    mixed = F.silu(F.conv1d(raw.T[None], weight, groups=3 * SHARD.channels))[0].T
    q, k, v = (part.unflatten(1, (SHARD.heads, -1)) for part in mixed.chunk(3, 1))
    q, k = (part / (part.square().sum(-1, keepdim=True) + 1e-6).sqrt() for part in (q, k))
    gamma = F.linear(projected[:, columns["f_a"]], precision.wide(WEIGHTS.f_b)).unflatten(1, (SHARD.heads, -1))
    return q, k, v, gamma, projected[:, columns["beta"]].sigmoid(), projected[:, columns["g"]]


def log_decay(gamma: Tensor) -> Tensor:
    bias = WEIGHTS.dt_bias.to(gamma.dtype).view(SHARD.heads, -1)
    return -5 * torch.sigmoid(WEIGHTS.a_log.to(gamma.dtype).exp()[:, None] * (gamma + bias))


def finished(core: Tensor, gate: Tensor, precision: Precision) -> Tensor:
    normed = F.rms_norm(core, (SHARD.head_dim,), precision.wide(WEIGHTS.o_norm), 1e-5)
    return precision.linear(normed.flatten(1) * gate.sigmoid(), WEIGHTS.o_proj)


def run_tokens(kda: Kda, x: Tensor, cache: KdaCache, slot: int) -> Tensor:
    """One token a step; slot 11 takes each candidate, which is then copied back."""
    out = []
    for row in x:
        out.append(kda.decode(row[None], WEIGHTS, cache, torch.tensor([[slot, 11]]), (1,)))
        for pool in (cache.conv, cache.recurrent):
            pool[slot] = pool[11]
    return torch.cat(out)


@pytest.mark.parametrize("form", ["recurrent", "chunk"])
def test_against_the_naive_forms_of_fla(form):
    from fla.ops.kda.gate import naive_kda_lowerbound_gate
    from fla.ops.kda.naive import naive_chunk_kda, naive_recurrent_kda

    x, cache = inputs(32, FLOAT32), pools(FLOAT32)
    q, k, v, gamma, beta, gate = stages(x, cache, 5, FLOAT32)
    decay = naive_kda_lowerbound_gate(gamma[None], WEIGHTS.a_log, WEIGHTS.dt_bias, lower_bound=-5.0)
    state = cache.recurrent[5].mT[None].clone()  # theirs is key-major
    naive = naive_recurrent_kda if form == "recurrent" else lambda *a, **k: naive_chunk_kda(*a, chunk_size=16, **k)
    core, after = naive(q[None], k[None], v[None], decay, beta[None], initial_state=state, output_final_state=True)

    kda = Kda(PICO, 1, FLOAT32)
    if form == "recurrent":
        out = run_tokens(kda, x, cache, 5)
    else:
        out = kda.prefill(x, WEIGHTS, cache, torch.tensor([[5]]), (32,))
    torch.testing.assert_close(out, finished(core[0], gate, FLOAT32), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(cache.recurrent[5], after[0].mT, rtol=1e-4, atol=1e-6)


def test_one_pass_is_two_passes():
    """The code reads the decayed state once; here the output is read from the updated state."""
    x, cache = inputs(20), pools()
    q, k, v, gamma, beta, gate = stages(x, cache, 5, EXACT)
    state, core = cache.recurrent[5].clone(), []
    for t in range(len(x)):
        state = state * log_decay(gamma[t]).exp()[:, None, :]
        error = beta[t][:, None] * (v[t] - torch.einsum("hvk,hk->hv", state, k[t]))
        state = state + torch.einsum("hv,hk->hvk", error, k[t])
        core.append(torch.einsum("hvk,hk->hv", state, q[t] * SHARD.head_dim**-0.5))
    out = run_tokens(Kda(PICO, 1, EXACT), x, cache, 5)
    torch.testing.assert_close(out, finished(torch.stack(core), gate, EXACT), rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(cache.recurrent[5], state, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("chunk", [1, 3, 16, 64])
def test_chunks_are_tokens(chunk):
    """Any chunk size, a last chunk that is not full, and strong decays whose inverse would overflow."""
    strong = replace(WEIGHTS, dt_bias=WEIGHTS.dt_bias + 3)
    for weights in (WEIGHTS, strong):
        kda, x = Kda(PICO, 1, EXACT), inputs(37)
        whole, single = pools(), pools()
        out = kda.prefill(x, weights, whole, torch.tensor([[5]]), (37,), chunk)
        rows = []
        for row in x:
            rows.append(kda.decode(row[None], weights, single, torch.tensor([[5, 11]]), (1,)))
            single.conv[5], single.recurrent[5] = single.conv[11].clone(), single.recurrent[11].clone()
        torch.testing.assert_close(out, torch.cat(rows), rtol=1e-10, atol=1e-11)
        torch.testing.assert_close(whole.recurrent[5], single.recurrent[5], rtol=1e-11, atol=1e-13)
        torch.testing.assert_close(whole.conv[5], single.conv[5], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_a_prefill_shorter_than_the_window_keeps_older_taps(tokens):
    cache, before = pools(), pools()
    Kda(PICO, 1, EXACT).prefill(inputs(tokens), WEIGHTS, cache, torch.tensor([[5]]), (tokens,))
    assert torch.equal(cache.conv[5, : 3 - tokens], before.conv[5, tokens:])


def test_published_rounding_is_that_of_the_op():
    """The op's plain path, another piece of code, from the same bfloat16 projection and the same pools."""
    kda, x, cache = Kda(PICO, 1, PUBLISHED), inputs(3, PUBLISHED), pools(PUBLISHED)
    slots = torch.tensor([7, 2, 5], dtype=torch.int32)
    projected = PUBLISHED.linear(x, WEIGHTS.in_proj).bfloat16()
    static = {name: getattr(WEIGHTS, name) for name in ("f_b", "conv_weight", "a_log", "dt_bias", "o_norm")}
    state = {"conv_state": cache.conv, "recurrent_state": cache.recurrent}
    expected = kda_decode_plain.step({"projected": projected, "slots": slots, **static, **state}, SHARD, PICO.eps, -5.0)
    out = kda.decode(x, WEIGHTS, cache, torch.stack([slots.long(), torch.tensor([8, 9, 10])], 1), (1, 1, 1))
    assert torch.equal(cache.conv[8:11], expected["conv_state"][slots.long()])
    torch.testing.assert_close(cache.recurrent[8:11], expected["recurrent_state"][slots.long()], rtol=2e-6, atol=1e-6)
    projected_out = PUBLISHED.linear(expected["out"].float(), WEIGHTS.o_proj)
    torch.testing.assert_close(out, projected_out, rtol=2e-2, atol=2e-2)
    assert (out != projected_out).float().mean() < 0.02


def test_the_window_holds_raw_projections():
    cache, x = pools(PUBLISHED), inputs(1, PUBLISHED)
    Kda(PICO, 1, PUBLISHED).decode(x, WEIGHTS, cache, torch.tensor([[5, 6]]), (1,))
    newest = F.linear(x, WEIGHTS.in_proj.float()).bfloat16()[0, : 3 * SHARD.channels]
    assert torch.equal(cache.conv[6, -1], newest)
    assert torch.equal(cache.conv[6, :-1], cache.conv[5, 1:])


@pytest.mark.parametrize("null", [0, -1])
@pytest.mark.parametrize("form", ["decode", "prefill"])
def test_a_null_slot_gives_zeros_and_touches_no_page(form, null):
    """Slot -1 as an index is the last page: a live one. Page 0 and the padded row hold NaN that must not come out."""
    kda, x, cache = Kda(PICO, 1, EXACT), inputs(2), pools()
    x[0] = math.nan
    for pool in (cache.conv, cache.recurrent):
        pool[0] = math.nan
    before = [cache.conv.clone(), cache.recurrent.clone()]
    slots = torch.tensor([[null, null], [5, 6]])
    out = getattr(kda, form)(x, WEIGHTS, cache, slots, (1, 1))
    assert torch.equal(out[0], torch.zeros_like(out[0]))
    assert out[1].isfinite().all()
    written = 6 if form == "decode" else 5
    for pool, old in zip((cache.conv, cache.recurrent), before, strict=True):
        others = [slot for slot in range(len(pool)) if slot != written]
        assert torch.equal(pool[others].nan_to_num(7.0), old[others].nan_to_num(7.0))
        assert not torch.equal(pool[written], old[written])


@pytest.mark.parametrize("row", [[5, 6, 0], [5, 6, -1], [5, 6]])
def test_a_live_request_needs_a_slot_for_each_token(row):
    kda, x = Kda(PICO, 1, EXACT), inputs(2)
    kda.decode(x, WEIGHTS, pools(), torch.tensor([[5, 6, 7]]), (2,))
    with pytest.raises(UserError, match="a request of 2 tokens has slots"):
        kda.decode(x, WEIGHTS, pools(), torch.tensor([row]), (2,))


def test_pages_further_apart_than_they_are_large():
    """Pools that share pages with others: the gaps stay as they were, and dense arithmetic would read them."""
    dense, kda, x = pools(), Kda(PICO, 1, EXACT), inputs(2)
    strided, buffers = [], []
    for pool in (dense.conv, dense.recurrent):
        size = pool[0].numel()
        buffer = torch.full((len(pool), size + 40), math.nan, dtype=pool.dtype)
        buffer[:, :size] = pool.flatten(1)
        strided.append(torch.as_strided(buffer, pool.shape, (size + 40, *pool.stride()[1:])))
        buffers.append((buffer, size))
    slots = torch.tensor([[5, 6], [3, 9]])
    out = kda.decode(x, WEIGHTS, KdaCache(*strided), slots, (1, 1))
    assert torch.equal(out, kda.decode(x, WEIGHTS, dense, slots, (1, 1)))
    for pool, view, (buffer, size) in zip((dense.conv, dense.recurrent), strided, buffers, strict=True):
        assert torch.equal(view, pool)
        assert buffer[:, size:].isnan().all()


def test_strided_slot_tables():
    """A column of a wider table, as engines pass it: not dense."""
    kda, x, dense, other = Kda(PICO, 1, EXACT), inputs(2), pools(), pools()
    wide = torch.tensor([[5, 99, 6, 99], [3, 99, 9, 99]])
    out = kda.decode(x, WEIGHTS, dense, wide[:, ::2], (1, 1))
    assert torch.equal(out, kda.decode(x, WEIGHTS, other, torch.tensor([[5, 6], [3, 9]]), (1, 1)))


def test_pools_of_different_length_are_refused():
    cache = pools()
    with pytest.raises(UserError, match="convolution pool has 11 pages, the recurrent pool 12"):
        KdaCache(cache.conv[:-1], cache.recurrent)


def test_a_log_is_cut_by_head():
    """A buffer of 32 with 16 heads and a zero tail: cut by its length, rank 1 of 2 would decay with zeros."""
    kda, x = Kda(PICO, 2, EXACT), inputs(1)
    ranks = [k3_weights.shard_kda(WEIGHTS, PICO, Shard(2, rank)) for rank in range(2)]
    buffer = torch.cat([WEIGHTS.a_log, torch.zeros(16)])
    slots = torch.tensor([[5, 6]])

    def layer(*a_logs):
        total = 0
        for rank, a_log in enumerate(a_logs):
            whole = pools()
            heads = slice(8 * rank, 8 * rank + 8)
            conv = whole.conv.unflatten(2, (3, 2, -1))[:, :, :, rank].flatten(2)
            cache = KdaCache(conv.clone(), whole.recurrent[:, heads].clone())
            total = total + kda.decode(x, replace(ranks[rank], a_log=a_log), cache, slots, (1,))
        return total

    expected = Kda(PICO, 1, EXACT).decode(x, WEIGHTS, pools(), slots, (1,))
    torch.testing.assert_close(layer(buffer[:8], buffer[8:16]), expected, rtol=1e-11, atol=1e-12)
    assert ((layer(buffer[:8], buffer[16:24]) - expected).norm() / expected.norm()) > 1e-3
    for a_log in (buffer[:16], WEIGHTS.a_log.view(1, 1, -1, 1)):
        with pytest.raises(UserError, match=r"A_log has shape .*"):
            kda.decode(x, replace(ranks[0], a_log=a_log), pools(), slots, (1,))


def bfloat16(x: Tensor) -> Tensor:
    return x.bfloat16().to(x.dtype)


class NarrowDecay(Core):
    def decay(self, step):
        return bfloat16(super().decay(step))


class NarrowBeta(Core):
    def beta(self, step):
        return bfloat16(super().beta(step))


def test_a_bfloat16_decay_or_beta_drifts():
    """Decays of 0.998 to 0.9996 are 1.0 in bfloat16: invisible after 9 tokens, after 4096 the state never forgot.

    A rounded beta is off by a part in a thousand throughout. float32 keeps both.
    """
    tokens = 4096
    x = inputs(tokens)
    x[:, 0] = 1
    in_proj = WEIGHTS.in_proj.clone()
    in_proj[SHARD.columns["beta"], 0] = -6  # small writes, so that what is left of old ones matters
    weights = replace(WEIGHTS, in_proj=in_proj, dt_bias=torch.full_like(WEIGHTS.dt_bias, -8.5), a_log=0 * WEIGHTS.a_log)

    def state(core: type[Core], length: int, precision: Precision = EXACT) -> Tensor:
        kda, cache = Kda(PICO, 1, precision), pools(precision)
        kda.core = core(PICO, 1, precision)
        for pool in (cache.conv, cache.recurrent):
            pool.zero_()
        kda.prefill(precision.wide(x[:length]), weights, cache, torch.tensor([[5]]), (length,), 32)
        return cache.recurrent[5]

    def error(core: type[Core], length: int, precision: Precision = EXACT) -> float:
        exact = state(Core, length)
        return float((state(core, length, precision) - exact).norm() / exact.norm())

    assert error(NarrowDecay, 9) < 1e-2
    assert error(NarrowDecay, tokens) > 1e-1
    assert 1e-4 < error(NarrowBeta, tokens)
    assert error(Core, tokens, FLOAT32) < 1e-5


def test_l2_epsilon_semantics_differ_next_to_zero_only():
    kda, maximum = (Kda(PICO, 1, replace(EXACT, l2=semantics)) for semantics in (L2.INSIDE, L2.MAX))
    zeros = torch.zeros(1, 1, SHARD.head_dim, dtype=torch.float64)
    unit = zeros + SHARD.head_dim**-0.5
    assert torch.equal(kda.core.normalised(zeros), zeros)
    assert torch.equal(maximum.core.normalised(zeros), zeros)
    # A norm of 1e-3 has a square of 1e-6: 1 / sqrt(2) against 1.
    assert kda.core.normalised(1e-3 * unit).norm().item() == pytest.approx(2**-0.5, rel=1e-9)
    assert maximum.core.normalised(1e-3 * unit).norm().item() == pytest.approx(1.0, rel=1e-9)
    assert maximum.core.normalised(1e-7 * unit).norm().item() == pytest.approx(0.1, rel=1e-9)
    torch.testing.assert_close(kda.core.normalised(10 * unit), maximum.core.normalised(10 * unit), rtol=1e-8, atol=0)
