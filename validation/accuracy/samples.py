"""Two small exams of our own items (`samples.toml`), so that all of it runs offline. They say little about a model."""

import tomllib
from importlib.resources import files

from .draw import Draw
from .frozen import Draft, Item, Key, Message, Scorer, Source

_INTEGER = "{question}\n\nReason step by step. End with one line `Answer: N`, where N is an integer."
_CHOICE = "{question}\n\n{options}\n\nReason step by step. End with one line `Answer: X`, X the letter of an option."


def integers(source: Source) -> Draft:
    """Short problems whose answer is an integer, as in AIME."""
    made = []
    for entry in _entries("integers"):
        messages = (Message(role="user", content=_INTEGER.format(question=entry["question"])),)
        made.append((_item(entry["id"], messages, ()), Key(item=entry["id"], answer=str(entry["answer"]))))
    return _draft("sample_integers", Scorer.INTEGER, source, made)


def choices(source: Source) -> Draft:
    """Questions with four options, as in GPQA; the seed orders the options."""
    made = []
    for entry in _entries("choices"):
        options = tuple(Draw("options", source.seed, entry["id"]).shuffled([entry["right"], *entry["wrong"]]))
        listed = "\n".join(f"{chr(ord('A') + place)}) {option}" for place, option in enumerate(options))
        messages = (Message(role="user", content=_CHOICE.format(question=entry["question"], options=listed)),)
        letter = chr(ord("A") + options.index(entry["right"]))
        made.append((_item(entry["id"], messages, options), Key(item=entry["id"], answer=letter)))
    return _draft("sample_choices", Scorer.CHOICE, source, made)


def _entries(table: str) -> list[dict]:
    return tomllib.loads((files(__package__) / "samples.toml").read_text("utf-8"))[table]


def _item(name: str, messages: tuple[Message, ...], options: tuple[str, ...]) -> Item:
    return Item(
        id=name, cluster=name, messages=messages, options=options, prompt_sha256=Item.prompt_digest(messages, options)
    )


def _draft(exam: str, scorer: Scorer, source: Source, made: list[tuple[Item, Key]]) -> Draft:
    items, keys = zip(*made, strict=True)
    return Draft(exam=exam, scorer=scorer, licence="Apache-2.0", source=source, items=items, keys=keys)
