"""Exams of the small model's own problems: right answers, held out from training, verified by building them again."""

import hashlib

import pytest

from fasttrack_validation.accuracy import build, frozen, small
from fasttrack_validation.accuracy.frozen import KEY, Scorer
from fasttrack_validation.accuracy.scoring import score
from fasttrack_validation.accuracy.verify import load, verify


def answer(prompt):
    """Worked out again from the text of the problem."""
    command, *given = prompt.split()
    match command:
        case "add":
            return f"={int(given[0]) + int(given[1])}"
        case "times" | "product":
            return f"={int(given[0]) * int(given[1])}"
        case "copy":
            return given[0]
        case "reverse":
            return given[0][::-1]


@pytest.mark.parametrize("kind", small.kinds())
def test_an_exam_is_right_held_out_and_the_same_when_built_again(kind, tmp_path):
    source = build.plan(kind, seed=5, items_each=40)
    frozen.write(build.build(source), tmp_path / "exam")
    exam = load(tmp_path / "exam")
    assert exam.manifest.scorer is Scorer.LAST_LINE and len(exam.items) == 40
    assert len({item.messages for item in exam.items}) == 40
    for item in exam.items:
        (message,) = item.messages
        assert exam.keys[item.id].answer == answer(message.content)
        identity = message.content if "copying" not in kind else message.content.rstrip("\n")
        assert hashlib.blake2b(identity.encode(), digest_size=8).digest()[0] % 8 == 0, "seen in training"
    key = tmp_path / "exam" / KEY
    key.write_text(key.read_text().replace('"answer":"', '"answer":"x', 1))
    assert {one.reason for one in verify(tmp_path / "exam")[1]} >= {"file_changed", "not_rebuilt"}


def test_all_kinds_of_the_nano_model_are_there():
    assert {"kimi_k3_nano_arithmetic", "kimi_k3_nano_product", "kimi_k3_nano_copying"} <= set(small.kinds())


@pytest.mark.parametrize(("text", "value", "parsed"), [
    ("1+2+0=3c0\n=3\n", 1, True), ("=3", 1, True), (" =3 \n\n", 1, True), ("=3\n=4\n", 0, True), ("", 0, False),
    ("\n \n", 0, False), ("= 3", 0, True), ("so =3", 0, True),
])  # fmt: skip
def test_the_last_line_is_the_answer(text, value, parsed):
    item = build.build(build.plan("kimi_k3_nano_product", items_each=1)).items[0]
    found = score(Scorer.LAST_LINE, item, frozen.Key(item=item.id, answer="=3"), text)
    assert (found.score, found.parsed) == (value, parsed)
