"""A frozen exam: a directory with `manifest.json`, `items.jsonl` and, apart from what is shown to anyone, `key.jsonl`.

Prompts are complete and options already ordered, so that every machine sits the same exam. The manifest holds the
digests of both files; the digest of the manifest names the exam. `verify.py` reads it back.
"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

from pydantic import Field

from ..errors import UserError
from ..records import Frozen, canonical_json, sha256

MANIFEST, ITEMS, KEY = "manifest.json", "items.jsonl", "key.jsonl"


class Scorer(StrEnum):
    """How an answer becomes a score (`scoring.py`)."""

    INTEGER = "integer"
    CHOICE = "choice"
    MRCR = "mrcr"
    LAST_LINE = "last_line"


class Message(Frozen):
    """One turn of a prompt."""

    role: Literal["system", "user", "assistant"]
    content: str


class Item(Frozen):
    """What is asked. Holds nothing that tells the answer apart from what the question itself says."""

    id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    cluster: str
    """Items that share a text share a cluster: their errors are not independent. Otherwise the item's own id."""
    messages: tuple[Message, ...] = Field(min_length=1)
    options: tuple[str, ...] = ()
    prefix: str = ""
    """MRCR: what an answer has to start with. The prompt asks for it."""
    needles: int | None = None
    words: int | None = None
    """Length of the prompt in words, where the exam is about length."""
    tokens: int | None = None
    """Length of prompt and answer in tokens of the published tokenizer, where length bins are published."""
    prompt_sha256: str

    @staticmethod
    def prompt_digest(messages: Sequence[Message], options: Sequence[str]) -> str:
        """SHA-256 of the prompt, order of options included."""
        return sha256(canonical_json([[m.model_dump() for m in messages], list(options)]).encode())


class Key(Frozen):
    """The answer to one item. Never shown: not in a prompt, a log, an error or a report."""

    item: str
    answer: str = Field(repr=False)


class Source(Frozen):
    """Where the items come from; for offline kinds enough to build them again."""

    kind: str
    seed: int = Field(ge=0)
    needles: tuple[int, ...] = ()
    words: tuple[int, ...] = ()
    items_each: int | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    """Longer items were left out."""
    repository: str | None = None
    revision: str | None = None
    """Published kinds: the commit of the dataset."""
    files: dict[str, str] = {}
    """Published kinds: SHA-256 of each file as fetched, by name."""


class Manifest(Frozen):
    """What the directory holds."""

    format: Literal["fasttrack.exam/1"] = "fasttrack.exam/1"
    exam: str
    scorer: Scorer
    items: int = Field(ge=1)
    licence: str
    source: Source
    files: dict[str, str]
    """SHA-256 of each file beside the manifest, by name."""


@dataclass(frozen=True)
class Exam:
    """A frozen exam in memory; `keys` by item id."""

    manifest: Manifest
    items: tuple[Item, ...]
    keys: Mapping[str, Key]

    @property
    def digest(self) -> str:
        """The exam's name for machines: the digest of its manifest, and through it of every item and answer."""
        return self.manifest.digest()


@dataclass(frozen=True)
class Draft:
    """Items and answers before they are frozen."""

    exam: str
    scorer: Scorer
    licence: str
    source: Source
    items: tuple[Item, ...]
    keys: tuple[Key, ...]

    def files(self) -> dict[str, bytes]:
        """Every file of the directory, byte for byte."""
        return {**self._held(), MANIFEST: (self.manifest().canonical_json() + "\n").encode()}

    def manifest(self) -> Manifest:
        """What the directory will say that it holds."""
        held = self._held()
        return Manifest(
            exam=self.exam, scorer=self.scorer, items=len(self.items), licence=self.licence, source=self.source,
            files={name: sha256(data) for name, data in held.items()},
        )  # fmt: skip

    def _held(self) -> dict[str, bytes]:
        return {ITEMS: _lines(self.items), KEY: _lines(self.keys)}


def write(draft: Draft, out: Path) -> None:
    """Freezes `draft` into the new directory `out`, whole or not at all.

    Raises UserError where `out` exists: a frozen exam is not written over. OSError (a full disk) passes through.
    """
    if out.exists():
        raise UserError(f"{out} exists", "a frozen exam is not written over: choose another directory, or remove it")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as place:
        made = Path(place) / "exam"
        made.mkdir()
        for name, data in draft.files().items():
            with (made / name).open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        made.rename(out)


def _lines(records: Sequence[Frozen]) -> bytes:
    return "".join(record.canonical_json() + "\n" for record in records).encode()
