"""What lm-eval asks of our task (`tasks/frozen_exam.yaml`). A document names an item; the answer never enters it.

The engine calls these functions by name, so the exam that is being sat is found by its digest in a table of this module.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from .frozen import Exam, Item, Message
from .scoring import score

_SITTING: dict[str, tuple[Exam, dict[str, Item]]] = {}


@contextmanager
def sitting(exam: Exam) -> Iterator[None]:
    """Makes `exam` known to the engine for as long as it is sat."""
    _SITTING[exam.digest] = exam, {item.id: item for item in exam.items}
    try:
        yield
    finally:
        _SITTING.pop(exam.digest, None)


def dataset(exam: str, **_: Any) -> dict[str, Any]:
    """The items of the exam with this digest, in their order: {"test": rows of item and exam}."""
    import datasets

    rows = [{"item": item.id, "exam": exam} for item in _SITTING[exam][0].items]
    return {"test": datasets.Dataset.from_list(rows)}


def prompt(doc: Mapping[str, str]) -> str:
    """The whole conversation as JSON text, several turns included; the model reads it back (`messages`)."""
    return json.dumps([message.model_dump() for message in _item(doc).messages], ensure_ascii=False)


def messages(text: str) -> tuple[Message, ...]:
    """What `prompt` wrote."""
    return tuple(Message.model_validate(message) for message in json.loads(text))


def item_of(doc: Mapping[str, str]) -> Item:
    """The item that a document names."""
    return _item(doc)


def results(doc: Mapping[str, str], texts: Sequence[Sequence[str]]) -> dict[str, Any]:
    """The scores of all repeats of one item, and their mean: not of the first repeat alone."""
    exam, item = _SITTING[doc["exam"]][0], _item(doc)
    scores = [score(exam.manifest.scorer, item, exam.keys[item.id], text).score for text in texts[0]]
    return {"score": sum(scores) / len(scores), "scores": scores}


def count(values: Sequence[Sequence[float]]) -> int:
    """How many answers were scored."""
    return sum(map(len, values))


def _item(doc: Mapping[str, str]) -> Item:
    return _SITTING[doc["exam"]][1][doc["item"]]
