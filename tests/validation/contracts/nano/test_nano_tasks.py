"""The generated texts say what is true, are cut into symbols without loss, and keep training from what is held out."""

import re
from random import Random

import pytest
from fasttrack_validation.contracts.kimi_k3.architecture import Architecture
from fasttrack_validation.contracts.kimi_k3.nano import CONFIG
from fasttrack_validation.contracts.kimi_k3.nano.batches import prefetched, training_batch
from fasttrack_validation.contracts.kimi_k3.nano.tasks import TASKS, sample
from fasttrack_validation.contracts.kimi_k3.nano.tokenizer import BOS, EOS, SYMBOLS, decode, encode
from fasttrack_validation.errors import UserError


def texts(task: str, count: int, size: int = 300, held_out: bool = False) -> list[str]:
    random = Random(7)
    drawn = [sample(task, random, size, held_out=held_out).tokens for _ in range(count)]
    assert all(ids[0] == BOS and ids[-1] == EOS for ids in drawn)
    return [decode(ids[1:-1]) for ids in drawn]


def test_symbols_are_one_to_one_and_fit_the_vocabulary():
    assert len(set(SYMBOLS)) == len(SYMBOLS) <= Architecture.from_config(CONFIG).vocab_size
    text = "Ada sees the cat.\nadd 12 x; {Zebra} colourless"
    assert decode(encode(text)) == text
    assert len(encode(" the cat of Ada")) == 4
    with pytest.raises(UserError, match="no symbol for 'é'"):
        encode("café")
    with pytest.raises(UserError, match=f"token {len(SYMBOLS)} is no symbol"):
        decode([len(SYMBOLS)])


def test_sums_and_their_working():
    seen = set()
    for text in texts("arithmetic", 200):
        command, left, right, working, result = re.fullmatch(r"(\w+) (\d+) (\d+)\n(.*)=(\d+)\n", text, re.S).groups()
        seen.add(command)
        expected = int(left) + int(right) if command == "add" else int(left) * int(right)
        assert int(result) == expected
        steps = working.splitlines()
        for step in steps:
            a, sign, b, carry, digit, next_carry = re.fullmatch(r"(\d)([+*])(\d)\+(\d)=(\d)c(\d)", step).groups()
            value = (int(a) + int(b) if sign == "+" else int(a) * int(b)) + int(carry)
            assert value == 10 * int(next_carry) + int(digit)
        # The carry of each step enters the next; digits and the last carry, read backwards, are the result.
        assert [step[4] for step in steps] == ["0", *(step[-1] for step in steps[:-1])]
        assert int(steps[-1][-1] + "".join(step[6] for step in reversed(steps))) == expected
    assert seen == {"add", "times"}


def test_products_and_copies():
    for text in texts("product", 100):
        left, right, result = map(int, re.fullmatch(r"product (\d+) (\d+)\n=(\d+)\n", text).groups())
        assert result == left * right
    commands = set()
    for text in texts("copying", 100):
        command, given, answer = re.fullmatch(r"(\w+) (\w+)\n(\w+)\n", text).groups()
        commands.add(command)
        assert answer == (given if command == "copy" else "".join(reversed(given)))
    assert commands == {"copy", "reverse"}


@pytest.mark.parametrize("size", [300, 5000])
def test_what_is_recalled_was_said_once_and_the_text_is_as_long_as_asked(size):
    random = Random(3)
    for _ in range(5):
        tokens = sample("retrieval", random, size, held_out=False).tokens
        assert 0.8 * size < len(tokens) <= size + 2  # the marks
        text = decode(tokens[1:-1])
        codes = re.findall(r"^code (\w+) (\d{4})$", text, re.M)
        assert len(codes) == len(dict(codes)) >= 4
        asked = re.findall(r"^recall (\w+) (\d{4})$", text, re.M)
        assert len(asked) == min(8, len(codes)) and all(dict(codes)[key] == code for key, code in asked)
        assert text.index("recall") > max(text.index(f"code {key}") for key, _ in asked)


@pytest.mark.parametrize("task", TASKS)
def test_the_answer_is_marked_and_nothing_before_it(task):
    drawn = sample(task, Random(5), 300, held_out=True)
    answer = decode([token for token, asked in zip(drawn.tokens, drawn.answer, strict=True) if asked])
    pattern = {
        "arithmetic": r"(.*c\d\n)+=\d+\n",
        "product": r"=\d+\n",
        "copying": r"\w+\n",
        "retrieval": r"(\d{4}\n){4,8}",
        "prose": r"([A-Z].*\.\n)+",
    }[task]
    assert re.fullmatch(pattern, answer)


@pytest.mark.parametrize("task", ["arithmetic", "product", "copying"])
def test_no_problem_is_both_trained_on_and_held_out(task):
    """Small problems repeat, so a split by seeds alone would share them: the same draws from one seed share none."""
    trained, held_out = (set(texts(task, 3000, held_out=side)) for side in (False, True))
    assert not trained & held_out
    assert len(held_out) > 100


def test_batches_are_a_function_of_seed_and_step():
    def equal(left, right) -> bool:
        return left.tokens.equal(right.tokens) and left.answer.equal(right.answer)

    first = training_batch(1, 4, 1024, (128, 256))
    assert equal(first, training_batch(1, 4, 1024, (128, 256)))
    assert not equal(first, training_batch(2, 4, 1024, (128, 256)))
    assert first.tokens.shape == (len(first.answer), first.answer.shape[1] + 1)
    assert first.answer.numel() == 1024 and 0.1 < first.answer.float().mean() < 0.9
    batches = prefetched(1, 3, 1024, (128, 256), workers=0)
    next(batches)
    assert equal(next(batches), first)


@pytest.mark.slow
def test_batches_made_ahead_are_the_same():
    alone, ahead = (prefetched(1, 0, 512, (128,), workers=workers) for workers in (0, 1))
    for _ in range(6):
        mine, theirs = next(alone), next(ahead)
        assert mine.tokens.equal(theirs.tokens) and mine.answer.equal(theirs.answer)
    ahead.close()
