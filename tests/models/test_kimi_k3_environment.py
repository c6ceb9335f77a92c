"""When the specialised path is not used: every reason against a deployment, every reason against a step."""

from dataclasses import replace

import pytest
from fasttrack_models.kimi_k3 import environment as env
from fasttrack_models.kimi_k3.environment import Claim, Environment, Reason, Unsupported, specialised, unsupported
from fasttrack_models.kimi_k3.plan import Fallback, Plan, Prepared, Step, Why, plan
from fasttrack_models.kimi_k3.shape import PUBLISHED

CLAIMS = (Claim("h200", 8, (1, 64), 1), Claim("h200", 16, (1, 64), 1), Claim("gb300", 8, (1, 64), 1))
FINE = Environment(
    hardware="h200", capability=(9, 0), multiprocessors=132, tp=8, shape=PUBLISHED, ranks_here=8
)
# What is changed -> all that then speaks against the deployment.
OBJECTIONS = {
    Reason.GPU: {"hardware": "a100", "capability": (8, 0)},
    Reason.MULTIPROCESSORS: {"multiprocessors": 66},
    Reason.TP: {"tp": 4, "ranks_here": 4},
    Reason.PARALLELISM: {"dcp": 8},
    Reason.EXCHANGE: {"ranks_here": 1},
    Reason.MODEL: {"shape": replace(PUBLISHED, block_size=6)},
    Reason.LATENT_CACHE: {"latent_cache": "fp8"},
    Reason.CONV_CACHE: {"conv_cache": "fp16"},
    Reason.RECURRENT_CACHE: {"recurrent_cache": "bf16"},
    Reason.DENSE_WEIGHTS: {"dense_weights": "nvfp4"},
    Reason.EXPERT_WEIGHTS: {"expert_weights": "mxfp4-marlin"},
    Reason.BATCH_INVARIANT: {"batch_invariant": True},
    Reason.KV_TRANSFER: {"kv_connector": "nixl"},
    Reason.SPECULATION: {"speculation": "dspark", "verify_width": 8},
    Reason.LORA: {"lora": True},
    Reason.SLEEP_MODE: {"sleep_mode": True},
    Reason.MICRO_BATCHES: {"micro_batches": True},
    Reason.GRAPHS: {"full_graphs": False},
    Reason.COMPILER: {"compiler": True},
}


def reasons(environment):
    return [objection.reason for objection in unsupported(environment, CLAIMS)]


def test_nothing_speaks_against_a_deployment_inside_the_envelope():
    assert reasons(FINE) == []
    assert reasons(replace(FINE, hardware="gb300", capability=(10, 3), multiprocessors=148)) == []


def test_every_reason_has_a_deployment_that_gives_it():
    assert set(OBJECTIONS) == set(Reason)


@pytest.mark.parametrize("reason", OBJECTIONS)
def test_each_condition_alone_gives_its_reason_alone(reason):
    assert reasons(replace(FINE, **OBJECTIONS[reason])) == [reason]


def test_all_reasons_are_said_at_once():
    wrong = [Reason.LATENT_CACHE, Reason.DENSE_WEIGHTS, Reason.KV_TRANSFER, Reason.LORA]
    changes = {name: value for reason in wrong for name, value in OBJECTIONS[reason].items()}
    assert reasons(replace(FINE, **changes)) == wrong


def test_a_model_that_differs_is_told_by_what_differs():
    (objection,) = unsupported(replace(FINE, shape=replace(PUBLISHED, block_size=6, layers=92)), CLAIMS)
    assert "block_size: 6, not 12" in objection.text and "layers: 92, not 93" in objection.text


def test_the_backend_decides_with_the_objections():
    none, some = unsupported(FINE, CLAIMS), unsupported(replace(FINE, lora=True, sleep_mode=True), CLAIMS)
    assert specialised("auto", none) and specialised("latency_specialized", none)
    assert not specialised("auto", some) and not specialised("stock", none) and not specialised("stock", some)
    with pytest.raises(Unsupported, match="LoRA adapters(.|\n)*sleep mode"):
        specialised("latency_specialized", some)
    with pytest.raises(ValueError, match="fastest"):
        specialised("fastest", none)


PREPARED = Prepared(buckets=(1, 2, 4, 8, 32), verify_width=2, pages=10)
# The step, what is prepared -> why it is left to the stock path.
FALLBACKS = {
    Why.PREFILL: (Step((1, 1), prefills=1), PREPARED),
    Why.EMPTY: (Step(()), PREPARED),
    Why.ROWS: (Step((1,) * 65), replace(PREPARED, buckets=(128,))),
    Why.SLOWER: (Step((1,) * 9), replace(PREPARED, faster={1: 8})),
    Why.RAGGED: (Step((2, 1)), PREPARED),
    Why.VERIFY: (Step((3, 3)), PREPARED),
    Why.UNPREPARED: (Step((1,) * 33), PREPARED),
    Why.PAGES: (Step((1,), pages=11), PREPARED),
    Why.CACHES: (Step((1,)), replace(PREPARED, bound=False)),
    Why.PIPELINE: (Step((1,), intermediate=True), PREPARED),
    Why.PIECEWISE: (Step((1,), piecewise=True), PREPARED),
}


def test_every_fallback_has_a_step_that_gives_it():
    assert set(FALLBACKS) == set(Why)


@pytest.mark.parametrize("why", FALLBACKS)
def test_each_step_outside_gives_its_reason(why):
    answer = plan(*FALLBACKS[why])
    assert isinstance(answer, Fallback) and answer.why is why and answer.text


@pytest.mark.parametrize(
    ("counts", "bucket", "padding"),
    [((1,), 1, 0), ((1, 1, 1), 4, 1), ((2, 2), 4, 0), ((2, 2, 2), 8, 2), ((1,) * 9, 32, 23), ((1,) * 32, 32, 0)],
)
def test_a_step_runs_on_the_smallest_size_that_holds_it(counts, bucket, padding):
    answer = plan(Step(counts, pages=10), PREPARED)
    assert answer == Plan(sum(counts), bucket, counts[0]) and answer.padding == padding


def test_a_verify_step_is_padded_by_whole_requests():
    prepared = Prepared(buckets=(1, 2, 4, 8, 16, 32, 64), verify_width=8, pages=1)
    for tokens in range(1, 9):
        for requests in range(1, 65):
            answer = plan(Step((tokens,) * requests), prepared)
            sizes = [tokens * n for n in prepared.buckets if tokens * n <= 64]
            if tokens * requests > sizes[-1]:
                assert answer.why is (Why.ROWS if tokens * requests > 64 else Why.UNPREPARED)
            else:
                assert answer.bucket == min(size for size in sizes if size >= tokens * requests)
                assert answer.padding % tokens == 0 and answer.tokens == tokens
    assert plan(Step((9,)), prepared).why is Why.VERIFY and plan(Step((8, 7)), prepared).why is Why.RAGGED
    some = replace(prepared, widths=(1, 8))
    assert plan(Step((8, 8)), some) == Plan(16, 16, 8) and plan(Step((4, 4)), some).why is Why.UNPREPARED


def test_steps_of_a_kind_that_nobody_timed_are_the_stock_path_s_where_others_were_timed():
    measured = replace(PREPARED, faster={1: 8})
    assert plan(Step((2,)), measured).why is Why.SLOWER and plan(Step((1,) * 8), measured) == Plan(8, 8, 1)
    assert plan(Step((2,)), replace(PREPARED, faster={1: 8, 2: 2})) == Plan(2, 2, 2)
    assert plan(Step((2,)), PREPARED) == Plan(2, 2, 2), "nothing is known of this hardware"


def test_cards_are_those_of_the_hardware_profiles():
    from fasttrack_validation.performance.hardware import profiles

    for name, card in env.CARDS.items():
        profile = profiles()[name]
        assert (10 * card.capability[0] + card.capability[1], card.multiprocessors) == (
            profile.target, profile.multiprocessors
        )  # fmt: skip
