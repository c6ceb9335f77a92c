"""The answers of our own items, worked out again; the form of the synthetic MRCR, read as text."""

import re
from fractions import Fraction as F
from itertools import combinations, product

from fasttrack_validation.accuracy import build

SIZES = {"seed": 3, "needles": (2, 4, 8), "words": (1000, 3000), "items_each": 8}


def draft(kind):
    return build.build(build.plan(kind, **SIZES))


def monotone(size, blocked):
    """Paths from (0, 0) to (size, size) by single steps that avoid `blocked`, counted step by step."""
    ways = {(0, 0): 1}
    for x, y in product(range(size + 1), repeat=2):
        if (x, y) != (0, 0):
            ways[x, y] = 0 if (x, y) == blocked else ways.get((x - 1, y), 0) + ways.get((x, y - 1), 0)
    return ways[size, size]


def test_integer_answers_by_counting():
    last, coins = 1, [1] + [0] * 100
    for _ in range(2026):
        last = last * 7 % 1000
    for coin in (5, 10, 20, 50):
        for amount in range(coin, 101):
            coins[amount] += coins[amount - coin]
    expected = {
        "int-divisors": sum(not 3600 % d and not d % 12 for d in range(1, 3601)),
        "int-digits": sum(sum(digits) == 10 for digits in product(range(2), *[range(10)] * 3)),
        "int-power": last,
        "int-lattice": sum(x * x + y * y <= 50 for x, y in product(range(-9, 10), repeat=2)),
        "int-paths": monotone(6, (3, 3)),
        "int-triangles": len({tuple(sorted((a, b, 30 - a - b))) for a in range(1, 15) for b in range(16 - a, 15)}),
        "int-coins": coins[100],
        "int-subsets": sum(
            all(b - a > 1 for a, b in zip(chosen, chosen[1:], strict=False))
            for size in range(13) for chosen in combinations(range(12), size)
        ),
    }  # fmt: skip
    assert {key.item: int(key.answer) for key in draft("sample_integers").keys} == expected


def test_choice_answers_by_calculation():
    share = F(10) / (1 + F(10))  # Henderson-Hasselbalch, one unit above the pKa
    expected = {
        "choice-free-fall": {5: "five times as far"}[3**2 - 2**2],
        "choice-capacitors": str((1 / (1 + F(1, 3))) / (1 / (1 + F(1)))),
        "choice-buffer": str(share),
        "choice-decay": str(F(1, 2) / F(1, 2) ** 3),
        "choice-lens": f"{(F(1) + F(1, 3)).numerator}f/{(F(1) + F(1, 3)).denominator}",
        "choice-cross": str(F(2, 4) / (1 - F(1, 4))),
        "choice-gas": "the temperature stays, the entropy rises",
        "choice-orbit": str(round(4**1.5)),
    }
    made = draft("sample_choices")
    chosen = {k.item: i.options["ABCD".index(k.answer)] for i, k in zip(made.items, made.keys, strict=True)}
    assert chosen == expected
    assert len({key.answer for key in made.keys}) > 1  # not always the same letter


def test_the_synthetic_mrcr_reads_as_the_published_one():
    made = draft("mrcr_synthetic")
    asked = re.compile(r"Prepend (\w{10}) to the (\d)\w\w \(1 indexed\) (.+) about (.+)\. Do not include")
    places = set()
    for item, key in zip(made.items, made.keys, strict=True):
        *turns, last = item.messages
        assert [turn.role for turn in item.messages] == ["user", "assistant"] * (len(turns) // 2) + ["user"]
        prefix, place, form, topic = asked.match(last.content).groups()
        pairs = [(a.content, b.content) for a, b in zip(turns[::2], turns[1::2], strict=True)]
        needles = [reply for request, reply in pairs if request == f"Write a {form} about {topic}."]
        assert len(set(needles)) == len(needles) == item.needles
        assert key.answer == prefix + needles[int(place) - 1] and prefix == item.prefix
        assert not any(prefix in turn.content for turn in turns)
        words = sum(len(turn.content.split()) for turn in item.messages)
        assert words == item.words and (wanted := int(item.id.split("-")[2][:-1])) <= words < wanted + 150
        # Neither form nor topic finds the needle.
        others = [request for request, reply in pairs if reply not in needles]
        if wanted == 3000:
            assert any(f" {form} " in request for request in others) and any(topic in request for request in others)
        places.add((item.needles, int(place)))
    assert places == {(n, p + 1) for n in (2, 4, 8) for p in range(n)}
