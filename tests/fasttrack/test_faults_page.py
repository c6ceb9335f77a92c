"""The page of planted faults says what the kept run of them says.

FASTTRACK_GOLDEN=write puts its table into the page.
"""

import os
from pathlib import Path

from fasttrack import validate_text
from fasttrack_validation.contracts.kimi_k3.numerics.faults import FAULTS
from fasttrack_validation.numerics.whole_model.checks import Result
from fasttrack_validation.numerics.whole_model.faulted import TWIN, FaultTable
from fasttrack_validation.numerics.whole_model.scenario import RungName

NUMERICS = Path(__file__).parents[2] / "validation/numerics"
PAGE = NUMERICS / "FAULTS.md"
KEPT = FaultTable.model_validate_json((NUMERICS / "faults.json").read_bytes())


def lines() -> list[str]:
    head, *rows = validate_text.fault_rows(KEPT)
    return [f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows)]


def test_the_page_has_the_table_of_the_kept_run():
    text = PAGE.read_text("utf-8").splitlines()
    place = [number for number, line in enumerate(text) if line.startswith("|")]
    if os.environ.get("FASTTRACK_GOLDEN") == "write":
        text[place[0] : place[-1] + 1] = lines()
        PAGE.write_text("\n".join(text) + "\n", "utf-8")
    else:
        assert [text[number] for number in place] == lines()


def test_the_kept_run_is_of_all_faults_that_there_are_and_of_all_rungs():
    assert [row.fault for row in KEPT.rows] == [TWIN, *FAULTS]
    for row in KEPT.rows[1:]:
        fault = FAULTS[row.fault]
        assert (row.title, row.layer) == (fault.title, fault.layer)
        asked = set(RungName) - (set() if fault.mistake else {RungName.OP}) - ({RungName.GREEDY} if fault.tp > 1 else set())
        assert {cell.rung for cell in row.cells} == asked


def test_every_fault_is_caught_and_the_honest_twin_by_no_rung():
    assert KEPT.holds
    assert {cell.result for cell in KEPT.rows[0].cells} == {Result.PASS}
    for row in KEPT.rows[1:]:
        assert [cell for cell in row.cells if cell.result is Result.FAIL and cell.first]
