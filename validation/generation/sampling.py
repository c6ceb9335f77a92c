"""From logits to a token. Pure: the same logits, settings and history give the same token, whatever else is served."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from .asked import Sampling, Score


def uniform(seed: int, position: int) -> float:
    """The random number in [0, 1) that belongs to one place of one request: 53 bits of a digest of both."""
    digest = hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53


def choose(logits: Tensor, sampling: Sampling, position: int, counts: Mapping[int, int]) -> int:
    """The token at `position` (tokens generated before it) from logits [vocabulary].

    `counts`: how often each token has been generated, for the penalties. Order of the cuts: bias and penalties,
    temperature, top k, top p, min p. Each keeps the likeliest token.
    """
    adjusted = logits.double().clone()
    for token, value in sampling.bias:
        adjusted[token] += value
    for token, count in counts.items():
        adjusted[token] -= sampling.presence_penalty + sampling.frequency_penalty * count
    if sampling.temperature == 0:
        return int(adjusted.argmax())
    # Stable: equals stay in the order of their ids.
    values, order = (adjusted / sampling.temperature).sort(dim=-1, descending=True, stable=True)
    probabilities = values.softmax(0)
    keep = torch.ones_like(probabilities, dtype=torch.bool)
    if sampling.top_k:
        keep[sampling.top_k :] = False
    if sampling.top_p < 1:
        kept = torch.where(keep, probabilities, 0)
        kept = kept / kept.sum()
        keep &= kept.cumsum(0) - kept < sampling.top_p
    if sampling.min_p:
        keep &= probabilities >= sampling.min_p * probabilities[0]
    keep[0] = True
    cumulative = torch.where(keep, probabilities, 0).cumsum(0)
    at = int((cumulative <= uniform(sampling.seed, position) * cumulative[-1]).sum())
    return int(order[min(at, int(keep.nonzero()[-1]))])


def scores(logits: Tensor, tokens: list[int], top: int) -> list[Score]:
    """The score of each of `tokens` from the logits [tokens, vocabulary] before it, in float64."""
    log_probs = logits.double().log_softmax(-1)
    own = log_probs.gather(1, torch.tensor(tokens)[:, None])
    ranks = (log_probs > own).sum(1) + 1
    best, ids = log_probs.sort(dim=-1, descending=True, stable=True)
    rows = zip(ids[:, :top].tolist(), best[:, :top].tolist(), strict=True)
    candidates = [tuple(zip(*row, strict=True)) for row in rows]
    return [
        Score(token, float(own[row]), int(ranks[row]), candidates[row]) for row, token in enumerate(tokens)
    ]
