"""Whether records are all that a piece of a run leaves. Pure: each gives what is wrong, or an empty text."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from . import long_rung, op_rung, tokens
from .plan import Settings, Work
from .scenario import ORACLES, PADDING, Action, Kind
from .tokens import CANDIDATE, ORACLE, STOCK


def of_unit(file: Path, records: tokens.UnitRecords) -> str:
    """Why the records of a finished unit cannot be all that it left; empty where they can."""
    if file.name != f"{records.header.unit}.jsonl.gz":
        return f"it is {records.header.unit}'s"
    if records.end is None:
        return "its end is missing"
    actions = [step.action for step in records.steps]
    if actions != list(range(len(actions))) or not actions:
        return "steps are missing"
    others = {STOCK, CANDIDATE, *records.header.replicas}
    if any(set(column) != others for column in (records.end.states, records.end.rows, records.end.touched)):
        return "its end lacks paths"
    pools, rows = ({frozenset(one) for one in column.values()} for column in (records.end.states, records.end.rows))
    if len(pools) != 1 or len(rows) != 1 or not next(iter(pools)):
        return "its end lacks pools"
    every = [token for step in records.steps for token in step.tokens]
    found = [token for token in every if token.ran != tokens.NOT_JUDGED]
    if not found:
        return "it has no tokens"
    if any(set(token.experts) != others for token in every):
        return "tokens lack paths"
    shapes = {_shape(token, others) for token in found}
    if None in shapes or len(shapes) > 1:
        return "tokens lack paths, logits or layers"
    vocabulary, layers, _ = next(iter(shapes))
    if any(not 0 <= layer < layers for token in every for own in token.experts.values() for layer in own):
        return "tokens lack paths, logits or layers"
    return "" if all(0 <= token.target < vocabulary for token in every) else "a token follows that there is not"


def _shape(token: tokens.Token, others: set[str]) -> tuple[int, int, int] | None:
    """(vocabulary, layers, layers that route) of a token that has all of it for each path; None for another."""
    columns = (token.logits, token.streams, token.router)
    with_oracle = others | {ORACLE}
    if [set(column) for column in columns] != [with_oracle, others, with_oracle]:
        return None
    try:
        sizes = {len(tokens.decode(text, wide=path == ORACLE)) for path, text in token.logits.items()}
    except ValueError:
        return None
    layers, routing = {len(one) for one in token.streams.values()}, {len(one) for one in token.router.values()}
    if any(len(one) != 1 for one in (sizes, layers, routing)) or not min(sizes):
        return None
    return (*sizes, *layers, *routing)


def of_plan(work: Work | None, records: tokens.UnitRecords) -> str:
    """How the steps of a unit differ from those that its plan asks for, given what the oracle answered; empty where they do not.
    `work`: None where the plan has no such unit."""
    if work is None:
        return "the plan of its settings has no such unit"
    actions, answer, lengths = work.actions(), None, Counter[int]()
    for step in records.steps:
        try:
            action = actions.send(answer)
        except StopIteration:
            return "it has more steps than its plan"
        watched = list(_watched(action, lengths))
        if (step.kind, len(step.tokens)) != (action.kind, len(watched)):
            return f"step {step.action} lacks tokens"
        found = [(token.request, token.position, token.token, token.target) for token in step.tokens]
        right = [
            (*row, token.top1 if target == ORACLES else target) for token, (*row, target) in zip(step.tokens, watched, strict=True)
        ]  # fmt: skip
        if found != right:
            return f"step {step.action} has other tokens than its plan"
        _move(action, lengths)
        if any((token.ran == tokens.NOT_JUDGED) == action.judged for token in step.tokens):
            return f"step {step.action} is kept as one that nobody judges, or the other way about"
        answer = tuple(token.top1 for token in step.tokens)
    try:
        actions.send(answer)
    except StopIteration:
        return ""
    return "its last steps are missing"


def _watched(action: Action, lengths: Mapping[int, int]) -> Iterator[tuple[int, int, int, int]]:
    """(request, position, token, target) of the rows of an action that somebody looks at."""
    if action.kind is Kind.RELEASE:
        return
    row = 0
    for request, count in zip(action.requests, action.counts, strict=True):
        for place in range(count):
            if request != PADDING and action.targets[row] is not None:
                yield request, lengths[request] + place, action.tokens[row], action.targets[row]
            row += 1


def _move(action: Action, lengths: Counter[int]) -> None:
    """What requests hold behind an action."""
    if action.kind is Kind.RELEASE:
        for request in action.requests:
            lengths[request] = 0
    else:
        more = action.counts if action.kind is Kind.PREFILL else action.accepted
        lengths.update({request: count for request, count in zip(action.requests, more, strict=True) if request != PADDING})


def of_exams(exams: Sequence[op_rung.Exam], settings: Settings) -> str:
    """Every op on every distribution, once."""
    from ...contracts.kimi_k3.architecture import Architecture

    asked = op_rung.keys(Architecture.from_config(), settings.tps)
    whole = [exam.key for exam in exams] == asked and all(exam.rulings for exam in exams)
    return "" if whole else "it has not every exam of its settings once"


def of_points(points: Sequence[long_rung.Point], settings: Settings) -> str:
    """State and output by decade, then every position of each context, with all paths."""
    from ...contracts.kimi_k3.numerics.long_state import PAGE, decades, places

    steps = [(what, at) for at in decades(settings.steps) for what in ("state", "output")]
    contexts = long_rung.context_names(settings.contexts)
    asked = steps + [(what, at) for length, what in contexts.items() for at in places(length - length % PAGE)]
    if [(point.what, point.at) for point in points] != asked:
        return "it has not every point of its settings once"
    paths = {STOCK, CANDIDATE, *(f"again-{n}" for n in range(1, settings.replicas + 1))}
    whole = all(set(point.errors) == paths and min(map(len, point.errors.values())) for point in points)
    return "" if whole else "points lack paths"
