"""Streams of tokens that mean something to the nano model, and a toy draft head that proposes how they go on."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from random import Random

from ..nano.tasks import TASKS, sample

_MIX = ("arithmetic", "copying", "prose", "retrieval", "product")


def stream(tokens: int, seed: int) -> list[int]:
    """Held-out problems of every task, one behind the other, cut at `tokens`."""
    random, found = Random(f"stream {seed}"), []
    while len(found) < tokens:
        task = _MIX[len(found) % len(_MIX)] if not found else random.choice(_MIX)
        found += sample(task, random, min(tokens, 256), held_out=True).tokens
    return found[:tokens]


class DraftHead:
    """Proposes the likeliest next token given the last two: counted on training problems, as small as a head can be."""

    def __init__(self, *, samples: int = 400, seed: int = 0) -> None:
        random = Random(f"draft {seed}")
        counts: dict[tuple[int, ...], Counter] = defaultdict(Counter)
        for number in range(samples):
            tokens = sample(list(TASKS)[number % len(TASKS)], random, 192, held_out=False).tokens
            for place in range(2, len(tokens)):
                for width in (0, 1, 2):
                    counts[tuple(tokens[place - width : place])][tokens[place]] += 1
        self._next = {seen: min(found.items(), key=lambda item: (-item[1], item[0]))[0] for seen, found in counts.items()}

    def propose(self, history: Sequence[int], count: int) -> list[int]:
        """The `count` tokens that it expects behind `history`."""
        line = list(history)
        for _ in range(count):
            seen = next(key for width in (2, 1, 0) if (key := tuple(line[len(line) - width :])) in self._next)
            line.append(self._next[seen])
        return line[len(history) :]
