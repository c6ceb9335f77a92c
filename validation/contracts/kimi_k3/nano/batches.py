"""Training batches: a pure function of (seed, step), so that a resumed run sees what it would have seen."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from random import Random

import torch
from torch import Tensor

from .tasks import TASKS, sample


@dataclass(frozen=True)
class Batch:
    """Sequences of one length."""

    tokens: Tensor
    """[sequences, length + 1] int64: inputs and, one further, what is to be predicted"""
    answer: Tensor
    """[sequences, length] bool: whether what is to be predicted is part of an answer"""


def training_batch(seed: int, step: int, tokens: int, lengths: tuple[int, ...]) -> Batch:
    """About `tokens` tokens in sequences of one of `lengths`, short ones more often: each gets half of what is left."""
    random = Random(f"train:{seed}:{step}")
    length = next((length for length in sorted(lengths)[:-1] if random.random() < 0.5), max(lengths))
    sequences = [_sequence(random, length) for _ in range(max(1, tokens // length))]
    return Batch(
        torch.tensor([tokens for tokens, _ in sequences]), torch.tensor([answer[1:] for _, answer in sequences])
    )


def prefetched(seed: int, first_step: int, tokens: int, lengths: tuple[int, ...], *, workers: int) -> Iterator[Batch]:
    """The batches from `first_step` on, made ahead in `workers` processes; made when asked for with none."""
    step = first_step
    if not workers:
        while True:
            yield training_batch(seed, step, tokens, lengths)
            step += 1
    # Spawned, not forked: the parent may hold a CUDA context and threads.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        ahead: deque[Future] = deque()
        try:
            while True:
                while len(ahead) < 4 * workers:
                    ahead.append(pool.submit(_raw, seed, step, tokens, lengths))
                    step += 1
                yield Batch(*map(torch.from_numpy, ahead.popleft().result()))
        finally:
            pool.shutdown(cancel_futures=True)


def _raw(seed: int, step: int, tokens: int, lengths: tuple[int, ...]):
    """As arrays: tensors would travel between processes through shared files, of which there are few."""
    batch = training_batch(seed, step, tokens, lengths)
    return batch.tokens.numpy(), batch.answer.numpy()


def _sequence(random: Random, length: int) -> tuple[list[int], list[bool]]:
    """Problems one after the other; a third of the sequences begin with a retrieval that nearly fills them."""
    tokens: list[int] = []
    answer: list[bool] = []
    tasks = sorted(TASKS)
    whole = random.random() < 1 / 3
    while len(tokens) < length + 1:
        room = length + 1 - len(tokens)
        task = "retrieval" if whole and not tokens else random.choice(tasks)
        size = random.randint(room // 2, room) if not tokens else min(room, 256)
        drawn = sample(task, random, size, held_out=False)
        tokens += drawn.tokens
        answer += drawn.answer
    return tokens[: length + 1], answer[: length + 1]
