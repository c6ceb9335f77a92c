"""Every kernel of Kimi K3 through the judge's recorder and interpreter, at small batches of true width."""

import pytest
from fasttrack import model_dir
from fasttrack_validation import contracts
from fasttrack_validation.judge import stages
from fasttrack_validation.judge.judge import Judge
from small_exam import findings

DIRECTORY = model_dir.load("kimi_k3")
MODEL = contracts.load("kimi_k3")
# op -> TP, rows and what is drawn: the cheaper TP, an odd batch in a layout of its own. Products of 7168 columns and
# more than 64 MB take seconds of interpretation each: slow.
SMALL = {
    "attn_res_norm": (16, 5, ("typical", "near_zero", "padded")),
    "routing": (16, 3, ("ties", "not_finite", "vanishing")),
    "latent_up": (16, 3, ("near_zero", "padded")),
    "shared_down": (16, 5, ("exact", "padded")),
    "mla_query": (16, 3, ("near_zero", "padded")),
    "mla_core": (16, 3, ("boundaries", "padded")),
    "mla_verify": (16, 8, ("newest", "ragged")),
    "mla_value": (16, 3, ("exact", "padded")),
    "o_proj_residual": (16, 3, ("exact", "cancelling_ranks")),
}
LARGE = {
    "in_projection": (16, 3, ("exact",)),
    "mla_projection": (16, 3, ("exact",)),
    "front": (16, 3, ("saturated",)),
    "experts": (16, 2, ("subnormal",)),
    "dense_up": (16, 3, ("saturated",)),
    "dense_down": (16, 3, ("exact",)),
}
# What the default configuration does not show.
OTHER = {
    "latent_up": {"structure": "fused", "block_n": 8, "block_k": 512, "splits": 1, "num_warps": 2},
    "shared_down": {"structure": "gemv", "block_n": 8, "block_k": 128, "splits": 1, "num_warps": 1},
    "mla_value": {"structure": "gemv", "block_n": 8, "block_k": 512, "splits": 1, "num_warps": 2},
    "mla_query": {"structure": "gemv", "block_n": 8, "block_k": 512, "num_warps": 2},
}


@pytest.fixture(scope="module")
def judge(kept_sandboxes):
    with Judge(MODEL) as judge:
        yield judge


def check(judge, op, tp, rows, distributions, config):
    contract = MODEL.op(op)
    workload = contract.at(tp, rows, contract._drawn("kernels"), f"tp{tp}-r{rows}")
    assert DIRECTORY.space(op).holds(config)
    wrong, _ = findings(judge, DIRECTORY.candidate(op, config), workload, distributions)
    assert wrong == []


@pytest.mark.parametrize("op", SMALL)
def test_a_kernel_passes_small_batches(judge, op):
    check(judge, op, *SMALL[op], DIRECTORY.space(op).default)


@pytest.mark.parametrize("tp", [2, 4])
def test_attention_takes_more_heads_than_a_tensor_core(judge, tp):
    """48 and 24 heads, the second with a group that is not full."""
    check(judge, "mla_core", tp, 2, ("boundaries",), DIRECTORY.space("mla_core").default)


def test_several_tiles_of_queries_share_the_cached_rows_of_a_request(judge):
    """48 heads of two tokens: three tiles, whose tokens see different lengths."""
    check(judge, "mla_verify", 2, 2, ("boundaries", "newest"), DIRECTORY.space("mla_verify").default)


# What `prepare` gives comes back through the sandbox, whose answers are limited.
PREPARED_MEGABYTES = {"front": 80, "experts": 80}


@pytest.mark.slow
@pytest.mark.parametrize("op", LARGE)
def test_a_kernel_with_a_large_weight_passes_a_small_batch(judge, op):
    if stages.RECORD_LIMITS.output_bytes < PREPARED_MEGABYTES.get(op, 0) << 20:
        pytest.skip(f"{PREPARED_MEGABYTES[op]} MB of repacked weights do not fit the recorder's answer")
    check(judge, op, *LARGE[op], DIRECTORY.space(op).default)


@pytest.mark.slow
@pytest.mark.parametrize("op", OTHER)
def test_another_structure_passes_small_batches(judge, op):
    tp, rows, distributions = SMALL[op]
    # What the values do to the sums is shown by the default: one draw shows where this structure puts them.
    check(judge, op, tp, rows, distributions[:1], {**DIRECTORY.space(op).default, **OTHER[op]})


def test_a_kernel_with_another_epsilon_fails(judge):
    candidate = DIRECTORY.candidate("mla_query", DIRECTORY.space("mla_query").default)
    files = {name: text.replace("Q_EPS = 1e-6", "Q_EPS = 1e-5") for name, text in candidate.files.items()}
    assert files != candidate.files
    contract = MODEL.op("mla_query")
    workload = contract.at(16, 3, contract._drawn("kernels"), "tp16-r3")
    wrong, _ = findings(judge, candidate.model_copy(update={"files": files}), workload, ("near_zero",))
    assert wrong and "near_zero: query" in wrong[0]
