"""Frozen exams for the nano model: held-out problems of its own tasks, asked as it was trained to read them."""

from random import Random

from ....accuracy.frozen import Draft, Item, Key, Message, Scorer, Source
from .tasks import TASKS

KINDS = ("arithmetic", "product", "copying")
"""Tasks whose problem is a line of its own, so that it can be a message of a chat."""
_SIZE = 256


def build(source: Source, task: str) -> Draft:
    """`source.items_each` problems of `task` that training never saw, all different; the same for the same seed."""
    random, made = Random(f"exam {task} {source.seed}"), {}
    while len(made) < (source.items_each or 1):
        problem = TASKS[task](random, _SIZE)
        if not problem.held_out:
            continue
        *asked, (answer, _) = problem.parts
        text = "".join(part for part, _ in asked)
        made.setdefault(text, answer.rstrip("\n").rpartition("\n")[2])
    items, keys = [], []
    for number, (text, answer) in enumerate(made.items()):
        messages = (Message(role="user", content=text),)
        name = f"{task}-{number:04}"
        items.append(Item(id=name, cluster=name, messages=messages, prompt_sha256=Item.prompt_digest(messages, ())))
        keys.append(Key(item=name, answer=answer))
    return Draft(
        exam=source.kind, scorer=Scorer.LAST_LINE, licence="Apache-2.0", source=source, items=tuple(items),
        keys=tuple(keys),
    )  # fmt: skip
