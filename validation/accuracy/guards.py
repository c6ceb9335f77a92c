"""What has to hold before any score is looked at. Each guard has its own reason and fails closed."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Set
from math import isclose, isfinite

from .answers import Answer
from .frozen import Scorer
from .sitting import Sat
from .verify import Finding


Guard = Callable[[Sat], Iterator[str]]


def check(sat: Sat, *, without: Set[str] = frozenset()) -> tuple[Finding, ...]:
    """All that is wrong with a sitting: first by `IDENTITY`, and where that holds by `CONTENT`, which relies on it.

    No message quotes an answer or tells a score. `without` names guards that do not apply.
    """
    for guards in (IDENTITY, CONTENT):
        found = tuple(
            Finding(reason=reason, message=text)
            for reason, guard in guards.items() if reason not in without
            for text in guard(sat)
        )  # fmt: skip
        if found:
            return found
    return ()


def _arms(sat: Sat) -> Iterator[str]:
    for name, arm in sat.arms():
        if arm.arm.arm != name:
            yield f"the file given as {name} was recorded as {arm.arm.arm}"


def _other_exam(sat: Sat) -> Iterator[str]:
    if sat.exam.digest != sat.plan.exam_sha256 or sat.exam.manifest.exam != sat.plan.exam:
        yield f"the exam is {sat.exam.manifest.exam} {sat.exam.digest}, not the planned one"
    for name, arm in sat.arms():
        if arm.arm.exam_sha256 != sat.exam.digest:
            yield f"{name} sat {arm.arm.exam_sha256}"


def _other_plan(sat: Sat) -> Iterator[str]:
    for name, arm in sat.arms():
        if arm.arm.plan_sha256 != sat.plan.digest():
            yield f"{name} was run by another plan, {arm.arm.plan_sha256}"


def _item_count(sat: Sat) -> Iterator[str]:
    counts = {"exam": len(sat.exam.items)}
    counts |= {name: len({answer.item for answer in arm.answers}) for name, arm in sat.arms()}
    for name, count in counts.items():
        if count != sat.plan.items:
            yield f"{name}: {count} items, pinned: {sat.plan.items}"


def _prompt_differs(sat: Sat) -> Iterator[str]:
    prompts = {item.id: item.prompt_sha256 for item in sat.exam.items}
    for name, arm in sat.arms():
        wrong = sorted({a.item for a in arm.answers if prompts.get(a.item) != a.prompt_sha256})
        if wrong:
            yield f"{name}: {len(wrong)} items were not asked as frozen (text or order of options), first {wrong[0]}"


def _items_differ(sat: Sat) -> Iterator[str]:
    sets = [Counter((a.item, a.prompt_sha256) for a in arm.answers) for _, arm in sat.arms()]
    if sets[0] != sets[1]:
        first = min((sets[0] - sets[1]) + (sets[1] - sets[0]))
        yield f"the arms did not answer the same items equally often, first {first[0]}"


def _answered_twice(sat: Sat) -> Iterator[str]:
    for name, arm in sat.arms():
        (worst, count), *_ = Counter((a.item, a.repeat) for a in arm.answers).most_common(1) or [(("", 0), 0)]
        if count > 1:
            yield f"{name}: repeat {worst[1]} of {worst[0]} is there {count} times"


def _repeats(sat: Sat) -> Iterator[str]:
    for name, arm in sat.arms():
        repeats = defaultdict(set)
        for answer in arm.answers:
            repeats[answer.item].add(answer.repeat)
        most = max((len(held) for held in repeats.values()), default=0)
        missing = sorted(item.id for item in sat.exam.items if repeats[item.id] != set(range(most)))
        if most not in sat.plan.rule.looks:
            yield f"{name}: {most} repeats, looks were planned at {', '.join(map(str, sat.plan.rule.looks))}"
        if missing:
            yield f"{name}: {len(missing)} items lack repeats of 0 to {most - 1}, first {missing[0]}"


def _transport(sat: Sat) -> Iterator[str]:
    for name, arm in sat.arms():
        failed = [a for a in arm.answers if a.error or a.finish_reason not in ("stop", "length")]
        if failed:
            yield f"{name}: {len(failed)} answers did not end of themselves or at the limit, first {failed[0].item}"


def _null_content(sat: Sat) -> Iterator[str]:
    for name, arm in sat.arms():
        empty = [a for a in arm.answers if not a.text and not a.truncated]
        if empty:
            yield f"{name}: {len(empty)} finished answers have no content, first {empty[0].item}: they are not wrong"


def _thinking(sat: Sat) -> Iterator[str]:
    for name, arm in sat.arms():
        mixed = [a for a in arm.answers if "<think>" in (a.text or "") or "</think>" in (a.text or "")]
        if mixed:
            yield f"{name}: {len(mixed)} answers hold their reasoning, first {mixed[0].item}: the server has to part it"


def _model_changed(sat: Sat) -> Iterator[str]:
    for name, arm in sat.arms():
        others = sorted({a.model for a in arm.answers} - {arm.arm.model})
        if others:
            yield f"{name}: {others[0]!r} answered as well, not only {arm.arm.model!r}"


def _sampling_differs(sat: Sat) -> Iterator[str]:
    before, after = sat.baseline.arm.sampling, sat.candidate.arm.sampling
    for field in type(before).model_fields:
        if getattr(before, field) != getattr(after, field):
            yield f"{field} is {getattr(before, field)!r} in the baseline, {getattr(after, field)!r} in the candidate"


def _stop_dropped(sat: Sat) -> Iterator[str]:
    for name, arm in sat.arms():
        if arm.arm.stop_sent != arm.arm.sampling.stop:
            yield f"{name}: {len(arm.arm.stop_sent)} of {len(arm.arm.sampling.stop)} stop strings reached the server"


def _stop_ignored(sat: Sat) -> Iterator[str]:
    """A server leaves a stop string out of what it gives; one that holds it was not stopped there, or not as asked."""
    for name, arm in sat.arms():
        stops = arm.arm.sampling.stop
        odd = [a for a in arm.answers if any(stop in a.reasoning or stop in (a.text or "") for stop in stops)]
        if odd:
            yield f"{name}: {len(odd)} answers hold a stop string, first {odd[0].item}: the server ignores them"


def _kernels_inactive(sat: Sat) -> Iterator[str]:
    kernels = sat.candidate.arm.kernels
    idle = sorted(name for name, count in (kernels or {}).items() if count < 1)
    if not kernels:
        yield "candidate: nothing shows that its kernels ran"
    elif idle:
        yield f"candidate: {idle[0]} was never launched"


def baseline_specialised(sat: Sat) -> Iterator[str]:
    """Whether the baseline is not, or not known to be, the stock path."""
    kernels = sat.baseline.arm.kernels
    if kernels is None:
        yield "baseline: nobody counted launches of specialised kernels"
    elif any(kernels.values()):
        yield "baseline: specialised kernels ran"


def _acceptance_forced(sat: Sat) -> Iterator[str]:
    for name, arm in sat.arms():
        if arm.arm.acceptance_forced is not False:
            known = "forced" if arm.arm.acceptance_forced else "not known to be natural"
            yield f"{name}: acceptance of speculative tokens is {known}"


def _seeds(sat: Sat) -> Iterator[str]:
    for name, arm in sat.arms():
        if not arm.arm.sampling.temperature:
            continue
        seeds = defaultdict(list)
        for answer in arm.answers:
            seeds[answer.item].append(answer.seed)
        wrong = sorted(item for item, held in seeds.items() if None in held or len(set(held)) < len(held))
        if wrong:
            yield f"{name}: {len(wrong)} items have repeats with one seed or an unknown one, first {wrong[0]}"


def _copies(sat: Sat) -> Iterator[str]:
    for name, arm in sat.arms():
        if not arm.arm.sampling.temperature:
            continue
        held: dict[str, list[Answer]] = defaultdict(list)
        for answer in arm.answers:
            if not _must_coincide(sat, answer):
                held[answer.item].append(answer)
        several = {item: answers for item, answers in held.items() if len(answers) > 1}
        alike = [item for item, answers in several.items() if len({a.generation for a in answers}) == 1]
        tokens = sat.plan.limits.copies_from_tokens
        long = sorted(item for item, answers in several.items() if _long_copy(answers, tokens))
        if long:
            yield f"{name}: {len(long)} items have equal generations in several repeats, first {long[0]}"
        elif several and len(alike) == len(several):
            yield f"{name}: the repeats of every item are one text"


def _must_coincide(sat: Sat, answer: Answer) -> bool:
    """A right answer to MRCR without reasoning is one text: the needle."""
    asked = sat.exam.manifest.scorer is Scorer.MRCR and not answer.reasoning
    return asked and answer.text == sat.exam.keys[answer.item].answer


def _long_copy(answers: list[Answer], tokens: int) -> bool:
    counts = Counter(a.generation for a in answers if a.tokens is None or a.tokens >= tokens)
    return max(counts.values(), default=0) > 1


def _length_ratio(sat: Sat) -> Iterator[str]:
    means = []
    for name, arm in sat.arms():
        tokens = [answer.tokens for answer in arm.answers]
        if None in tokens:
            yield f"{name}: {tokens.count(None)} answers have no token count"
            return
        means.append(sum(tokens) / len(tokens))
    low, high = sat.plan.limits.length_ratio
    if not low * means[0] <= means[1] <= high * means[0]:
        yield f"mean output tokens are {means[1]:.1f} in the candidate and {means[0]:.1f} in the baseline"


def _truncated(sat: Sat) -> Iterator[str]:
    before, after = (sum(a.truncated for a in arm.answers) / len(arm.answers) for _, arm in sat.arms())
    if after > before + sat.plan.limits.truncated_delta:
        yield f"{after:.1%} of the candidate's answers hit the token limit, {before:.1%} of the baseline's"


def _unparsed(sat: Sat) -> Iterator[str]:
    before, after = (sum(not sat.scored(a).parsed for a in arm.answers) / len(arm.answers) for _, arm in sat.arms())
    if after > before + sat.plan.limits.unparsed_delta:
        yield f"in {after:.1%} of the candidate's answers none was found, in {before:.1%} of the baseline's"


def _score_missing(sat: Sat) -> Iterator[str]:
    for name, arm in sat.arms():
        odd = [a for a in arm.answers if isinstance(a.score, str) or (a.score is not None and not isfinite(a.score))]
        if odd:
            yield f"{name}: the engine gave {len(odd)} answers no number, first {odd[0].item}"


def _score_disagrees(sat: Sat) -> Iterator[str]:
    for name, arm in sat.arms():
        told = [a for a in arm.answers if isinstance(a.score, float) and isfinite(a.score)]
        other = [a for a in told if not isclose(a.score, sat.scored(a).score, abs_tol=1e-6)]
        if other:
            yield f"{name}: {len(other)} scores of the engine are not what the frozen exam gives, first {other[0].item}"


IDENTITY: dict[str, Guard] = {
    "arms": _arms,
    "other_exam": _other_exam,
    "other_plan": _other_plan,
    "item_count": _item_count,
    "prompt_differs": _prompt_differs,
    "items_differ": _items_differ,
    "answered_twice": _answered_twice,
    "repeats": _repeats,
}
CONTENT: dict[str, Guard] = {
    "transport": _transport,
    "null_content": _null_content,
    "thinking": _thinking,
    "model_changed": _model_changed,
    "sampling_differs": _sampling_differs,
    "stop_dropped": _stop_dropped,
    "stop_ignored": _stop_ignored,
    "kernels_inactive": _kernels_inactive,
    "baseline_specialised": baseline_specialised,
    "acceptance_forced": _acceptance_forced,
    "seeds": _seeds,
    "copies": _copies,
    "length_ratio": _length_ratio,
    "truncated": _truncated,
    "unparsed": _unparsed,
    "score_missing": _score_missing,
    "score_disagrees": _score_disagrees,
}
