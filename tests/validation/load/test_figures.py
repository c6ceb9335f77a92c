"""Figures of a load, by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fasttrack_validation.load import figures
from fasttrack_validation.load.answers import Answer, Counters, Run


def answer(sent, first, gaps, tokens=None, **more):
    return Answer(sent=sent, first=first, gaps=tuple(gaps), input_tokens=10,
                  output_tokens=tokens or len(gaps) + 1, **more)  # fmt: skip


def run(*answers, seconds=10.0, **more):
    return Run(tool="test", seed=1, answers=answers, seconds=seconds, **more)


def test_two_requests_by_hand():
    # (0.5 + 0.9) / 2; the gaps of the second are twice as long; latencies 1.5 and 2.9
    found = figures.of(run(answer(0, 0.5, [0.1] * 10), answer(1, 0.9, [0.2] * 10)), decode_only=False)
    assert found.ttft == pytest.approx(0.7) and found.latency == pytest.approx(2.2)
    assert found.tpot == pytest.approx(0.15) and found.tok_s_user == pytest.approx(1 / 0.15)
    assert found.tok_s_system == pytest.approx(22 / 10) and found.itl == pytest.approx(0.15)
    assert found.itl_p99 == pytest.approx(0.2)
    assert found.decode_share == pytest.approx((1 / 1.5 + 2 / 2.9) / 2)


def test_pieces_are_not_tokens():
    """Three tokens a piece: 1 + 30 tokens in 10 gaps of 60 ms are 20 ms a token."""
    found = figures.of(run(answer(0, 0.5, [0.06] * 10, tokens=31)), decode_only=False)
    assert found.tpot == pytest.approx(0.02) and found.itl == pytest.approx(0.06)


def test_a_decode_window_leaves_prefill_of_others_out():
    """While the second prompt is read, until t = 2, the first request's tokens take five times as long."""
    slow = answer(0, 0.5, [0.5] * 3 + [0.1] * 40)
    late = answer(0, 2.0, [0.1] * 40)
    load = run(slow, late, seconds=6.0)
    assert figures.window(load.answers) == (pytest.approx(2.0), pytest.approx(6.0))
    windowed, whole = (figures.of(load, decode_only=only) for only in (True, False))
    assert windowed.tpot == pytest.approx(0.1) and windowed.tok_s_system == pytest.approx(20)
    assert whole.tpot == pytest.approx(((1.5 + 4) / 43 + 0.1) / 2)


def test_a_load_without_a_window_or_with_failures_has_no_figure():
    with pytest.raises(figures.NoFigure, match="no decode window"):
        figures.of(run(answer(0, 0.1, [0.1] * 3), answer(5, 0.1, [0.1] * 3)), decode_only=True)
    broken = Answer(sent=0, error="HTTP 503: overloaded")
    with pytest.raises(figures.NoFigure, match="1 of 2 requests failed: HTTP 503"):
        figures.of(run(answer(0, 0.1, [0.1] * 3), broken), decode_only=False)
    with pytest.raises(figures.NoFigure, match="two tokens"):
        figures.of(run(answer(0, 0.1, [])), decode_only=False)
    with pytest.raises(ValueError, match="without tokens"):
        Answer(sent=0)


def test_goodput_counts_what_kept_to_the_objective():
    load = run(answer(0, 0.1, [0.01] * 9), answer(0, 0.9, [0.01] * 9), answer(0, 0.1, [0.05] * 9), seconds=2.0)
    assert figures.of(load, decode_only=False).goodput is None
    both = figures.Objective(ttft=0.5, tpot=0.02)
    assert figures.of(load, decode_only=False, objective=both).goodput == pytest.approx(0.5)
    assert figures.of(load, decode_only=False, objective=figures.Objective(ttft=0.5)).goodput == pytest.approx(1.0)


def test_acceptance_and_cache_hits_come_from_counts():
    # 100 verify steps with 284 accepted drafts yield 3.84 tokens each
    counted = [run(answer(0, 1, [1]), counters=Counters(drafts=n, accepted=a, cache_queries=100, cache_hits=h))
               for n, a, h in ((60, 170, 50), (40, 114, 70))]  # fmt: skip
    assert figures.acceptance(counted) == pytest.approx(3.84)
    assert figures.hit_rate(counted) == pytest.approx(0.6)
    assert figures.acceptance([run(answer(0, 1, [1]))]) is None
    said = run(answer(0, 1, [1], cached_tokens=4), answer(0, 1, [1], cached_tokens=6))
    assert figures.hit_rate([said]) == pytest.approx(0.5)
    assert figures.hit_rate([run(answer(0, 1, [1]))]) is None


@settings(max_examples=80, deadline=None)
@given(st.lists(st.floats(1e-3, 1.0), min_size=2, max_size=30), st.floats(0.01, 5), st.floats(0.1, 20))
def test_figures_scale_with_time(gaps, first, factor):
    one = figures.of(run(answer(0, first, gaps)), decode_only=False)
    other = figures.of(run(answer(0, first * factor, [gap * factor for gap in gaps]), seconds=10 * factor), decode_only=False)
    assert other.tpot == pytest.approx(one.tpot * factor) and other.ttft == pytest.approx(one.ttft * factor)
    assert other.tok_s_system == pytest.approx(one.tok_s_system / factor)
    assert other.decode_share == pytest.approx(one.decode_share)
