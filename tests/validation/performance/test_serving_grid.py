"""The grid of a whole server: its cells by hand, and which of them a machine can run."""

import pytest
from pydantic import ValidationError

from fasttrack_validation.claims.acceptance import limit
from fasttrack_validation.errors import UserError
from fasttrack_validation.performance.serving_grid import Drafting, Load, ServingGrid, plan, serving_grid

GRID = serving_grid("kimi_k3")


def test_the_published_grid():
    cells = GRID.cells
    # two loads of 2 TP x 3 x 2 prompt lengths x 7 batches, and 2 TP x 2 x 4 of agentic load
    assert len(cells) == 2 * 84 + 16 and len({cell.key for cell in cells}) == len(cells)
    assert {cell.tp for cell in cells} == {8, 16} and {cell.load for cell in cells} == set(Load)
    assert {cell.concurrency for cell in cells} == {1, 2, 4, 8, 16, 32, 64}
    assert {cell.isl for cell in cells} == {1024, 32768, None}
    assert all(cell.isl is None for cell in cells if cell.load is Load.AGENTIC)
    assert {cell.speculation for cell in cells} == set(Drafting)
    assert cells[0].key == "tp8-decode_only-b1-i1024-off"
    # An agentic trace is not sampled with a forced draft.
    assert Drafting.FORCED not in {cell.speculation for cell in cells if cell.load is Load.AGENTIC}


def test_forced_acceptance_is_a_published_one():
    assert GRID.forced_acceptance <= limit(GRID.model, GRID.draft_tokens).value
    data = GRID.model_dump(mode="json")
    with pytest.raises(ValidationError, match="highest published"):
        ServingGrid.model_validate({**data, "forced_acceptance": 6.0})
    with pytest.raises(ValidationError, match="twice"):
        ServingGrid.model_validate({**data, "block": [data["block"][0]] * 2})
    with pytest.raises(ValidationError, match="isl"):
        ServingGrid.model_validate({**data, "block": [{**data["block"][0], "isl": []}]})


def test_every_cell_says_why_it_cannot_run():
    assert all(one.excluded == "the grid is about gb300, this machine has h200" for one in plan(GRID, "h200", 8))
    small = plan(GRID, "gb300", 8)
    assert {one.cell.tp: one.excluded for one in small} == {8: None, 16: "needs 16 gb300, this machine has 8"}
    assert all(one.excluded is None for one in plan(GRID, "gb300", 72))


def test_a_contract_without_one():
    with pytest.raises(UserError, match="has no grid of a server"):
        serving_grid("nobody")
