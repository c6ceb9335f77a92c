"""The recurrence of Kimi Delta Attention over whole sequences at once, differentiable.

With S the state of a head, transposed to [K, V]; a = e^g its decay; b = beta:

    S_t = (I - b_t k_t k_t^T) diag(a_t) S_(t-1) + b_t k_t v_t^T,        o_t = S_t^T q_t.

Sequences are cut into chunks of 16 tokens. Inside a chunk the rank-one updates become one triangular system (the UT
transform of delta rules, arXiv 2406.06484, with a decay for each channel); a whole chunk is then an affine map of the
state, S -> M S + B, and the states between chunks come from a scan over such maps in logarithmic depth.
"""

import torch
from torch import Tensor

CHUNK = 16
"""Log decays are bounded by -5 a token, so that e^(sums over half a chunk) and its inverse stay within float32."""
_MIDDLE = CHUNK // 2 - 1


def delta_rule(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
    """o [..., T, V] from a state of zeros.

    query (scaled), key (normalised), log_decay [..., T, K], the last in [-5, 0]; value [..., T, V]; beta [..., T]. Any
    T; float32 or float64.
    """
    tokens = query.shape[-2]
    query, key, value, log_decay, beta = (_chunked(x) for x in (query, key, value, log_decay, beta[..., None]))
    total = log_decay.cumsum(-2)  # [..., N, C, K]: decay since the chunk began
    # e^(total_i - total_j) as a product of two factors, both measured from the middle of the chunk.
    since = total - total[..., _MIDDLE : _MIDDLE + 1, :]
    later, earlier = since.exp(), (-since).exp()
    key_scores = (key * later) @ (key * earlier).mT
    query_scores = ((query * later) @ (key * earlier).mT).tril()
    system = beta * key_scores.tril(-1)
    whole = total.exp()

    # delta = own - of_state S: what each token writes, given the state S before the chunk.
    right = beta * torch.cat([value, key * whole], -1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    own, of_state = solved.split([value.shape[-1], key.shape[-1]], -1)

    remaining = (key * (total[..., -1:, :] - total).exp()).mT
    maps = torch.diag_embed(whole[..., -1, :]) - remaining @ of_state
    states = _before(maps, remaining @ own)
    out = (query * whole) @ states + query_scores @ (own - of_state @ states)
    return out.flatten(-3, -2)[..., :tokens, :]


def _chunked(x: Tensor) -> Tensor:
    """[..., T, X] as [..., N, C, X], zeros behind: tokens that write nothing and forget nothing."""
    x = torch.nn.functional.pad(x, (0, 0, 0, -x.shape[-2] % CHUNK))
    return x.unflatten(-2, (-1, CHUNK))


def _before(maps: Tensor, added: Tensor) -> Tensor:
    """The state before each of N affine maps S -> M S + B applied one after the other to zero: [..., N, K, V]."""
    count = maps.shape[-3]
    if count == 1:
        return torch.zeros_like(added)
    if count % 2:
        padded = [torch.cat([x, torch.zeros_like(x[..., :1, :, :])], -3) for x in (maps, added)]
        return _before(*padded)[..., :count, :, :]
    first, second = maps[..., 0::2, :, :], maps[..., 1::2, :, :]
    even = _before(second @ first, second @ added[..., 0::2, :, :] + added[..., 1::2, :, :])
    odd = first @ even + added[..., 0::2, :, :]
    return torch.stack([even, odd], -3).flatten(-4, -3)
