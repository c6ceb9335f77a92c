"""Figures of a load, from when its tokens came. Pure; seconds and tokens a second.

TPOT of a request is (latency - TTFT) / (output tokens - 1), as `vllm bench serve` and AIPerf have it; a figure of a load
is the mean over its requests. A *decode window* lies between the last first token and the first last token: every request
is in decode there, and no prompt is being read.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import ceil, isclose
from statistics import fmean
from typing import TYPE_CHECKING

from pydantic import Field

from ..records import Frozen
from .answers import Answer, Run

if TYPE_CHECKING:
    from .records import Round


class NoFigure(Exception):
    """Why a load gives no figure."""


class Objective(Frozen):
    """What an answer must keep to for it to count as served (goodput); None where there is no limit."""

    ttft: float | None = Field(None, gt=0, description="seconds")
    tpot: float | None = Field(None, gt=0, description="seconds")

    def met(self, answer: Answer) -> bool:
        """Whether an answer kept to it."""
        slow = self.ttft is not None and answer.first > self.ttft
        return not (slow or (self.tpot is not None and (tpot(answer) or 0.0) > self.tpot))


class Figures(Frozen):
    """Of one load: means over requests, and rates over the load's time or the decode window."""

    ttft: float
    tpot: float = Field(gt=0)
    itl: float | None = Field(None, description="mean time between pieces of a stream")
    itl_p99: float | None = None
    latency: float
    tok_s_user: float = Field(description="1 / TPOT")
    tok_s_system: float
    goodput: float | None = Field(None, description="requests a second that met the objective; None without one")
    decode_share: float = Field(ge=0, le=1, description="mean share of a request's latency after its first token")


def of(run: Run, *, decode_only: bool, objective: Objective | None = None) -> Figures:
    """A load's figures; with `decode_only`, TPOT and rates are of its decode window.

    Raises NoFigure where a request failed, no request has two tokens, or the window holds none.
    """
    failed = [one for one in run.answers if one.error is not None]
    if failed:
        raise NoFigure(f"{len(failed)} of {len(run.answers)} requests failed: {failed[0].error}")
    means = [found for one in run.answers if (found := tpot(one)) is not None]
    if not means:
        raise NoFigure("no answer has two tokens: nothing was decoded")
    tokens, seconds, each = sum(one.output_tokens for one in run.answers), run.seconds, fmean(means)
    if decode_only:
        begin, end = window(run.answers)
        found = [_pace(one, begin, end) for one in run.answers]
        if end <= begin or None in found:
            raise NoFigure("no decode window: the first answer ended before the last one began")
        tokens, seconds, each = sum(1 / one for one in found), 1.0, fmean(found)
    gaps = [gap for one in run.answers for gap in one.gaps]
    met = None if objective is None else sum(objective.met(one) for one in run.answers) / run.seconds
    return Figures(
        ttft=fmean(one.first for one in run.answers), tpot=each, itl=fmean(gaps) if gaps else None,
        itl_p99=sorted(gaps)[ceil(0.99 * len(gaps)) - 1] if gaps else None,
        latency=fmean(one.latency for one in run.answers), tok_s_user=1 / each, tok_s_system=tokens / seconds,
        goodput=met, decode_share=fmean(1 - one.first / one.latency for one in run.answers),
    )  # fmt: skip


def misfit(kept: "Round", *, decode_only: bool) -> str | None:
    """Which figure of a kept load is not what its kept requests give, with both values; None where all are.

    Of a decode window it takes every piece's time to tell TPOT and rates, which a record does not hold: there the others
    are compared. Times of requests are kept to the microsecond.
    """
    requests, shown = kept.requests, kept.figures
    if not requests:
        return "no request is kept"
    given = {"tok_s_user": 1 / shown.tpot, "ttft": fmean(one.first for one in requests),
             "latency": fmean(one.latency for one in requests)}  # fmt: skip
    paces = [(one.latency - one.first) / (one.output_tokens - 1) for one in requests if one.output_tokens > 1]
    if not decode_only and paces:
        given |= {"tpot": fmean(paces), "tok_s_system": sum(one.output_tokens for one in requests) / kept.seconds}
    for name, value in given.items():
        if not isclose(getattr(shown, name), value, rel_tol=1e-3, abs_tol=2e-6):
            return f"{name} is {getattr(shown, name):.6g}, its requests give {value:.6g}"
    return None


def tpot(answer: Answer) -> float | None:
    """Time a token after the first; None for an answer of one token."""
    return None if answer.output_tokens < 2 else (answer.latency - answer.first) / (answer.output_tokens - 1)


def window(answers: Sequence[Answer]) -> tuple[float, float]:
    """(begin, end) of the decode window, in seconds since the load began; empty where end <= begin."""
    return max(one.sent + one.first for one in answers), min(one.sent + one.latency for one in answers)


def acceptance(runs: Sequence["Run | Round"]) -> float | None:
    """Tokens that a verify step yields, over all loads: 1 + accepted / verify steps. None where no server counted."""
    drafts, accepted = ([getattr(run.counters, name) for run in runs] for name in ("drafts", "accepted"))
    if None in drafts or None in accepted or not sum(drafts):
        return None
    return 1 + sum(accepted) / sum(drafts)


def hit_rate(runs: Sequence["Run | Round"]) -> float | None:
    """Share of prompt tokens that came from the prefix cache: as the server counts, else as its answers say."""
    asked, hit = ([getattr(run.counters, name) for run in runs] for name in ("cache_queries", "cache_hits"))
    if None not in asked and None not in hit and sum(asked):
        return sum(hit) / sum(asked)
    answers = [one for run in runs for one in (run.whole if isinstance(run, Run) else run.requests)]
    prompts, cached = [one.input_tokens for one in answers], [one.cached_tokens for one in answers]
    return None if None in prompts or None in cached or not sum(prompts) else sum(cached) / sum(prompts)


def _pace(answer: Answer, begin: float, end: float) -> float | None:
    """Seconds a token between an answer's first and last piece in [begin, end]; None with fewer than two of them there.

    Between its own pieces, and not over the window, whose ends fall where other answers' pieces come. Pieces after the
    first share evenly what tokens are left of them.
    """
    times = list(accumulate(answer.gaps, initial=answer.sent + answer.first))
    # Sums of gaps need not meet the window's ends to the last bit.
    within = [at for at in times if begin - 1e-9 <= at <= end + 1e-9]
    if len(within) < 2:
        return None
    of_a_piece = (answer.output_tokens - 1) / len(answer.gaps)
    return (within[-1] - within[0]) / (len(within) - 1) / of_a_piece
