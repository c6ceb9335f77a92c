"""C12: what of a task is drawn alike by chance is no fault of the task."""

from toy_contract import Toy

from fasttrack_validation.judge.sanity import check_task
from fasttrack_validation.judge.verdict import Outcome


class Alike(Toy):
    """The first `same` redraws have the slots of the inputs; none differs where it is None."""

    def __init__(self, same: int | None) -> None:
        self._same = same

    def make_inputs(self, workload, distribution, seed):
        made = super().make_inputs(workload, distribution, seed)
        if self._same is None or seed <= 100 + self._same:
            made["slots"] = super().make_inputs(workload, distribution, 100)["slots"]
        return made


def checked(same):
    contract = Alike(same)
    return check_task(contract, contract.workloads()[1], 100)


def test_slots_that_were_drawn_alike_once_are_drawn_again():
    assert checked(0).outcome is Outcome.PASS
    assert checked(2).outcome is Outcome.PASS, checked(2).message


def test_an_input_that_never_moves_a_result_is_a_fault_of_the_task():
    found = checked(None)
    assert (found.outcome, found.reason, found.message) == (Outcome.INVALID, "task.insane", "slots influences no result")
