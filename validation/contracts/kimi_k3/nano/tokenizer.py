"""The nano model's own tokenizer: three marks, printable ASCII, and the words of the generated texts.

Text is cut greedily, longest symbol first; symbols joined give the text back. Nothing is learned and nothing is stored
beside this file, so that a checkpoint's tokens mean the same wherever this package is installed.
"""

import re

from ....errors import UserError

NAMES = (
    "Ada", "Bela", "Carl", "Dora", "Emil", "Fay", "Gus", "Hana", "Ivo", "Jana", "Kim", "Lars", "Mona", "Nils", "Olga",
    "Piet",
)  # fmt: skip
ANIMALS = (
    "cat", "dog", "fox", "hen", "horse", "mouse", "owl", "pig", "sheep", "snake", "swan", "toad", "whale", "wolf",
)  # fmt: skip
THINGS = (
    "ball", "bell", "boat", "book", "box", "chair", "clock", "cup", "drum", "hat", "kite", "lamp", "map", "pen", "ring",
    "ship",
)  # fmt: skip
COLOURS = ("black", "blue", "brown", "green", "grey", "orange", "pink", "purple", "red", "white", "yellow")
PLACES = ("barn", "bridge", "castle", "city", "forest", "garden", "harbour", "hill", "house", "lake", "market", "tower")
VERBS = ("carries", "draws", "finds", "hides", "keeps", "loses", "paints", "sells", "sees", "wants")
OTHERS = (
    "The", "In", "Then", "So", "Later", "the", "a", "in", "of", "is", "at", "and", "near", "who", "has", "had", "was",
    "goes", "to", "sleeps", "runs", "sings", "waits", "there", "again", "with", "it", "colour", "still",
)  # fmt: skip
COMMANDS = ("add ", "times ", "product ", "copy ", "reverse ", "recall ", "code ")

PAD, BOS, EOS = 0, 1, 2
MARKS = ("<pad>", "<bos>", "<eos>")
_WORDS = (*NAMES, *ANIMALS, *THINGS, *COLOURS, *PLACES, *VERBS, *OTHERS)
_TEXT = tuple(
    dict.fromkeys(
        ["\n", *map(chr, range(32, 127)), *COMMANDS, *(form for word in _WORDS for form in (word, " " + word))]
    )
)
SYMBOLS = (*MARKS, *_TEXT)
"""Every symbol; its place is its token id. Marks have no text: ids alone express them."""

_IDS = {symbol: number for number, symbol in enumerate(_TEXT, len(MARKS))}
_CUT = re.compile("|".join(re.escape(symbol) for symbol in sorted(_TEXT, key=len, reverse=True)))


def encode(text: str) -> list[int]:
    """Token ids of `text`, without marks. Raises UserError for a character that is no symbol."""
    found = _CUT.findall(text)
    if sum(map(len, found)) != len(text):
        odd = next(character for character in text if character not in _IDS)
        raise UserError(f"the nano tokenizer has no symbol for {odd!r}", "use printable ASCII and line feeds")
    return [_IDS[symbol] for symbol in found]


def decode(tokens: list[int]) -> str:
    """The text of token ids; marks become their names. Raises UserError for an id that is no symbol."""
    if odd := [token for token in tokens if not 0 <= token < len(SYMBOLS)]:
        raise UserError(f"token {odd[0]} is no symbol", f"ids go from 0 to {len(SYMBOLS) - 1}; the rest is padding")
    return "".join(SYMBOLS[token] for token in tokens)
