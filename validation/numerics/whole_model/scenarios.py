"""The scenarios of the ladder: how requests are read, decoded, verified, preempted and padded.

Each gives a generator of actions; every path carries out the same ones. Streams of tokens are given: what a path would
have said is never fed back, except in `greedy`, where the oracle's choice is.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from .scenario import ORACLES, PADDING, Action, Actions, Kind

PREFILL = 256
"""Tokens of one prefill step"""
TAIL = 24
"""Tokens at the end of a prompt that are looked at in any case: the next ones' convolutions read what their experts left, and a reader
wants to know what stood before a token"""
Propose = Callable[[Sequence[int], int], list[int]]
"""(history, count) -> proposals of a draft head"""


def prefill(request: int, tokens: Sequence[int], *, watched: bool = False, piece: int = PREFILL) -> Iterator[Action]:
    """Reads all of `tokens` but the last, which a decode step takes up."""
    last = len(tokens) - 1
    for start in range(0, last, piece):
        part = tuple(tokens[start : min(start + piece, last)])
        targets = tuple(tokens[place + 1] if watched or place >= last - TAIL else None for place in range(start, start + len(part)))
        yield Action(Kind.PREFILL, (request,), (len(part),), part, targets, judged=watched)


def prefill_together(prompts: Sequence[Sequence[int]]) -> Iterator[Action]:
    """The same of a prompt a request, as many in a step as it takes."""
    step: list[Action] = []
    for request, prompt in enumerate(prompts):
        (own,) = prefill(request, prompt, piece=len(prompt))
        if step and sum(len(one.tokens) for one in step) + len(own.tokens) > PREFILL:
            yield _merged(step)
            step = []
        step.append(own)
    yield _merged(step)


def _merged(actions: Sequence[Action]) -> Action:
    """One step of several requests' actions of a kind."""
    columns = (sum((getattr(action, name) for action in actions), ()) for name in ("requests", "counts", "tokens", "targets", "accepted"))
    return Action(actions[0].kind, *columns, judged=actions[0].judged)


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
    yield from prefill_together([stream[: prompt + 1] for stream, prompt in zip(streams, prompts, strict=True)])
    for step in range(steps):
        rows = [(r, s[p + step], s[p + step + 1]) for r, (s, p) in enumerate(zip(streams, prompts, strict=True))]
        for place in padded:
            rows.insert(place, (PADDING, 0, None))
        yield decode(rows)


def mixed_prefill(streams: Sequence[Sequence[int]], prompt: int, steps: int) -> Actions:
    """A request decodes; between its steps another one's prompt is read in pieces; then both decode."""
    first, second = streams
    yield from prefill(0, first[: prompt + 1])
    pieces = list(prefill(1, second[: prompt + 1], piece=prompt // 3))
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
    yield from prefill_together([stream[: prompt + 1] for stream in streams])
    places = [prompt] * len(streams)
    for step in range(steps):
        own = []
        for request, (stream, place) in enumerate(zip(streams, places, strict=True)):
            # Of a draft head that is always wrong all counts would be one.
            right = [*stream[place + 1 : place + 1 + (step + request) % width]]
            proposed = (right + propose(stream[: place + 1], width - 1))[: width - 1]
            own.append(replace(_verifying(stream, place, proposed, 1 + _agreeing(proposed, stream[place + 1 :])), requests=(request,)))
        yield _merged(own)
        places = [place + one.accepted[0] for place, one in zip(places, own, strict=True)]
        if step % 2:
            yield decode([(r, s[p], s[p + 1]) for r, (s, p) in enumerate(zip(streams, places, strict=True))])
            places = [place + 1 for place in places]


def verify_every(stream: Sequence[int], prompt: int, counts: Mapping[int, Sequence[int]], vocabulary: int) -> Actions:
    """Accepted counts by width, each in a step of its own, with an ordinary step behind each width.

    None accepted: a step whose results are thrown away, as when a request is aborted and asked for again.
    """
    yield from prefill(0, stream[: prompt + 1])
    place = prompt
    for wide, accepted in counts.items():
        for kept in accepted:
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
    yield from prefill_together([first[: prompt + 1], second[: prompt + 1]])
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
