"""Scores of constructed answers: the published MRCR definition to the character, and the two parsers."""

from difflib import SequenceMatcher

import pytest

from fasttrack_validation.accuracy.frozen import Item, Key, Message, Scorer
from fasttrack_validation.accuracy.scoring import mrcr, score


def item(options=(), prefix=""):
    messages = (Message(role="user", content="?"),)
    return Item(id="i", cluster="i", messages=messages, options=options, prefix=prefix, prompt_sha256="0" * 64)


def published(response, answer, random_string_to_prepend):
    """The grader printed on the data set's page."""
    if not response.startswith(random_string_to_prepend):
        return 0
    response = response.removeprefix(random_string_to_prepend)
    answer = answer.removeprefix(random_string_to_prepend)
    return float(SequenceMatcher(None, response, answer).ratio())


ANSWER = "aB3dE6gH9k" + "The quiet river carries the bell. " * 8


@pytest.mark.parametrize(
    "text",
    [ANSWER, " " + ANSWER, "<think>which one?</think>" + ANSWER, "", "aB3dE6gH9k", ANSWER[:100], ANSWER + " Done.",
     ANSWER.lower(), "aB3dE6gH9k " + ANSWER[10:], "Here it is: " + ANSWER],
)  # fmt: skip
def test_mrcr_is_scored_as_published(text):
    found = mrcr(text, ANSWER, "aB3dE6gH9k")
    assert found.score == published(text, ANSWER, "aB3dE6gH9k")
    assert found.parsed == text.startswith("aB3dE6gH9k")


def test_mrcr_by_hand():
    assert mrcr(ANSWER, ANSWER, "aB3dE6gH9k").score == 1
    assert mrcr(" " + ANSWER, ANSWER, "aB3dE6gH9k").score == 0  # one leading space
    # 2 M / T: "abcd" against "abxd" share "ab" and "d".
    assert mrcr("P-abxd", "P-abcd", "P-").score == pytest.approx(2 * 3 / 8)


def test_autojunk_stays_on():
    """Beyond 200 characters, ones that make up more than 1 % are junk to the published scorer: a ratio of 0 here."""
    answer, text = "P" + "ab" * 150, "P" + "xab"
    assert mrcr(text, answer, "P").score == 0
    assert SequenceMatcher(None, text[1:], answer[1:], autojunk=False).ratio() > 0


@pytest.mark.parametrize(
    ("text", "parsed", "right"),
    [("so 12 * 2 = 24.\nAnswer: 24", True, True), ("Answer: 7\nNo.\nAnswer: 24.", True, True),
     ("**Answer: 24**", True, True), (r"thus \boxed{024}", True, True), ("Answer: 24\nAnswer: 25", True, False),
     ("Answer: $24$", True, True), ("the answer is 24", False, False), ("Answer: 24.5", False, False),
     ("Answer: 1,024", False, False), ("", False, False), ("Answer: N", False, False)],
)  # fmt: skip
def test_integers(text, parsed, right):
    found = score(Scorer.INTEGER, item(), Key(item="i", answer="24"), text)
    assert (found.parsed, found.score) == (parsed, float(right))


@pytest.mark.parametrize(
    ("text", "parsed", "right"),
    [("Answer: B", True, True), ("answer: (b)", True, True), ("**Answer:** B", True, True), ("Answer: A", True, False),
     ("Answer: B\nAnswer: C", True, False), ("Answer: E", False, False), ("Answer: Because", False, False),
     ("B", False, False), ("", False, False)],
)  # fmt: skip
def test_choices(text, parsed, right):
    found = score(Scorer.CHOICE, item(options=("w", "x", "y", "z")), Key(item="i", answer="B"), text)
    assert (found.parsed, found.score) == (parsed, float(right))
