"""Derived figures by hand."""

import math

import claim_records as records
import pytest
from claim_records import FORCED, NATURAL, record, server

from fasttrack_validation.claims import derive
from fasttrack_validation.claims.acceptance import limit
from fasttrack_validation.claims.measurement import Metric
from fasttrack_validation.claims.repetition import repeated_ngrams


def test_identities():
    arm = record(server(420.0, **NATURAL, workload__concurrency=4, hardware__gpus=8))
    # 4.2 tokens a step at 420 tok/s are 10 ms a step; four users are 1680 tok/s, 210 for each of eight GPUs
    assert derive.figure(arm, Metric.STEP_TIME) == pytest.approx(0.010)
    assert derive.figure(arm, Metric.TOK_S_SYSTEM) == pytest.approx(1680)
    assert derive.figure(arm, Metric.TOK_S_GPU) == pytest.approx(210)
    by_tpot = record(server(10.0, "tpot", **{**FORCED, "speculation__acceptance_length": 3.0}))
    assert derive.figure(by_tpot, Metric.STEP_TIME) == pytest.approx(0.030)
    assert derive.figure(by_tpot, Metric.TOK_S_USER) == pytest.approx(100)


@pytest.mark.parametrize("path", ["speculation.acceptance_length", "result.tok_s_user_definition"])
def test_nothing_is_derived_from_what_is_unknown(path):
    arm = records.merged(server(420.0, **NATURAL), {path: None, "result.tpot": None})
    assert derive.figure(record(arm), Metric.STEP_TIME) is None


def test_a_rate_over_whole_requests_is_not_about_steps():
    arm = record(
        server(420.0, **NATURAL, result__tok_s_user_definition="output_tokens/request_latency", result__tpot=None)
    )
    assert derive.figure(arm, Metric.STEP_TIME) is None


def test_interval_by_hand():
    candidate = [1.0, 1.0, 1.0, 1.0, 1.0]
    baseline = [1.1, 1.2, 1.3, 1.2, 1.1]

    def arm(values):
        series = {"unit": "ms", "values": values}
        return {"result__tok_s_user": None, "result__repetitions": {"metric": "tpot", "interleaved": True, "series": series},
                "result__tpot": None}  # fmt: skip

    claim = records.parsed(records.simple(candidate=arm(candidate), baseline=arm(baseline)))
    logs = [math.log(one) for one in baseline]
    mean = sum(logs) / 5
    half = 2.776 * math.sqrt(sum((one - mean) ** 2 for one in logs) / 4) / math.sqrt(5)
    found = derive.ratio(claim.pairs[0], Metric.TPOT)
    assert (found.value, found.low, found.high) == pytest.approx(
        (math.exp(mean), math.exp(mean - half), math.exp(mean + half))
    )


def test_amdahl():
    assert derive.end_to_end(1.36, 0.5) == pytest.approx(2.72 / 2.36)
    assert derive.end_to_end(2.0, 1.0) == 2.0 and derive.end_to_end(2.0, 0.0) == 1.0


def test_floor():
    arm = record(server(100.0, hardware__sku="h200", validity__floor={"moved_bytes": 48_000_000, "flops": 0}))
    assert derive.floor_seconds(arm) == pytest.approx(10e-6)
    assert derive.floor_seconds(record(server(100.0, hardware__sku="a card that nobody wrote down"))) is None


def test_published_acceptance():
    # All of the model's curves up to K, else the highest of any.
    assert limit("moonshotai/Kimi-K3", 3).value == 3.00
    assert limit("moonshotai/Kimi-K3", 7).value == 5.22
    assert limit("another", 3).value == limit(None, None).value == 5.21


def test_repeated_ngrams_by_hand():
    # 20 words of one cycle of 4: 13 8-grams, 4 of them different
    assert repeated_ngrams(["a b c d " * 5]) == pytest.approx(1 - 4 / 13)
    assert repeated_ngrams([" ".join(map(str, range(40)))]) == 0
    assert repeated_ngrams(["啊" * 30]) == pytest.approx(22 / 23)
    assert repeated_ngrams(["too short", ""]) is None
