"""Tokens that a kit brings for numerics, server against server: lines of {"id": ..., "tokens": [...]}, in every kit the
same."""

import json
import random
from importlib import import_module

_SEED = "tokens of a kit/1"
_TASKS = ("arithmetic", "product", "copying", "retrieval", "prose")
_SHORT, _LENGTHS, _ORDINARY = 48, (256, 1024, 4096, 16384), (1000, 100_000)
STREAMS = 64
"""Of the published model: 348,160 tokens, which is what resolves effects that exams do not"""


def tokens(contract: str, *, rehearsal: bool) -> str:
    """Of the small model its own tasks, few and short. Of the published one ordinary token ids, drawn: its tokenizer is not
    here. Whoever has it can put the tokens of natural text in their place."""
    source, lines = random.Random(_SEED), []
    if rehearsal:
        tasks = import_module(f"fasttrack_validation.contracts.{contract}.nano.tasks")
        for task in _TASKS:
            lines.append({"id": task, "tokens": tasks.sample(task, source, _SHORT, held_out=True).tokens})
    else:
        for number in range(STREAMS):
            length = _LENGTHS[number % len(_LENGTHS)]
            lines.append({"id": f"drawn-{number}", "tokens": [source.randint(*_ORDINARY) for _ in range(length)]})
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
