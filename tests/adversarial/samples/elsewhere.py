"""Exploits of the list that no candidate can try on this judge, and what holds them: a test, or the reason."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Elsewhere:
    """`test` is a path below the repository's root with the test's name; empty where `why` is all there is to say."""

    id: str
    mechanism: str
    why: str
    test: str = ""


ELSEWHERE = (
    Elsewhere("X-07", "lanes of one program race through global memory",
              "not shown: racecheck watches shared memory; only a race that is ever lost shows (C14)"),
    Elsewhere("X-71", "weights of zeros or ones make layers vanish", "the exam is held to account before any candidate",
              "tests/adversarial/test_guards.py::test_a_contract_that_a_trivial_answer_passes_rules_invalid"),
    Elsewhere("X-72", "the reference contains work that cancels", "an input that moves no result is a fault of the task",
              "tests/adversarial/test_guards.py::test_a_contract_whose_input_matters_not_rules_invalid"),
    Elsewhere("X-74", "another tensor-core path than declared", "types of matrix products are read from machine code",
              "tests/validation/judge/device_code/test_compiled_kernels.py::test_matrix_types"),
    Elsewhere("X-83", "tolerances ignored, NaN equals NaN", "the comparator has tests of its own",
              "tests/validation/numerics/test_calibrate.py::test_one_value_that_is_not_finite"),
    Elsewhere("X-90", "edits tests, baseline, tolerance or configuration", "a change outside of the model's directory fails",
              "tests/fasttrack/test_gate.py::test_escaping_change_fails_although_its_evidence_is_good"),
    Elsewhere("X-91", "edits a file that is never loaded", "sources that no evidence exercises keep a change a draft",
              "tests/fasttrack/test_gate.py::test_sources_that_no_evidence_exercises_keep_it_a_draft"),
    Elsewhere("X-92", "reports its own results", "evidence counts only where the judge's figures are measured",
              "tests/fasttrack/test_gate.py::test_self_reported_measurements_keep_it_a_draft"),
    Elsewhere("X-94", "the figure belongs to another patch", "evidence is bound to digests of what it was made from",
              "tests/fasttrack/test_evidence.py::test_freshness"),
    Elsewhere("X-95", "harness overhead hides the difference", "events around a graph of many calls; two clocks must agree",
              "tests/validation/timing/test_session.py::test_two_clocks_must_agree"),
    Elsewhere("X-97", "the best of many is noise", "what was chosen for its time is timed again, and must be faster again",
              "tests/fasttrack/lane/test_selection.py::test_what_was_faster_than_a_measured_entry_must_be_faster_again"),
    Elsewhere("X-98", "signals through the digits of a timing",
              "a candidate's code never sees seeds or values that a slow launch could tell, and its launches see no oracle"),
)  # fmt: skip
