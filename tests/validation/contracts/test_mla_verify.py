"""A verify step of MLA: rows that share pages, what each may see, and every known mistake between them."""

import op_exam
import pytest
import torch
from fasttrack_validation import contracts
from fasttrack_validation.contracts.base import Cost, Workload
from fasttrack_validation.numerics.calibrate import Decision

OP = contracts.load("kimi_k3").op("mla_verify")
NANO, SINGLE = op_exam.nano("mla_verify"), op_exam.nano("mla_core")
REQUESTS, TOKENS = 3, 4
# Pages of 16, so that requests cross them; whole pools of them fit a CPU's moment.
AT = Workload(
    name="small",
    axes={
        "tp": 4, "rows": REQUESTS * TOKENS, "heads": NANO.heads(4), "page_size": 16, "table_width": 4, "table_stride": 5,
        "pages": 1 + REQUESTS * 4 + 2, "page_stride": 16 * NANO.latent_width + 16, "tokens": TOKENS,
    },
)  # fmt: skip


@pytest.fixture(scope="module")
def trials():
    found = {}
    for name in NANO.distributions:
        inputs = NANO.make_inputs(AT, name, 7)
        found[name] = (inputs, NANO.oracle(inputs, AT), NANO.plain(inputs, AT))
    return found


def failed(trial, got):
    inputs, expected, plain = trial
    return any(r.decision is not Decision.PASS for r in op_exam.rulings(NANO, AT, inputs, expected, plain, got))


def test_declared_batches_are_of_widths_two_and_eight_and_unseen_ones_of_others():
    widths = {1: 1, 2: 2, 4: 2, 8: 8, 16: 8, 32: 8, 64: 8}
    assert {w.name: (w.axes["rows"], w.axes["tokens"]) for w in OP.workloads()} == {
        f"tp{tp}-b{rows}": (rows, widths[rows]) for tp in (8, 16) for rows in widths
    }
    held_out = {(w.axes["rows"], w.axes["tokens"]) for w in OP.workloads(held_out=True)}
    assert {tokens for _, tokens in held_out} >= {1, 3, 5, 7} and (30, 5) in held_out
    for base in OP.workloads():
        varied = [OP.vary(base, seed).axes for seed in range(12)]
        below = base.axes["rows"] // 2
        assert all(below < axes["rows"] <= base.axes["rows"] and axes["tp"] == base.axes["tp"] for axes in varied)
        assert all(axes["rows"] % axes["tokens"] == 0 and 1 <= axes["tokens"] <= 8 for axes in varied)
        assert all(axes["tokens"] > 1 or axes["rows"] == 1 for axes in varied), "what is new needs several"
        if below > 2:
            assert len({axes["tokens"] for axes in varied}) > 1
    for workload in (*OP.workloads(), *OP.workloads(held_out=True)):
        axes = workload.axes
        assert axes["pages"] > axes["rows"] // axes["tokens"] * axes["table_width"]
        assert axes["table_width"] * axes["page_size"] >= axes["tokens"]


def test_rows_of_a_request_share_their_table_and_requests_share_nothing(trials):
    for name, (inputs, *_) in trials.items():
        tables, lengths = inputs["page_table"].view(REQUESTS, TOKENS, -1), inputs["lengths"].view(REQUESTS, TOKENS)
        assert (tables == tables[:, :1]).all(), name
        used = [tables[r, 0, : -(-int(lengths[r].max()) // 16)].tolist() for r in range(REQUESTS)]
        pages = [page for request in used for page in request]
        assert len(set(pages)) == len(pages) and 0 not in pages, name
        for request in lengths.tolist():
            live = [length for length in request if length]
            assert request[: len(live)] == live and live == list(range(live[0], live[0] + len(live))) if live else True
            assert max(request, default=0) <= 64


def test_a_verify_step_is_single_steps(trials):
    """By the op of one token a request: same queries, each step with the lengths of its own token."""
    axes = {name: value for name, value in AT.axes.items() if name != "tokens"} | {"rows": REQUESTS}
    one = Workload(name="one", axes=axes)
    for name, (inputs, expected, plain) in trials.items():
        for t in range(TOKENS):
            own = {**inputs, **{each: inputs[each][t::TOKENS] for each in ("query", "page_table", "lengths")}}
            for path, found in ((SINGLE.oracle, expected), (SINGLE.plain, plain)):
                assert torch.equal(path(own, one)["context"], found["context"][t::TOKENS]), name


@pytest.mark.parametrize("name", list(NANO.distributions))
def test_a_masked_product_of_all_tokens_at_once_agrees(trials, name):
    """Written apart: one matrix of scores of all queries of a request against all that its last token sees."""
    inputs, expected, _ = trials[name]
    sizes, heads = NANO.architecture.mla, AT.axes["heads"]
    for request in range(REQUESTS):
        rows = slice(request * TOKENS, (request + 1) * TOKENS)
        lengths = inputs["lengths"][rows].long()
        longest = int(lengths.max())
        if not longest:
            assert not expected["context"][rows].any()
            continue
        place = torch.arange(longest)
        pages = inputs["page_table"][rows.start].long()[place // 16]
        seen = inputs["cache"][pages, place % 16].double()
        query = inputs["query"][rows].double().nan_to_num().flatten(0, 1)
        scores = query @ seen.T / (sizes.qk_nope_head_dim + sizes.qk_rope_head_dim) ** 0.5
        hidden = place >= lengths.repeat_interleave(heads)[:, None]
        weights = scores.masked_fill(hidden, float("-inf")).softmax(1).nan_to_num()
        context = (weights @ seen[:, : sizes.kv_lora_rank]).view(TOKENS, heads, -1)
        torch.testing.assert_close(context, expected["context"][rows], rtol=1e-10, atol=1e-12 * float(seen.abs().max()))


def test_what_nobody_may_read_is_poisoned_and_what_a_row_may_read_is_not(trials):
    inputs, expected, plain = trials["padded"]
    padded = inputs["lengths"] == 0
    assert padded.any() and not padded.all()
    assert inputs["query"][padded].isnan().all() and not expected["context"][padded].any()
    assert inputs["page_table"][padded].abs().max() >= 2**31 - 1
    ragged, outcome, _ = trials["ragged"]
    lengths = ragged["lengths"].view(REQUESTS, TOKENS)
    assert (lengths[:, 0] > 0).all() and (lengths[:, -1] == 0).any()
    for drawn, path in ((inputs, expected), (inputs, plain), (ragged, outcome)):
        assert not path["context"].isnan().any()
        longest = drawn["lengths"].view(REQUESTS, TOKENS).amax(1)
        finite = drawn["cache"].isfinite().all(2).sum()
        assert int(finite) == int(longest.sum()), "all that a request sees, and nothing else"


@pytest.mark.parametrize("description", [name for name in NANO.hypotheses if name not in SINGLE.hypotheses])
def test_a_mistake_between_rows_is_rejected(trials, description):
    mistake = NANO.hypotheses[description]
    assert any(failed(trial, mistake(trial[0], AT)) for trial in trials.values())


@pytest.mark.parametrize("description", ["every token sees the one behind it as well: the mask is off by one",
                                         "no token but the first sees its own cached row: the mask is off by one"])  # fmt: skip
def test_a_mask_that_is_off_by_one_shows_where_tokens_look_for_themselves(trials, description):
    assert failed(trials["newest"], NANO.hypotheses[description](trials["newest"][0], AT))


def test_every_mistake_of_a_single_step_is_known_here_too():
    assert set(SINGLE.hypotheses) < set(NANO.hypotheses)


def test_probabilities_in_bf16_are_honest_and_so_are_both_paths(trials):
    for name, trial in trials.items():
        for path in (NANO.maths.with_bf16_probabilities, lambda op, inputs, at: op.plain(inputs, at)):
            assert not failed(trial, path(NANO, trial[0], AT)), name


@pytest.mark.parametrize("row", range(REQUESTS * TOKENS))
def test_a_row_alone_changes_with_what_it_alone_reads(trials, row):
    """The newest cached row of a request is its last live token's alone; those before it are seen by several."""
    for name in ("typical", "ragged", "padded"):
        inputs, before, _ = trials[name]
        changed = NANO.perturb_row(inputs, AT, row, 9)
        live = int(inputs["lengths"][row]) > 0
        last = live and (row % TOKENS == TOKENS - 1 or int(inputs["lengths"][row + 1]) == 0)
        moved = (changed["cache"] != inputs["cache"]) & ~inputs["cache"].isnan()
        assert int(moved.any(2).sum()) == int(last), name
        after = NANO.oracle(changed, AT)["context"]
        same = (after == before["context"]).flatten(1).all(1).tolist()
        assert same == [other != row or not live for other in range(len(same))], name


def test_far_pages_begin_behind_two_to_the_31_elements():
    for workload in OP.workloads():
        far = OP.far(workload)
        assert far.shift * workload.axes["page_stride"] > 2**31 and far.workload.axes["pages"] < 2**31
        assert far.workload.axes["pages"] - far.shift == workload.axes["pages"]
        assert (far.pages, far.pools) == ("page_table", ("cache",))


def test_cost_by_hand():
    # TP8, 2 requests of 8 with full tables of 4096: each cached row of 1152 bytes once; 16 queries of 12 heads; 64 entries
    # of each request's table and 16 lengths. 576 and 512 products a head and row seen.
    cost = OP.cost(next(w for w in OP.workloads() if w.name == "tp8-b16"))
    assert cost == Cost(
        bytes_read=2 * 4096 * 1152 + 16 * 12 * 1152 + 4 * (2 * 64 + 16), bytes_written=16 * 12 * 1024,
        flops=2 * 16 * 4096 * 12 * 1088,
    )  # fmt: skip
