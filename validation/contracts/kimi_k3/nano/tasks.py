"""The texts that the nano model learns: each a problem that is drawn, and an answer that follows from it.

A problem is held out when a digest of it says so, whichever seed drew it: training never sees an eighth of all sums,
products, strings, keys and stories, and accuracies are measured on those alone.
"""

import hashlib
import string
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from .tokenizer import ANIMALS, BOS, COLOURS, EOS, NAMES, PLACES, THINGS, VERBS, encode

HELD_OUT_OF = 8
"""One problem of so many is held out."""


@dataclass(frozen=True)
class Problem:
    """A text in parts, of which some are to be predicted."""

    identity: str
    """what makes it this problem and no other: decides whether it is held out"""
    parts: tuple[tuple[str, bool], ...]
    """(text, whether it follows from what stands before it)"""

    @property
    def held_out(self) -> bool:
        """Whether training must not see it."""
        return hashlib.blake2b(self.identity.encode(), digest_size=8).digest()[0] % HELD_OUT_OF == 0


@dataclass(frozen=True)
class Sample:
    """A problem in tokens, begun and ended by a mark."""

    tokens: list[int]
    answer: list[bool]
    """of each token, whether it is part of the answer"""


Draw = Callable[[Random, int], Problem]
"""(random numbers, tokens that the text should have at most) -> a problem."""


def arithmetic(random: Random, size: int) -> Problem:
    """A sum of two numbers of up to ten digits, or a product with one digit, worked from the last digit on."""
    digits = random.randint(1, 10)
    left = random.randrange(10**digits)
    if random.random() < 0.5:
        right = random.randrange(10**digits)
        problem, working, result = f"add {left} {right}\n", _addition(left, right), left + right
    else:
        right = random.randint(2, 9)
        problem, working, result = f"times {left} {right}\n", _multiplication(left, right), left * right
    return Problem(problem, ((problem, False), (f"{working}={result}\n", True)))


def product(random: Random, size: int) -> Problem:
    """A product of two numbers of one to three digits, without working: hard for so small a model."""
    left, right = (random.randrange(10 ** random.randint(1, 3)) for _ in "ab")
    problem = f"product {left} {right}\n"
    return Problem(problem, ((problem, False), (f"={left * right}\n", True)))


def copying(random: Random, size: int) -> Problem:
    """8 to 96 random characters, to be repeated or reversed."""
    text = "".join(random.choices(string.ascii_lowercase + string.digits, k=random.randint(8, 96)))
    command, answer = random.choice((("copy", text), ("reverse", text[::-1])))
    return Problem(f"{command} {text}", ((f"{command} {text}\n", False), (answer + "\n", True)))


def retrieval(random: Random, size: int) -> Problem:
    """Codes of four digits strewn over prose of `size` tokens, of which several are asked for at its end."""
    needles = random.randint(4, max(4, min(24, size // 24)))
    keys: dict[str, str] = {}
    while len(keys) < needles:
        keys["".join(random.choices(string.ascii_lowercase, k=3))] = f"{random.randrange(10_000):04}"
    asked = random.sample(sorted(keys), min(8, needles))
    # Tokens of a needle ("code abc 1234", its first word one symbol) and of a question.
    lines, length = [], 10 * needles + 10 * len(asked)
    while (length := length + len(encode(story := " ".join(_story(random)) + "\n"))) <= size:
        lines.append(story)
    for key, code in keys.items():
        lines.insert(random.randint(0, len(lines)), f"code {key} {code}\n")
    parts: list[tuple[str, bool]] = [("".join(lines), False)]
    for key in asked:
        parts += [(f"recall {key} ", False), (f"{keys[key]}\n", True)]
    return Problem(f"{keys}", tuple(parts))


def prose(random: Random, size: int) -> Problem:
    """Short stories: grammar and what was said before decide many words, chance the others."""
    stories = "".join(" ".join(_story(random)) + "\n" for _ in range(random.randint(2, 5)))
    return Problem(stories, ((stories, True),))


TASKS: dict[str, Draw] = {
    "arithmetic": arithmetic,
    "product": product,
    "copying": copying,
    "retrieval": retrieval,
    "prose": prose,
}


def sample(task: str, random: Random, size: int, *, held_out: bool) -> Sample:
    """A problem of `task` from the training side or the held-out one, of about `size` tokens where sizes are free."""
    while True:
        problem = TASKS[task](random, size)
        if problem.held_out == held_out:
            break
    tokens, answer = [BOS], [False]
    for text, predicted in problem.parts:
        part = encode(text)
        tokens += part
        answer += [predicted] * len(part)
    return Sample([*tokens, EOS], [*answer, False])


def _addition(left: int, right: int) -> str:
    """One step a digit, last digit first: 7+5+0=2c1 adds 7, 5 and the carry 0."""
    steps, carry = [], 0
    for _ in range(max(len(str(left)), len(str(right)))):
        total = left % 10 + right % 10 + carry
        steps.append(f"{left % 10}+{right % 10}+{carry}={total % 10}c{total // 10}\n")
        left, right, carry = left // 10, right // 10, total // 10
    return "".join(steps)


def _multiplication(left: int, right: int) -> str:
    """One step a digit, last digit first: 7*5+0=5c3 multiplies 7 by 5 and adds the carry 0."""
    steps, carry = [], 0
    for digit in map(int, reversed(str(left))):
        total = digit * right + carry
        steps.append(f"{digit}*{right}+{carry}={total % 10}c{total // 10}\n")
        carry = total // 10
    return "".join(steps)


def _story(random: Random) -> list[str]:
    """Three to five sentences about one name, one animal and one thing that has a colour."""
    name, animal, thing = random.choice(NAMES), random.choice(ANIMALS), random.choice(THINGS)
    colour, place = random.choice(COLOURS), random.choice(PLACES)
    first = [f"{name} has a {colour} {thing} and a {animal}."]
    later = [
        f"The {animal} of {name} sleeps near the {place}.",
        f"{name} {random.choice(VERBS)} the {colour} {thing} at the {random.choice(PLACES)}.",
        f"The colour of the {thing} is {colour}.",
        f"Then {name} goes to the {place} with the {animal}.",
        f"The {thing} in the {place} was {colour}.",
        f"Later the {animal} {random.choice(VERBS)} the {thing}.",
    ]
    return first + random.sample(later, random.randint(2, 4))
