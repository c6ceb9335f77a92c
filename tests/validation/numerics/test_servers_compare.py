"""Verdicts over scores that were made up: noise by known distributions, faults of known size."""

import numpy as np
import pytest

from fasttrack_validation.numerics.servers.compare import LEAST, Scores, judged
from fasttrack_validation.numerics.whole_model.findings import Result

COUNT, WORDS = 1500, 12


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def made(arms, *, seed=0, top=6):
    """Scores of one prompt; `arms`: name -> logits [tokens, words] from the exact ones."""
    random = np.random.default_rng(seed)
    exact = random.normal(0, 2, (COUNT, WORDS))
    # Every hundredth token is a near tie.
    order = np.argsort(-exact, -1)
    rows = np.arange(0, COUNT, 100)
    exact[rows, order[rows, 1]] = exact[rows, order[rows, 0]] - 1e-3
    tokens = random.integers(0, WORDS, COUNT)
    log_probs, tops = {}, {}
    for name, change in arms.items():
        scores = log_softmax(change(exact.copy(), np.random.default_rng([seed, *name.encode()])))
        log_probs[name] = scores[np.arange(COUNT), tokens]
        best = np.argsort(-scores, -1, kind="stable")[:, :top]
        tops[name] = [{int(t): float(scores[row, t]) for t in each} for row, each in enumerate(best)]
    return Scores(("a",) * COUNT, np.arange(1, COUNT + 1), tokens, log_probs, tops)


def same(exact, random):
    return exact


def noisy(size):
    return lambda exact, random: exact + random.normal(0, size, exact.shape)


def fixed(exact, random):
    """An error that is the same each time, about 0.014 in the root mean square."""
    return exact + 0.02 * np.sin(np.arange(exact.size) * 1.7).reshape(exact.shape)


def wrong_once(exact, random):
    exact = noisy(0.02)(exact, random)
    exact[777] = exact[777][::-1]
    return exact


def wrong_after(exact, random):
    """Everything behind the first kibitoken: a fault that a mean over all would dilute."""
    exact = noisy(0.02)(exact, random)
    exact[1024:] += random.normal(0, 0.1, exact[1024:].shape)
    return exact


HONEST = {"oracle": same, "stock": noisy(0.02), "again-1": noisy(0.02), "control-1": noisy(0.02)}


@pytest.mark.parametrize("oracle", [True, False])
def test_an_equal_candidate_passes_and_faults_fail_where_they_are(oracle):
    arms = HONEST if oracle else {name: change for name, change in HONEST.items() if name != "oracle"}
    for seed in range(4):
        fine = judged(made(arms | {"candidate": noisy(0.02)}, seed=seed))
        assert fine.result is Result.PASS, fine.text
        assert fine.flips.ties >= 1 and fine.flips.bugs == 0
    once = judged(made(arms | {"candidate": wrong_once}))
    assert once.result is Result.FAIL and once.worst[0].position == 778
    assert {check.where.position for check in once.checks if check.result is Result.FAIL} == {778}
    assert once.flips.bugs == 1
    late = judged(made(arms | {"candidate": wrong_after}))
    failed = [check for check in late.checks if check.result is Result.FAIL]
    assert late.result is Result.FAIL and {check.band for check in failed} <= {"1k-8k", "all"}
    assert any(check.name == "log_prob, median" for check in failed)
    noise = judged(made(arms | {"candidate": noisy(0.04)}))
    assert noise.result is Result.FAIL and "median" in noise.text


def first(of, count):
    """The first tokens of scores."""
    return Scores(
        of.prompts[:count], of.positions[:count], of.tokens[:count],
        {name: column[:count] for name, column in of.log_probs.items()}, {name: rows[:count] for name, rows in of.tops.items()},
    )  # fmt: skip


def test_few_tokens_pass_nothing_and_still_fail_what_is_wrong():
    honest = made({"oracle": same, "stock": fixed, "again-1": fixed, "candidate": fixed})
    assert judged(first(honest, LEAST)).result is Result.PASS
    few = judged(first(honest, LEAST - 1))
    assert few.result is Result.INCONCLUSIVE and f"{LEAST - 1} tokens say little" in few.text
    wrong = made({"oracle": same, "stock": fixed, "again-1": fixed, "candidate": noisy(2.0)})
    assert judged(first(wrong, LEAST - 1)).result is Result.FAIL


def test_without_noise_identical_answers_pass_and_others_are_not_decided():
    """Two servers that repeat themselves: the difference of two honest roundings is as good as a fault's."""
    silent = {"stock": fixed, "again-1": fixed, "again-2": fixed}
    equal = judged(made(silent | {"candidate": fixed}))
    assert equal.result is Result.PASS and equal.deterministic
    other = judged(made(silent | {"candidate": noisy(1e-3)}))
    assert other.result is Result.INCONCLUSIVE and "--oracle-url or --control-url" in other.text


@pytest.mark.parametrize("again", [same, fixed])
def test_a_stock_server_that_repeats_itself_takes_nothing_from_what_a_control_shows(again):
    """The arms that ask it again are noise of nothing: pooled with the control's, their median is zero."""

    def around(change, size):
        return lambda exact, random: change(exact, random) + random.normal(0, size, exact.shape)

    stock = {"stock": again, "again-1": again, "again-2": again, "control-1": around(again, 2e-3)}
    for seed in range(4):
        fine = judged(made(stock | {"candidate": around(again, 2e-3)}, seed=seed))
        assert fine.result is Result.PASS and not fine.deterministic, fine.text
    assert all(check.noise > 0 for check in fine.checks if "median" in check.name)
    twice = judged(made(stock | {"candidate": around(again, 4e-3)}))
    assert twice.result is Result.FAIL and "the median error is" in twice.text
    far = judged(made(stock | {"candidate": around(again, 0.1)}))
    assert far.result is Result.FAIL and far.flips.bugs
    # A second arm of little noise is not pooled with the first either.
    few = stock | {"again-2": around(again, 1e-6)}
    assert judged(made(few | {"candidate": around(again, 2e-3)})).result is Result.PASS
    assert judged(made(few | {"candidate": around(again, 4e-3)})).result is Result.FAIL


def test_one_far_token_does_not_pass_where_one_control_is_all_the_noise():
    def far_once(exact, random):
        exact = noisy(2e-3)(exact, random)
        exact[777, 0] += 0.2
        return exact

    stock = {"stock": same, "again-1": same, "control-1": noisy(2e-3)}
    one = judged(made(stock | {"candidate": far_once}))
    assert one.result is Result.INCONCLUSIVE and "name another --control-url" in one.text
    assert {check.where.position for check in one.checks if check.where} == {778}
    two = judged(made(stock | {"control-2": noisy(2e-3), "candidate": far_once}))
    assert two.result is Result.FAIL


def test_an_oracle_decides_medians_even_where_the_stock_server_repeats_itself():
    arms = {"oracle": same, "stock": fixed, "again-1": fixed, "again-2": fixed}
    assert judged(made(arms | {"candidate": noisy(0.05)})).result is Result.FAIL
    assert judged(made(arms | {"candidate": noisy(0.012)})).result is not Result.FAIL


def test_divergence_and_margins_by_hand():
    """Two candidates of probability 1/2 against 1/4 and 3/4: KL is ln(2/sqrt 3), the margin moves by ln 3."""
    half, quarter = np.log(0.5), np.log(0.25)
    even = [{1: half, 2: half}]
    tops = {"stock": even, "again-1": even, "candidate": [{1: quarter, 2: np.log(0.75)}]}
    one = Scores(("a",), np.array([1]), np.array([2]), {
        "stock": np.array([half]), "again-1": np.array([half]), "candidate": np.array([np.log(0.75)]),
    }, tops)  # fmt: skip
    verdict = judged(one)
    spread = {(s.metric, s.path): s.maximum for s in verdict.spreads}
    assert spread["divergence", "candidate"] == pytest.approx(np.log(2 / np.sqrt(3)), abs=1e-9)
    assert spread["log_prob", "candidate"] == pytest.approx(np.log(1.5), abs=1e-12)
    assert verdict.flips.flips == {"again-1": 0, "candidate": 1}
