"""MLA: absorbed against plain against a loop over heads and positions; gate, pages, padding, and no rotation."""

import math

import k3_weights
import pytest
import torch

from fasttrack_validation.contracts.kimi_k3.step.mla import Mla
from fasttrack_validation.contracts.kimi_k3.step.norm import rms_norm
from fasttrack_validation.contracts.kimi_k3.step.precision import EXACT, PUBLISHED
from fasttrack_validation.contracts.kimi_k3.step.state import LatentCache
from fasttrack_validation.errors import UserError

PICO = k3_weights.pico()
SIZES = PICO.mla
WEIGHTS = k3_weights.pico_weights().layers[3].attention
WIDTH = SIZES.kv_lora_rank + SIZES.qk_rope_head_dim
PAGES = torch.tensor([[6, 2, 9, 4]])


def cache(precision=EXACT, filled=0, seed=0) -> LatentCache:
    rng = torch.Generator().manual_seed(seed)
    pool = LatentCache(torch.full((10, 4, WIDTH), math.nan, dtype=precision.storage))
    if filled:
        pool.write(PAGES[0], 0, torch.randn(filled, WIDTH, generator=rng).bfloat16().double())
    return pool


def inputs(rows: int, precision=EXACT, seed=1):
    x = torch.randn(rows, PICO.hidden_size, generator=torch.Generator().manual_seed(seed)).bfloat16()
    return precision.wide(x)


@pytest.mark.parametrize("filled, rows", [(0, 1), (0, 5), (7, 1), (9, 4), (3, 8)])
def test_absorbed_is_plain(filled, rows):
    mla, x = Mla(PICO, 1, EXACT), inputs(rows)
    left, right = cache(filled=filled), cache(filled=filled)
    absorbed = mla.decode(x, WEIGHTS, left, PAGES, [filled], (rows,))
    plain = mla.prefill(x, WEIGHTS, right, PAGES, [filled], (rows,))
    torch.testing.assert_close(absorbed, plain, rtol=1e-11, atol=1e-12)
    assert torch.equal(left.rows.nan_to_num(7.0), right.rows.nan_to_num(7.0))
    narrow = [Mla(PICO, 1, PUBLISHED) for _ in range(2)]
    args = (WEIGHTS, PAGES, [filled], (rows,))
    rounded = [
        getattr(one, form)(inputs(rows, PUBLISHED), args[0], cache(PUBLISHED, filled), *args[1:])
        for one, form in zip(narrow, ("decode", "prefill"), strict=True)
    ]
    for out in rounded:
        assert (out - plain).norm() / plain.norm() < 2e-2


def test_against_a_loop_over_heads_and_positions():
    """In Python floats where it matters: one dot product, one exponential at a time."""
    rows, filled = 3, 5
    x, pool = inputs(rows), cache(filled=filled)
    out = Mla(PICO, 1, EXACT).decode(x, WEIGHTS, pool, PAGES, [filled], (rows,))
    a = WEIGHTS.qkv_a_g.double()
    ends = torch.tensor([SIZES.q_lora_rank, SIZES.kv_lora_rank, SIZES.qk_rope_head_dim]).cumsum(0).tolist()

    def rms(vector, weight):
        return vector / math.sqrt(float(vector.square().mean()) + 1e-6) * weight.double()

    history = [pool.rows[PAGES[0, t // 4], t % 4] for t in range(filled + rows)]
    d_qk, d_v = SIZES.qk_nope_head_dim + SIZES.qk_rope_head_dim, SIZES.v_head_dim
    expected = []
    for i in range(rows):
        projected = a @ x[i]
        query = WEIGHTS.q_b.double() @ rms(projected[: ends[0]], WEIGHTS.q_a_norm)
        latent = rms(projected[ends[0] : ends[1]], WEIGHTS.kv_a_norm)
        torch.testing.assert_close(history[filled + i], torch.cat([latent, projected[ends[1] : ends[2]]]))
        heads = []
        for h in range(SIZES.heads):
            q = query[d_qk * h : d_qk * (h + 1)]
            up = WEIGHTS.kv_b.double()[(SIZES.qk_nope_head_dim + d_v) * h :]
            scores, values = [], []
            for row in history[: filled + i + 1]:
                key = torch.cat([up[: SIZES.qk_nope_head_dim] @ row[: SIZES.kv_lora_rank], row[SIZES.kv_lora_rank :]])
                scores.append(math.exp(float(q @ key) / math.sqrt(d_qk)))
                values.append(up[SIZES.qk_nope_head_dim :][:d_v] @ row[: SIZES.kv_lora_rank])
            heads.append(sum(s * v for s, v in zip(scores, values, strict=True)) / sum(scores))
        gate = torch.sigmoid(projected[ends[2] :])
        expected.append(WEIGHTS.o_proj.double() @ (torch.cat(heads) * gate))
    torch.testing.assert_close(out, torch.stack(expected), rtol=1e-10, atol=1e-11)


def test_positions_mean_nothing():
    """Without rotation, attention is to a set: the same rows in another order give the same output."""
    mla, x = Mla(PICO, 1, EXACT), inputs(1)
    rows = torch.randn(9, WIDTH, generator=torch.Generator().manual_seed(2)).double()
    outs = []
    for order in (range(9), reversed(range(9))):
        pool = cache()
        pool.write(PAGES[0], 0, rows[list(order)])
        outs.append(mla.decode(x, WEIGHTS, pool, PAGES, [9], (1,)))
    torch.testing.assert_close(*outs, rtol=1e-12, atol=1e-12)


def test_a_token_sees_itself_and_nothing_later():
    """Alone, its softmax is one and the output is its own value; later rows of a verify change nothing."""
    mla, x = Mla(PICO, 1, EXACT), inputs(4)
    together = mla.decode(x, WEIGHTS, cache(), PAGES, [0], (4,))
    for rows in (1, 2, 3):
        alone = mla.decode(x[:rows], WEIGHTS, cache(), PAGES, [0], (rows,))
        torch.testing.assert_close(alone, together[:rows], rtol=1e-12, atol=1e-13)


def test_stale_rows_past_the_length_are_not_read():
    """Those of rejected tokens, and pages that belong to others: all NaN here."""
    pool = cache(filled=6)
    out = Mla(PICO, 1, EXACT).decode(inputs(1), WEIGHTS, pool, PAGES, [6], (1,))
    assert pool.rows[PAGES[0, 1], 3:].isnan().all()
    assert out.isfinite().all()


@pytest.mark.parametrize("null", [0, -1])
@pytest.mark.parametrize("form", ["decode", "prefill"])
def test_padding_gives_zeros_whatever_its_gate_holds(form, null):
    mla, x, pool = Mla(PICO, 1, EXACT), inputs(2), cache()
    x[0] = math.nan
    pages = torch.cat([torch.full_like(PAGES, null), PAGES])
    out = getattr(mla, form)(x, WEIGHTS, pool, pages, [0, 0], (1, 1))
    assert torch.equal(out[0], torch.zeros_like(out[0]))
    alone = getattr(mla, form)(x[1:], WEIGHTS, cache(), PAGES, [0], (1,))
    torch.testing.assert_close(out[1:], alone, rtol=1e-12, atol=1e-13)
    touched = pool.rows.isfinite().any(-1).nonzero().tolist()
    assert touched == [[int(PAGES[0, 0]), 0]]


def test_pages_further_apart_than_they_are_large():
    """A pool that shares its pages with others: what lies between stays, and is never taken for a row."""
    dense, size = cache(filled=6), 4 * WIDTH
    buffer = torch.full((10, size + 8), math.nan, dtype=torch.float64)
    buffer[:, :size] = dense.rows.flatten(1)
    strided = LatentCache(torch.as_strided(buffer, dense.rows.shape, (size + 8, WIDTH, 1)))
    mla, x = Mla(PICO, 1, EXACT), inputs(3)
    assert torch.equal(*(mla.decode(x, WEIGHTS, pool, PAGES, [6], (3,)) for pool in (dense, strided)))
    assert torch.equal(strided.rows.nan_to_num(7.0), dense.rows.nan_to_num(7.0))
    assert buffer[:, size:].isnan().all()


def test_positions_past_the_pages_are_refused():
    """The null page in the middle of a table would be shared by everybody."""
    pool = cache()
    pool.write(PAGES[0], 12, torch.zeros(4, WIDTH))
    with pytest.raises(UserError, match="position 16 lies past the pages"):
        pool.write(PAGES[0], 16, torch.zeros(1, WIDTH))
    with pytest.raises(UserError, match="position 4 lies past the pages"):
        pool.write(torch.tensor([6, 0, 9, 4]), 4, torch.zeros(1, WIDTH))
    assert pool.rows[0].isnan().all()


def test_epsilon_of_the_low_rank_norms_matters_for_small_latents_only():
    """1e-6 or 1e-5: one part in a thousand of a latent of rms one, a third of it at rms 1e-3."""
    one = torch.ones(1, 16, dtype=torch.float64)
    for scale, expected in ((1.0, 1 - 4.5e-6), (1e-3, (2 / 11) ** 0.5)):
        ratio = rms_norm(scale * one, one[0], 1e-5, EXACT) / rms_norm(scale * one, one[0], 1e-6, EXACT)
        assert ratio[0, 0].item() == pytest.approx(expected, rel=1e-9 if scale < 1 else 1e-8)
    assert PICO.eps.mla_q_a == PICO.eps.mla_kv_a == 1e-6
    wide = PICO.model_copy(update={"eps": PICO.eps.model_copy(update={"mla_kv_a": 1e-1})})
    args = (inputs(2), WEIGHTS)
    published, other = (Mla(of, 1, EXACT).decode(*args, cache(), PAGES, [0], (2,)) for of in (PICO, wide))
    assert not torch.allclose(published, other, rtol=1e-3)
