"""Texts that a kit brings for numerics, server against server: of the contract's own generator, the same in every kit."""

import json
import random
from importlib import import_module

_TASKS = ("arithmetic", "product", "copying", "retrieval", "prose")
_SEED = "texts of a kit/1"
_SHORT, _LENGTHS = 64, (256, 512, 1024, 2048, 4096, 8192)


def tokens(contract: str, *, rehearsal: bool) -> str:
    """JSON Lines of texts of several kinds and lengths (in symbols, at most); a rehearsal's are few and short."""
    tasks = import_module(f"fasttrack_validation.contracts.{contract}.nano.tasks")
    source, lines = random.Random(_SEED), []
    for number in range(4 if rehearsal else 240):
        task, size = _TASKS[number % len(_TASKS)], _SHORT if rehearsal else _LENGTHS[number % len(_LENGTHS)]
        text = ""
        # Texts of one problem are short: several make up the length.
        while not text or len(text) < size // 2:
            text += "".join(part for part, _ in getattr(tasks, task)(source, size).parts)
        lines.append(json.dumps({"id": f"{task}-{number}", "text": text}, ensure_ascii=False))
    return "\n".join(lines) + "\n"
