"""Held-out accuracies: how much of each task's answers a model predicts, given all that stands before."""

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

from pydantic import Field

from ....records import Frozen
from .tasks import Sample, sample

Predict = Callable[[Sequence[list[int]]], list[list[int]]]
"""Token ids of several sequences -> for each the likeliest next token after every one of its tokens."""

SUITES = (
    ("arithmetic", 256),
    ("product", 256),
    ("copying", 256),
    ("prose", 256),
    ("retrieval", 512),
    ("retrieval", 4096),
    ("retrieval", 20480),
)
"""(task, tokens of a text where its size is free)."""


class Accuracy(Frozen):
    """Of one task on held-out problems. An answer counts as right when every one of its tokens is the likeliest."""

    task: str
    size: int = Field(description="tokens of a text, where its size is free")
    samples: int
    answers: int
    answers_right: int
    tokens: int
    tokens_right: int
    commonest: int = Field(description="tokens that one fixed guess, the commonest of all answers, would get right")

    def __str__(self) -> str:
        return (
            f"{self.task:<10} {self.size:>6}  answers {self.answers_right / self.answers:6.1%} of {self.answers:>5}"
            f"  tokens {self.tokens_right / self.tokens:6.1%} of {self.tokens:>6}"
            f"  (one fixed guess {self.commonest / self.tokens:5.1%})"
        )


def measure_all(predict: Predict, *, longest: int, samples: int, seed: int) -> list[Accuracy]:
    """Every suite of up to `longest` tokens, the short ones in any case; texts over 1,024 tokens a quarter as many."""
    return [
        measure(predict, task, size, samples if size <= 1024 else -(-samples // 4), seed)
        for task, size in SUITES
        if size <= max(longest, 256)
    ]


def measure(predict: Predict, task: str, size: int, samples: int, seed: int) -> Accuracy:
    """The accuracy of `predict` on `samples` held-out problems drawn from `seed`."""
    random = Random(f"held-out:{seed}:{task}:{size}")
    drawn = [sample(task, random, size, held_out=True) for _ in range(samples)]
    predicted = predict([one.tokens for one in drawn])
    answers = [answer for one, ids in zip(drawn, predicted, strict=True) for answer in graded(one, ids)]
    tokens = [token for one in drawn for token, asked in zip(one.tokens, one.answer, strict=True) if asked]
    return Accuracy(
        task=task,
        size=size,
        samples=samples,
        answers=len(answers),
        answers_right=sum(all(answer) for answer in answers),
        tokens=len(tokens),
        tokens_right=sum(sum(answer) for answer in answers),
        commonest=Counter(tokens).most_common(1)[0][1],
    )


def graded(one: Sample, predicted: list[int]) -> list[list[bool]]:
    """Of each answer in the sample, whether each of its tokens was predicted from the token before it."""
    answers: list[list[bool]] = []
    for place in range(1, len(one.tokens)):
        if one.answer[place]:
            if not one.answer[place - 1]:
                answers.append([])
            answers[-1].append(predicted[place - 1] == one.tokens[place])
    return answers
