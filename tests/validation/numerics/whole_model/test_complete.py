"""Records that are well-formed and not all of what a piece leaves: each kind of gap is named."""

from pathlib import Path

import pytest
import token_records
from fasttrack_validation.contracts.kimi_k3.architecture import Architecture
from fasttrack_validation.contracts.kimi_k3.numerics.long_state import places
from fasttrack_validation.numerics.whole_model import complete, op_rung
from fasttrack_validation.numerics.whole_model.long_rung import Point
from fasttrack_validation.numerics.whole_model.plan import Settings, Work
from fasttrack_validation.numerics.whole_model.scenario import ORACLES, RungName, Unit
from fasttrack_validation.numerics.whole_model.scenarios import decode, prefill
from fasttrack_validation.numerics.whole_model.tokens import CANDIDATE, ORACLE, STOCK
from token_records import LAYERS

UNIT = token_records.unit(count=6)
FILE = Path(f"{UNIT.header.unit}.jsonl.gz")


def with_token(**changes):
    """The unit, its fourth token changed."""
    step = UNIT.steps[3]
    step = step.model_copy(update={"tokens": (step.tokens[0].model_copy(update=changes),)})
    return UNIT.model_copy(update={"steps": (*UNIT.steps[:3], step, *UNIT.steps[4:])})


def without(columns: dict, *names: str) -> dict:
    return {name: value for name, value in columns.items() if name not in names}


def test_a_whole_unit_is_whole():
    assert complete.of_unit(FILE, UNIT) == ""


TOKEN = UNIT.steps[3].tokens[0]
TOKENS = "tokens lack paths, logits or layers"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"logits": without(TOKEN.logits, "again-2")}, TOKENS),
        ({"logits": without(TOKEN.logits, ORACLE)}, TOKENS),
        ({"logits": TOKEN.logits | {CANDIDATE: TOKEN.logits[CANDIDATE][:-8]}}, TOKENS),
        ({"logits": TOKEN.logits | {CANDIDATE: "no base64"}}, TOKENS),
        ({"logits": dict.fromkeys(TOKEN.logits, "")}, TOKENS),
        ({"streams": without(TOKEN.streams, CANDIDATE)}, TOKENS),
        ({"streams": TOKEN.streams | {STOCK: TOKEN.streams[STOCK][:-1]}}, TOKENS),
        ({"router": without(TOKEN.router, ORACLE)}, TOKENS),
        ({"experts": TOKEN.experts | {CANDIDATE: (token_records.LAYERS,)}}, TOKENS),
        ({"target": token_records.VOCABULARY}, "a token follows that there is not"),
        ({"target": -1}, "a token follows that there is not"),
    ],
)
def test_a_token_that_lacks_something(changes, said):
    assert complete.of_unit(FILE, with_token(**changes)) == said


def test_an_end_that_lacks_a_path_and_a_unit_without_tokens():
    end = UNIT.end.model_copy(update={"states": without(UNIT.end.states, CANDIDATE)})
    assert complete.of_unit(FILE, UNIT.model_copy(update={"end": end})) == "its end lacks paths"
    for name in ("states", "rows"):
        empty = {path: {} for path in UNIT.end.states}
        one = getattr(UNIT.end, name) | {CANDIDATE: {}}
        for column in (one, empty) if name == "states" else (one,):
            assert complete.of_unit(FILE, UNIT.model_copy(update={"end": UNIT.end.model_copy(update={name: column})})) == "its end lacks pools"
    steps = tuple(step.model_copy(update={"tokens": ()}) for step in UNIT.steps)
    assert complete.of_unit(FILE, UNIT.model_copy(update={"steps": steps})) == "it has no tokens"


@pytest.mark.parametrize("experts", [{}, {STOCK: (), CANDIDATE: (LAYERS,)}])
def test_a_row_that_nobody_judges_has_experts_of_every_path_in_layers_that_there_are(experts):
    right = token_records.light(UNIT.steps[0].tokens[0])
    whole = {path: experts.get(path, ()) for path in right.experts} if experts else {}
    for token, said in ((right, ""), (right.model_copy(update={"experts": whole}), "tokens lack paths")):
        steps = (UNIT.steps[0].model_copy(update={"tokens": (token,)}), *UNIT.steps[1:])
        assert complete.of_unit(FILE, UNIT.model_copy(update={"steps": steps})).startswith(said)
        assert bool(complete.of_unit(FILE, UNIT.model_copy(update={"steps": steps}))) is bool(said)


def actions():
    """A prompt of which nobody judges a row, and five steps; of the last the oracle's answer is the token."""
    fed = [(step.tokens[0].token, step.tokens[0].target) for step in UNIT.steps]
    yield from prefill(0, fed[0])
    for token, target in fed[1:5]:
        yield decode([(0, token, target)])
    yield decode([(0, fed[5][0], ORACLES)])


WORK = Work(Unit(RungName.TEACHER_FORCED, "made", 1, 1, 9), actions)


def planned():
    """The unit, with what the plan has of it."""
    read = token_records.light(UNIT.steps[0].tokens[0])
    first = UNIT.steps[0].model_copy(update={"kind": "prefill", "tokens": (read,)})
    return UNIT.model_copy(update={"steps": (first, *UNIT.steps[1:])})


def test_steps_are_held_against_the_plan():
    whole = planned()
    assert complete.of_plan(WORK, whole) == ""
    steps, token = whole.steps, whole.steps[2].tokens[0]

    def with_third(*tokens):
        return (*steps[:2], steps[2].model_copy(update={"tokens": tokens}), *steps[3:])

    for changed, said in (
        (steps[:-1], "its last steps are missing"),
        ((*steps, steps[-1]), "it has more steps than its plan"),
        (with_third(), "step 2 lacks tokens"),
        (UNIT.steps, "step 0 lacks tokens"),
        ((steps[0].model_copy(update={"tokens": UNIT.steps[0].tokens}), *steps[1:]), "step 0 is kept as one that nobody judges"),
        (with_third(token_records.light(token)), "step 2 is kept as one that nobody judges"),
        *(
            (with_third(token.model_copy(update={name: 99})), "step 2 has other tokens than its plan")
            for name in ("request", "position", "token", "target")
        ),
    ):
        assert complete.of_plan(WORK, whole.model_copy(update={"steps": changed})).startswith(said)
    assert complete.of_plan(None, whole) == "the plan of its settings has no such unit"


def test_every_exam_is_there_once():
    settings = Settings(tps=(1, 8))
    ruling = op_rung.Ruling.model_construct()
    exams = [
        op_rung.Exam.model_construct(op=op, tp=tp, rows=rows, distribution=distribution, rulings=(ruling,))
        for op, tp, rows, distribution in op_rung.keys(Architecture.from_config(), (1, 8))
    ]  # fmt: skip
    assert complete.of_exams(exams, settings) == ""
    unruled = [exams[0].model_copy(update={"rulings": ()}), *exams[1:]]
    for changed in (exams[:1], exams[:-1], exams + exams, exams[1:] + exams[:1], unruled):
        assert complete.of_exams(changed, settings) == "it has not every exam of its settings once"
    assert complete.of_exams(exams, Settings(tps=(8,)))


def test_every_point_of_the_long_rung_is_there_with_every_path():
    """By hand: two decades of steps, and both contexts to their ends."""
    settings = Settings(steps=100, context=(256, 1000), replicas=2)
    errors = {path: (1e-3,) for path in (STOCK, CANDIDATE, "again-1", "again-2")}
    steps = [(what, at) for at in (1, 10, 100) for what in ("state", "output")]
    contexts = [("context of 256", at) for at in places(256)] + [("context of 1000", at) for at in places(960)]
    points = [Point(what=what, at=at, errors=errors) for what, at in steps + contexts]
    assert complete.of_points(points, settings) == ""
    for changed in (points[:2], points[:6], points[6:], points[:-1], [*points, points[-1]]):
        assert complete.of_points(changed, settings) == "it has not every point of its settings once"
    for lacking in (without(errors, CANDIDATE), errors | {CANDIDATE: ()}):
        assert complete.of_points([points[0].model_copy(update={"errors": lacking}), *points[1:]], settings) == "points lack paths"
