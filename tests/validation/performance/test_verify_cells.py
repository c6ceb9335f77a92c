"""Cells of MLA verify steps: what is drawn, which rows are examined, and what they cost; by hand and against single steps."""

from types import SimpleNamespace

import k3_weights
import op_exam
import pytest
import torch
from fasttrack_validation import contracts
from fasttrack_validation.contracts.kimi_k3.op import Layout
from fasttrack_validation.contracts.kimi_k3.rows_examined import Sample, examined_rows
from grid_shards import small_grid, spec

OF = k3_weights.nano()
TOKENS, REQUESTS, CONTEXT = 3, 2, 62
CELL = spec("mla_moe", 2, REQUESTS * TOKENS, TOKENS).model_copy(update={"context": CONTEXT})
GRID = contracts.load("kimi_k3").grid


@pytest.fixture(scope="module")
def shard():
    return small_grid(OF).shard(CELL, "h200")


@pytest.fixture(scope="module")
def tensors(shard):
    return shard.draw(11, "cpu")


def test_every_verify_cell_of_the_design_is_in_the_grid_and_can_be_run():
    cells = {cell.key for cell in GRID.cells("h200") if cell.width == 8 and GRID.excluded(cell, 8) is None}
    wanted = {
        f"tp{tp}-mla_moe-r{rows}-v8-c{context}"
        for tp in (8, 16) for rows in (8, 16, 32, 64) for context in (1024, 32768, 131072)
    }  # fmt: skip
    assert wanted <= cells
    assert GRID.excluded(spec("mla_moe", 8, 8, 8), 1) == "kernels take 1 token a request, this is a verify step of 8"


def test_rows_of_a_request_share_pages_and_see_one_cached_row_more_each(shard, tensors):
    """By hand: 62 cached tokens and three of a step lie in two pages of 64, of which the last token begins the second."""
    table, lengths = tensors["3.mla_query.page_table"], tensors["3.mla_query.lengths"]
    assert table is tensors["3.mla_verify.page_table"] and lengths is tensors["3.mla_verify.lengths"]
    assert lengths.tolist() == [63, 64, 65] * REQUESTS
    assert table.shape == (6, 2)
    for request in range(REQUESTS):
        assert torch.equal(table[3 * request : 3 * request + 3], table[3 * request].expand(3, -1))
    pages = table[::TOKENS].flatten().tolist()
    assert sorted(pages) == [1, 2, 3, 4] and len(tensors["3.mla_query.cache"]) == 5
    assert "mla_core" not in {node.op for node in shard.own.nodes}


def test_the_sample_takes_whole_requests_with_their_own_pages(shard, tensors):
    assert examined_rows(64, 8) == [*range(8), *range(56, 64)]
    sample = Sample(shard.own, tensors, range(3, 6))
    table = tensors["3.mla_query.page_table"]
    assert sample.requests == (1,) and sample.pages["3.mla_query.cache"].tolist() == table[3].tolist()
    assert sample.tensors["3.mla_verify.page_table"].tolist() == [[1, 2]] * 3
    assert torch.equal(sample.tensors["3.mla_query.cache"][1:], tensors["3.mla_query.cache"][table[3].long()])
    whole = Sample(shard.own, tensors, range(6))
    assert whole.tensors["3.mla_verify.page_table"].tolist() == [[1, 2]] * 3 + [[3, 4]] * 3
    alone, among = (one.walk(lambda contract: contract.oracle) for one in (sample, whole))
    # Products of fewer rows are summed in another order.
    for value in ("3.mla_verify.context", "3.mla_value.out", "3.latent_up.stream"):
        torch.testing.assert_close(alone[value], among[value][3:], rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(alone["3.mla_query.cache"][1:], among["3.mla_query.cache"][3:], rtol=1e-11, atol=1e-12)


def test_the_oracles_walk_is_single_steps_one_after_the_other(shard, tensors):
    """Queries and cores of one token a request, which were written apart from verify steps, on the same projections."""
    values = Sample(shard.own, tensors, range(6)).walk(lambda contract: contract.oracle)
    query, core = op_exam.nano("mla_query"), op_exam.nano("mla_core")
    given = {name.partition("mla_query.")[2]: t for name, t in tensors.items() if name.startswith("3.mla_query.")}
    # The sample numbers pages in the order of requests.
    table = torch.tensor([[1, 2], [3, 4]], dtype=torch.int32)
    cache = tensors["3.mla_query.cache"][torch.cat([torch.zeros(1), tensors["3.mla_query.page_table"][::3].flatten()]).long()]
    cache = cache.double()
    for t in range(TOKENS):
        own = {
            **given, "projected": values["3.mla_projection.projected"][t::TOKENS], "page_table": table, "cache": cache,
            "lengths": torch.full((REQUESTS,), CONTEXT + 1 + t, dtype=torch.int32),
        }  # fmt: skip
        at = query.at(2, REQUESTS, Layout(), "single")
        at = at.model_copy(update={"axes": at.axes | {"page_size": 64, "table_width": 2}})
        left = query.oracle(own, at)
        cache = left["cache"]
        one = core.at(2, REQUESTS, Layout(), "single")
        seen = core.oracle({**own, "cache": cache, "query": left["query"]}, one)
        torch.testing.assert_close(seen["context"], values["3.mla_verify.context"][t::TOKENS], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(cache, values["3.mla_query.cache"].double(), rtol=0, atol=0)


def test_a_fault_between_a_requests_tokens_leaves_the_limits_of_the_cell(shard, tensors):
    """Known mistakes of the op, walked through the layer: what leaves it differs from the oracle's."""
    sample = Sample(shard.own, tensors, range(6))
    exact, plain = (sample.walk(lambda c: getattr(c, path)) for path in ("oracle", "plain"))  # noqa: B023
    verify = shard.own.contracts["mla_verify"]
    for mistake in ("every token sees all tokens of its request: no mask among them",
                    "every request reads the table of the one before it"):  # fmt: skip
        wrong = sample.walk(lambda c: verify.hypotheses[mistake] if c is verify else c.oracle)  # noqa: B023
        for value in ("3.mla_verify.context", "3.o_proj_residual.partial"):
            error, noise = ((one[value].double() - exact[value].double()).norm() for one in (wrong, plain))
            assert error > 4 * noise, (mistake, value)


@pytest.mark.parametrize(("tp", "rows", "context"), [(8, 16, 32768), (16, 64, 1024)])
def test_a_requests_cached_rows_count_once(tp, rows, context):
    """By hand against the cell of single tokens: there each row has a cached context and one row of its own; here each
    request of eight has one context and eight rows. 576 channels of two bytes. All else is read row by row in both."""
    cells = {cell.key: cell for cell in GRID.cells("h200")}
    verify = GRID.shard(cells[f"tp{tp}-mla_moe-r{rows}-v8-c{context}"], "h200").cost
    single = GRID.shard(cells[f"tp{tp}-mla_moe-r{rows}-c{context}"], "h200").cost
    seen = rows // 8 * (context + 8) - rows * (context + 1)
    assert verify.bytes_read - single.bytes_read == seen * 576 * 2
    assert verify.bytes_written == single.bytes_written


def test_pools_hold_the_requests_pages_alone():
    """By hand: eight requests of 131072 cached rows and eight of the step, in pages of 64."""
    cells = {cell.key: cell for cell in GRID.cells("h200")}
    shard = GRID.shard(cells["tp8-mla_moe-r64-v8-c131072"], "h200")
    specs = shard.own.drawn_specs
    assert specs["15.mla_query.cache"].shape == (1 + 8 * 2049, 64, 576)
    assert specs["15.mla_verify.page_table"].shape == (64, 2049)


class Launches:
    """Stands where a kernel does, and keeps the grids that it is launched with."""

    def __init__(self):
        self.grids = []

    def __getitem__(self, grid):
        self.grids.append(grid)
        return lambda *arguments, **options: None


@pytest.mark.parametrize(("tp", "tiles"), [(8, 3), (16, 2)])
def test_both_paths_ask_for_a_requests_cached_rows_once_a_tile_of_queries(tp, tiles, monkeypatch):
    """By hand: 96 / tp heads of eight tokens are 96 and 48 queries in tiles of 32, and not eight rows of their own; tiles of
    one slice are next to each other in the order of programs, whose first axis runs fastest."""
    from fasttrack_models.kimi_k3.kernels import mla_verify as own
    from fasttrack_validation.contracts.kimi_k3.stock import mla_core as stock

    op, requests = contracts.load("kimi_k3").op("mla_verify"), 2
    axes = next(w.axes for w in op.workloads() if w.name == f"tp{tp}-b{8 * requests}")
    rows, heads = 8 * requests, axes["heads"]
    ours, theirs = Launches(), Launches()
    for module, launches in ((own, ours), (stock, theirs)):
        monkeypatch.setattr(module, "_attend" if module is own else "_attend_kernel", launches)
    monkeypatch.setattr(own, "_combine", Launches())
    monkeypatch.setattr(stock, "_merge_kernel", Launches())
    query, out = torch.empty(rows, heads, 576, dtype=torch.bfloat16), torch.empty(rows, heads, 512, dtype=torch.bfloat16)
    table, lengths = torch.zeros(rows, 64, dtype=torch.int32), torch.zeros(rows, dtype=torch.int32)
    cache = torch.empty(1, 64, 576, dtype=torch.bfloat16)
    names = ("query", "page_table", "lengths", "cache", "sums", "largest", "totals", "context")
    buffers = SimpleNamespace(**dict(zip(names, (query, table, lengths, cache, None, None, None, out), strict=True)))
    config = {"block_q": 32, "splits": 16, "block_tokens": 32, "num_warps": 8, "num_stages": 2}
    own.launch(None, buffers, axes, config)
    paging = stock.Paging(table, lengths, width=8)
    stock.attend(query[..., :512], query[..., 512:], cache, paging, op.architecture.mla, out, 132)
    assert ours.grids == [(tiles, 16, requests)]
    ((first, second, splits),) = theirs.grids
    assert (first, second) == (tiles, requests) and splits > 1
