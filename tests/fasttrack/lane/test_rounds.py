import lane_fakes as fakes
import pytest

from fasttrack import rounds
from fasttrack.agents.protocol import Evaluation, Proposal
from fasttrack.archive import Request
from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.judge.verdict import Status

REQUEST = Request(
    run="r", model="toy", op="copy", agent="search", why_agent="", rounds=30, budget_minutes=2.0, seed=1,
    hardware=("h200",), branch="b", base="0" * 40,
)  # fmt: skip
FLOORS = {("h200", "tp8-r1"): 10.0, ("h200", "tp8-r4"): 40.0}


def evaluation(objective, status=Status.ACCEPTED):
    config = {"BLOCK": 16, "num_warps": 1, "flip": False}
    candidate = Candidate(op="copy", entry="k.py", files={"k.py": ""}, config=config)
    judge = fakes.Judge()
    judge.status = lambda _: None if status is Status.ACCEPTED else status
    return Evaluation(Proposal(candidate, ""), judge.screen(candidate), objective)


def stop(objectives, seconds=0.0, floors=FLOORS):
    return rounds.stop(REQUEST, [evaluation(value) for value in objectives], seconds, floors)


def test_rounds_and_budget():
    assert stop([]) is None and stop([100.0]) is None
    assert stop([100.0 - i for i in range(30)]) == "all 30 rounds are used"
    assert stop([100.0], seconds=119.9) is None
    assert stop([100.0], seconds=120.0) == "the budget of 2 minutes is used"


def test_plateau_needs_a_full_window_without_gain():
    flat = [100.0] * rounds.PLATEAU_ROUNDS
    assert stop(flat) is None
    assert "gained less than 0.5%" in stop([100.0, *flat])
    assert "gained less than 0.5%" in stop([100.0, *flat[1:], 99.6])
    assert stop([100.0, *flat[1:], 99.4]) is None
    # Without anything accepted there is no plateau to stand on.
    assert stop([None] * 20) is None


def test_near_the_floor():
    # The floors sum to 50; a tenth above is 55.
    assert stop([55.1]) is None
    assert stop([54.9]) == "the best candidate is within 10% of the floor"
    assert stop([54.9], floors={**FLOORS, ("h200", "tp8-r4"): None}) is None
    # Floors of places without a time are not counted.
    assert stop([54.9], floors={**FLOORS, ("gb300", "tp8-r1"): 1000.0}) is not None
    assert stop([60.0], floors={**FLOORS, ("gb300", "tp8-r1"): 1000.0}) is None


@pytest.mark.parametrize("status", [Status.INVALID, Status.NOT_RUN, Status.INCONCLUSIVE])
def test_a_judge_that_cannot_rule_stops_the_run(status):
    sick = evaluation(None, status)
    healthy = evaluation(None, Status.REJECTED)
    assert "could not rule" in rounds.stop(REQUEST, [sick] * 3, 0, FLOORS)
    assert rounds.stop(REQUEST, [sick, healthy, sick], 0, FLOORS) is None
