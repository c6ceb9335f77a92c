"""Published exams, frozen: AIME25, GPQA-Diamond and MRCR, from the files of their datasets.

Nothing of them is kept in this repository. GPQA's authors ask that its questions are not shown in the open: what is
frozen stays where it is built.
"""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..errors import UserError
from ..records import sha256
from . import hub
from .draw import Draw
from .frozen import Draft, Item, Key, Message, Scorer, Source

NEEDLES = (2, 4, 8)
BIN_EDGES = (4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576)
"""MRCR's published length bins, in tokens of o200k_base, prompt and answer together; the first holds its lower edge."""

_AIME = "{problem}\n\nReason step by step, and put your final answer within \\boxed{{}}."
_GPQA = "{question}\n\n{options}\n\nReason step by step. End with one line `Answer: X`, X the letter of an option."
_MOST_CHOICES = 4


@dataclass(frozen=True)
class Dataset:
    """Where an exam is published. `revision`: the commit that is taken unless another is asked for."""

    repository: str
    revision: str
    scorer: Scorer
    licence: str
    files: Callable[[Source], tuple[str, ...]]
    items: int | None
    """As published; None where the choice of needles and lengths decides."""


DATASETS = {
    "aime25": Dataset(
        "math-ai/aime25", "563bb8404243c5f09de6ec262f2db674fe5bce9b", Scorer.INTEGER,
        "problems: Mathematical Association of America; not redistributed", lambda source: ("test.jsonl",), 30,
    ),
    "gpqa_diamond": Dataset(
        "Idavidrein/gpqa", "main", Scorer.CHOICE, "CC-BY-4.0, gated; its authors ask not to publish the questions",
        lambda source: ("gpqa_diamond.csv",), 198,
    ),
    "mrcr": Dataset(
        "openai/mrcr", "f4c69fae7cf81f7ca26b9fee34b392a50f6b8a1d", Scorer.MRCR, "MIT",
        lambda source: tuple(f"{n}needle/{n}needle_{part}.parquet" for n in source.needles for part in (0, 1)), None,
    ),
}  # fmt: skip

Count = Callable[[str], int]
"""Tokens of a text."""


def plan(kind: str, *, seed: int, needles: Sequence[int], max_tokens: int | None, revision: str | None) -> Source:
    """What `build` needs for `kind`, one of `DATASETS`. Raises UserError for needles that are not published."""
    chosen = revision or DATASETS[kind].revision
    if kind != "mrcr":
        return Source(kind=kind, seed=seed, revision=chosen)
    if not needles or set(needles) - set(NEEDLES) or len(set(needles)) < len(needles):
        raise UserError("MRCR is published with 2, 4 and 8 needles", "correct --needles; mrcr_synthetic has others")
    return Source(kind=kind, seed=seed, needles=tuple(needles), max_tokens=max_tokens, revision=chosen)


def build(source: Source, *, count: Count | None = None) -> Draft:
    """The exam of `source`, fetched at its revision; the source of the draft holds the commit and the files' digests.

    `count` counts the tokens of MRCR's lengths: o200k_base unless given. Raises UserError: what was fetched is not what
    is published, or cannot be fetched.
    """
    dataset = DATASETS[source.kind]
    commit, files = hub.fetch(dataset.repository, str(source.revision), dataset.files(source))
    make = {"aime25": _aime, "gpqa_diamond": _gpqa, "mrcr": _mrcr}[source.kind]
    try:
        made = make(source, files, count) if make is _mrcr else make(source, files)
    except (KeyError, ValueError, TypeError, csv.Error) as error:
        # A KeyError names a column; the others may quote a row.
        what = f"no column {error}" if isinstance(error, KeyError) else type(error).__name__
        raise UserError(
            f"{dataset.repository} at {commit} does not have the published form: {what}", "give another --revision"
        ) from None
    if not made or dataset.items not in (None, len(made)):
        raise UserError(
            f"{dataset.repository} at {commit} gives {len(made)} items, {dataset.items or 'some'} are published",
            "give another --revision, or a larger --max-tokens",
        )
    items, keys = zip(*made, strict=True)
    told = source.model_copy(update={
        "repository": dataset.repository, "revision": commit,
        "files": {name: sha256(data) for name, data in sorted(files.items())},
    })  # fmt: skip
    return Draft(
        exam=source.kind, scorer=dataset.scorer, licence=dataset.licence, source=told, items=items, keys=keys
    )


def bin_of(tokens: int) -> str:
    """The published length bin of so many tokens."""
    if tokens < BIN_EDGES[0]:
        return f"below {BIN_EDGES[0]}"
    for low, high in pairwise(BIN_EDGES):
        if tokens <= high:
            return f"{low} to {high}"
    return f"above {BIN_EDGES[-1]}"


def _aime(source: Source, files: Mapping[str, bytes]) -> list[tuple[Item, Key]]:
    made = []
    for number, row in enumerate(_json_lines(files["test.jsonl"])):
        answer = str(row["answer"]).strip().strip("$").removesuffix("^\\circ").strip()
        if not (answer.isascii() and answer.isdigit() and 0 <= int(answer) <= 999):
            raise UserError(f"AIME25, row {number}: its answer is no integer from 0 to 999", "give another --revision")
        messages = (Message(role="user", content=_AIME.format(problem=row["problem"].strip())),)
        made.append(_pair(f"aime25-{number:02}", messages, str(int(answer))))
    return made


def _gpqa(source: Source, files: Mapping[str, bytes]) -> list[tuple[Item, Key]]:
    made = []
    for row in csv.DictReader(io.StringIO(files["gpqa_diamond.csv"].decode("utf-8-sig"), newline="")):
        name = row["Record ID"].strip()
        right = row["Correct Answer"].strip()
        wrong = [row[f"Incorrect Answer {place}"].strip() for place in range(1, _MOST_CHOICES)]
        options = tuple(Draw("options", source.seed, name).shuffled([right, *wrong]))
        listed = "\n".join(f"{chr(ord('A') + place)}) {option}" for place, option in enumerate(options))
        text = _GPQA.format(question=row["Question"].strip(), options=listed)
        letter = chr(ord("A") + options.index(right))
        made.append(_pair(f"gpqa-{name}", (Message(role="user", content=text),), letter, options=options))
    return made


def _mrcr(source: Source, files: Mapping[str, bytes], count: Count | None) -> list[tuple[Item, Key]]:
    count = count or _o200k()
    made = []
    for name, data in files.items():
        for number, row in enumerate(_parquet(data)):
            messages = tuple(Message.model_validate(turn) for turn in json.loads(row["prompt"]))
            answer, prefix = row["answer"], row["random_string_to_prepend"]
            tokens = sum(count(turn.content) for turn in messages) + count(answer)
            if source.max_tokens is not None and tokens > source.max_tokens:
                continue
            shared = sha256("\0".join(turn.content for turn in messages[:-1]).encode())[:16]
            part = name.rpartition("_")[2].removesuffix(".parquet")
            made.append(_pair(
                f"openai-{row['n_needles']}n-{part}-{number:04}", messages, answer, prefix=prefix, tokens=tokens,
                needles=int(row["n_needles"]), cluster=f"text-{shared}",
            ))  # fmt: skip
    return made


def _pair(name: str, messages: tuple[Message, ...], answer: str, **more: object) -> tuple[Item, Key]:
    options = more.get("options", ())
    fields = {"cluster": name, **more}
    item = Item(id=name, messages=messages, prompt_sha256=Item.prompt_digest(messages, options), **fields)
    return item, Key(item=name, answer=answer)


def _json_lines(data: bytes) -> list[dict]:
    return [json.loads(line) for line in data.decode("utf-8").split("\n") if line.strip()]


def _parquet(data: bytes) -> list[dict]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError("the package pyarrow is not installed", "pip install 'fasttrack[exams]'") from None
    try:
        return pyarrow.parquet.read_table(pyarrow.BufferReader(data)).to_pylist()
    except pyarrow.ArrowException as error:
        raise ValueError(str(error)) from error


def _o200k() -> Count:
    try:
        import tiktoken
    except ImportError:
        raise UserError("the package tiktoken is not installed", "pip install 'fasttrack[exams]'") from None
    try:
        encoding = tiktoken.get_encoding("o200k_base")
    except Exception as error:  # tiktoken downloads with requests, and passes on whatever that raises
        raise UserError(
            f"the tokenizer o200k_base cannot be fetched ({type(error).__name__})",
            "connect once, or set TIKTOKEN_CACHE_DIR to a directory that holds it",
        ) from error
    return lambda text: len(encoding.encode(text, disallowed_special=()))
