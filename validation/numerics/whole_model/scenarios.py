"""The scenarios of the ladder: how requests are read, decoded, verified, preempted and padded.

Each gives a generator of actions; every path carries out the same ones. Streams of tokens are given: what a path would
have said is never fed back, except in `greedy`, where the oracle's choice is.
"""

from collections.abc import Callable, Iterator, Sequence

from .scenario import ORACLES, PADDING, Action, Actions, Kind

PREFILL = 64
"""Tokens of one prefill step"""
Propose = Callable[[Sequence[int], int], list[int]]
"""(history, count) -> proposals of a draft head"""


def prefill(request: int, tokens: Sequence[int], *, watched: bool = False) -> Iterator[Action]:
    """Reads all of `tokens` but the last, which a decode step takes up."""
    for start in range(0, len(tokens) - 1, PREFILL):
        part = tuple(tokens[start : min(start + PREFILL, len(tokens) - 1)])
        targets = tuple(tokens[start + 1 + i] if watched else None for i in range(len(part)))
        yield Action(Kind.PREFILL, (request,), (len(part),), part, targets)


def decode(rows: Sequence[tuple[int, int, int | None]]) -> Action:
    """One token a request: (request or -1, token, the one that follows)."""
    requests, tokens, targets = zip(*rows, strict=True)
    accepted = tuple(0 if request == PADDING else 1 for request in requests)
    return Action(Kind.DECODE, requests, (1,) * len(rows), tokens, targets, accepted)


def teacher_forced(stream: Sequence[int], prompt: int, *, watched: bool = True) -> Actions:
    """A prompt, `watched` as well or not, then token by token to the stream's end."""
    yield from prefill(0, stream[: prompt + 1], watched=watched)
    for place in range(prompt, len(stream) - 1):
        yield decode([(0, stream[place], stream[place + 1])])


def greedy(prompt: Sequence[int], tokens: int) -> Actions:
    """The oracle's own continuation. Up to where a path chooses otherwise it is that path's free run as well."""
    yield from prefill(0, prompt)
    token = prompt[-1]
    for _ in range(tokens):
        # What follows is not known yet: the oracle's answer is the next token.
        (token,) = yield decode([(0, token, ORACLES)])


def batch(streams: Sequence[Sequence[int]], prompts: Sequence[int], steps: int, *, padded: Sequence[int] = ()) -> Actions:
    """Requests side by side, prompts of different lengths; rows of padding at the places `padded`."""
    for request, (stream, prompt) in enumerate(zip(streams, prompts, strict=True)):
        yield from prefill(request, stream[: prompt + 1])
    for step in range(steps):
        rows = [(r, s[p + step], s[p + step + 1]) for r, (s, p) in enumerate(zip(streams, prompts, strict=True))]
        for place in padded:
            rows.insert(place, (PADDING, 0, None))
        yield decode(rows)


def mixed_prefill(streams: Sequence[Sequence[int]], prompt: int, steps: int) -> Actions:
    """A request decodes; between its steps another one's prompt is read in pieces; then both decode."""
    first, second = streams
    yield from prefill(0, first[: prompt + 1])
    pieces = list(prefill(1, second[: prompt + 1]))
    for step in range(steps):
        yield decode([(0, first[prompt + step], first[prompt + step + 1])])
        if step < len(pieces):
            yield pieces[step]
    for piece in pieces[steps:]:
        yield piece
    for step in range(steps):
        at = prompt + steps + step
        yield decode([(1, second[prompt + step], second[prompt + step + 1]), (0, first[at], first[at + 1])])


def verify(
    stream: Sequence[int], prompt: int, propose: Propose, width: int, tokens: int, *, plain_every: int = 3
) -> Actions:  # fmt: skip
    """Speculative decoding: the draft head's proposals are kept as far as the stream goes on like them.

    Every so many verify steps an ordinary one follows, so that what acceptance left is read by both kinds of step.
    """
    yield from prefill(0, stream[: prompt + 1])
    place, number = prompt, 0
    while place < prompt + tokens:
        number += 1
        if number % plain_every == 0:
            yield decode([(0, stream[place], stream[place + 1])])
            place += 1
            continue
        proposed = propose(stream[: place + 1], width - 1)
        kept = 1 + _agreeing(proposed, stream[place + 1 :])
        yield _verifying(stream, place, proposed, kept)
        place += kept


def verify_together(
    streams: Sequence[Sequence[int]], prompt: int, propose: Propose, width: int, steps: int
) -> Actions:  # fmt: skip
    """Requests that verify side by side, each with its own proposals and its own accepted count; an ordinary step behind every
    other one."""
    for request, stream in enumerate(streams):
        yield from prefill(request, stream[: prompt + 1])
    places = [prompt] * len(streams)
    for step in range(steps):
        own = []
        for request, (stream, place) in enumerate(zip(streams, places, strict=True)):
            # Of a draft head that is always wrong all counts would be one.
            right = [*stream[place + 1 : place + 1 + (step + request) % width]]
            proposed = (right + propose(stream[: place + 1], width - 1))[: width - 1]
            own.append(_verifying(stream, place, proposed, 1 + _agreeing(proposed, stream[place + 1 :])))
        yield Action(
            Kind.DECODE, tuple(range(len(streams))), *(sum((getattr(one, name) for one in own), ())
            for name in ("counts", "tokens", "targets", "accepted")),
        )  # fmt: skip
        places = [place + one.accepted[0] for place, one in zip(places, own, strict=True)]
        if step % 2:
            yield decode([(r, s[p], s[p + 1]) for r, (s, p) in enumerate(zip(streams, places, strict=True))])
            places = [place + 1 for place in places]


def verify_every(stream: Sequence[int], prompt: int, width: int, vocabulary: int) -> Actions:
    """Every accepted count from none to all, at every width up to `width`, with an ordinary step behind each width.

    None: a step whose results are thrown away, as when a request is aborted and asked for again.
    """
    yield from prefill(0, stream[: prompt + 1])
    place = prompt
    for wide in range(2, width + 1):
        for kept in range(wide + 1):
            right = list(stream[place + 1 : place + wide])
            proposed = [
                token if number < kept - 1 else (token + 7) % vocabulary for number, token in enumerate(right)
            ]
            yield _verifying(stream, place, proposed, kept)
            place += kept
        yield decode([(0, stream[place], stream[place + 1])])
        place += 1


def preempted(streams: Sequence[Sequence[int]], prompt: int, steps: int) -> Actions:
    """Two requests; the first is preempted, its slot taken by a third, and the first read again where the third ended."""
    first, second, third = streams
    for request, stream in ((0, first), (1, second)):
        yield from prefill(request, stream[: prompt + 1])
    for step in range(steps):
        at = prompt + step
        yield decode([(0, first[at], first[at + 1]), (1, second[at], second[at + 1])])
    yield Action(Kind.RELEASE, (0,))
    yield from prefill(0, third[: prompt // 2 + 1])
    for step in range(steps):
        own, at = prompt // 2 + step, prompt + steps + step
        yield decode([(0, third[own], third[own + 1]), (1, second[at], second[at + 1])])
    yield Action(Kind.RELEASE, (0,))
    yield from prefill(0, first[: prompt + steps + 1])
    for step in range(steps):
        at = prompt + steps + step
        yield decode([(0, first[at], first[at + 1])])


def _verifying(stream: Sequence[int], place: int, proposed: Sequence[int], kept: int) -> Action:
    tokens = (stream[place], *proposed)
    # Rows behind the first wrong proposal answer a question that the stream does not ask.
    true = 1 + _agreeing(proposed, stream[place + 1 :])
    targets = tuple(stream[place + 1 + number] if number < true else None for number in range(len(tokens)))
    return Action(Kind.DECODE, (0,), (len(tokens),), tokens, targets, (kept,))


def _agreeing(proposed: Sequence[int], true: Sequence[int]) -> int:
    count = 0
    for own, other in zip(proposed, true, strict=False):
        if own != other:
            break
        count += 1
    return count
