"""Each check of the judge, and the test in which it is switched off and an exploit then succeeds, or why there is none.

`python -m guarded` (here, with ../support on the path) prints the table of README.md.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Guarded:
    """`test` is FILE::NAME in this directory, `case` its parameter; without a test `exploit` says why there is none."""

    check: str
    exploit: str
    test: str = ""
    case: str = ""


_SWITCHED = "test_guards.py::test_without_its_guard_the_exploit_is_accepted"
_LAUNCHED = "test_guards_on_a_device.py::test_without_its_guard_the_exploit_is_accepted"
_TIMED = "test_guards_of_timing.py::test_without_its_guard_the_exploit_is_promoted"

GUARDED = (
    Guarded("record", "what is refused here leaves no plan: nothing could be accepted in its place"),
    Guarded("plan", "carries a kernel that is never launched", _SWITCHED, "plan rules"),
    Guarded("compile", "code that is refused here can only be run by a GPU; `test_cuda_samples.py` holds it there"),
    Guarded("compile", "fills a stage again that may still be read",
            "test_guards_on_a_device.py::test_without_the_rule_on_fences_a_refill_is_accepted"),
    Guarded("execution", "a launch that did not end left no result that could be accepted"),
    Guarded("C1", "replaces the ruling of its own process",
            "test_guards.py::test_in_one_process_with_the_judge_the_exploit_is_accepted", "together"),
    Guarded("C2", "computes nothing and looks its answers up",
            "test_guards_on_a_device.py::test_without_fresh_inputs_a_bank_of_answers_is_accepted"),
    Guarded("C2", "draws the same inputs twice", "test_guards_on_a_device.py::test_inputs_that_recur_make_the_verdict_invalid"),
    Guarded("C3", "answers with what it gave the first time", _TIMED, "C3"),
    Guarded("C4", "leaves the answer of the reference where it found it", _SWITCHED, "poison"),
    Guarded("C4", "reads what was never written", _SWITCHED, "uninitialised reads"),
    Guarded("C4", "writes a page that is nobody's", _SWITCHED, "foreign pages"),
    Guarded("C4", "writes before its output", _LAUNCHED, "guard bands"),
    Guarded("C5", "changes an input", _LAUNCHED, "inputs unchanged"),
    Guarded("C6", "works on where the last event does not see it", _TIMED, "C6"),
    Guarded("C7", "takes no time at all", _TIMED, "C7"),
    Guarded("C8", "runs another kernel under the plan's name", _LAUNCHED, "launch audit"),
    Guarded("C9", "returns NaN", _SWITCHED, "finite outputs"),
    Guarded("numerics", "returns zeros", _SWITCHED, "numerics"),
    Guarded("numerics", "adds half as much again", _LAUNCHED, "numerics"),
    Guarded("C11", "clamps to the range that tests like", _SWITCHED, "distributions"),
    Guarded("C12", "returns zeros to an exam that takes them",
            "test_guards.py::test_without_task_sanity_zeros_are_accepted_by_a_lax_contract"),
    Guarded("C13", "hard-coded stride", _SWITCHED, "unseen layouts"),
    Guarded("C14", "races", _SWITCHED, "races"),
    Guarded("C14", "lets a neighbour's input in", _SWITCHED, "neighbours"),
    Guarded("C14", "sums in the order of arrival", _SWITCHED, "program order"),
    Guarded("C14", "gives other bits when it is run again", _LAUNCHED, "repeated runs"),
    Guarded("C15", "needs a GPU and its tools; without them a verdict says `sanitizer.not_run`"),
    Guarded("C16", "no confinement at all: the sandbox tries forbidden acts at its start and refuses to be used",
            "test_sandbox_exploits.py::test_a_rung_that_confines_nothing_is_found_out"),
    Guarded("C17", "edits the comparator while the judge is at work",
            "test_guards.py::test_without_the_seal_a_judge_that_was_edited_accepts"),
    Guarded("C20", "slows the stock path by its switches", _TIMED, "C20"),
    Guarded("C21", "leaves a process behind that slows the stock path", _TIMED, "C21"),
)  # fmt: skip


def table() -> str:
    """The table in Markdown."""
    rows = [
        (one.check, one.exploit, f"`{one.test}`" + (f" [{one.case}]" if one.case else "") if one.test else "-")
        for one in GUARDED
    ]
    head = "| check | exploit that succeeds without it, or why there is none | test |"
    return "\n".join((head, "| --- " * 3 + "|", *("| " + " | ".join(row) + " |" for row in rows)))


if __name__ == "__main__":
    print(table())
