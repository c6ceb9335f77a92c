"""Every rule has a claim that it objects to, for the stated reason, and a twin that it lets pass."""

import claim_records as records
import pytest
from claim_records import DRAFT, FORCED, NATURAL, claim, pair, parsed, server, simple

from fasttrack_validation.claims import rules
from fasttrack_validation.claims.check import check
from fasttrack_validation.claims.findings import Effect, Status
from fasttrack_validation.claims.render import markdown

TP16 = {"hardware__gpus": 16, "topology__tp": 16}
DECODE = {"timed__phase": "decode", "timed__prefill_in_window": False, "timed__share": 0.6}
CACHED = {"engine__prefix_cache": True}
CHAT = {"workload__ignore_eos": False}


def topology(metric):
    return claim(
        pair(server(150.0, hardware__gpus=16, topology__tp=16), server(100.0)), under_test={"subject": "topology"},
        metric=metric,
    )  # fmt: skip


def latency(value):
    return {"result__request_latency": {"value": value, "unit": "s"},
            "result__repetitions": {"metric": "request_latency", "interleaved": True,
                                    "series": {"unit": "s", "values": [value * one for one in records.SPREAD]}}}  # fmt: skip


def phase(end_to_end):
    data = simple(**DECODE)
    rows = pair(server(5.0, "request_latency", "s"), server(6.0, "request_latency", "s", identity__commit="a0"))
    return records.merged(data, {"end_to_end": [rows] if end_to_end else []})


NO_STEP = {"result__tpot": None, "result__tok_s_user": None}


def elsewhere():
    """A row end to end at another batch is of another cell."""
    data = phase(True)
    for arm in ("candidate", "baseline"):
        data["end_to_end"][0][arm]["workload"]["concurrency"] = 64
    return data


def shard(**both):
    return simple(scope="rank_shard", collectives=[], timed__phase="decode", workload__context=1024, **both)


def batches(*sizes, **changes):
    cells = (
        pair(
            server(150.0, workload__concurrency=n),
            server(100.0, identity__commit="a0", workload__concurrency=n),
            f"b{n}",
        )
        for n in sizes
    )
    return claim(*cells, **changes)


def repeated(values, other, **more):
    def arm(numbers):
        series = {"unit": "tok/s", "values": numbers}
        return {"result__repetitions": {"metric": "tok_s_user", "interleaved": True, "series": series, **more},
                "result__tok_s_user": None}  # fmt: skip

    return simple(candidate=arm(values), baseline=arm(other))


def swap(first, second):
    data = simple()
    data["pairs"][0]["swap"] = {"first": {"value": first, "unit": "ms"}, "second": {"value": second, "unit": "ms"}}
    return data


def floor(moved):
    return simple(validity__floor={"moved_bytes": moved})


# rule: (objected to, effect, part of the message, its twin)
CASES = {
    "P1": (simple(hardware__driver=None), Effect.WITHHELD, "hardware.driver", simple()),
    "P2": (topology("tok_s_user"), Effect.REPLACED, "16 GPUs against 8", topology("tok_s_gpu")),
    "P3": (simple(**FORCED, workload__data="x"), Effect.REPLACED, "forced to 6",
           records.merged(simple(**FORCED), {"metric": "step_time"})),
    "P4": (simple(**FORCED), Effect.ERROR, "highest published is 5.22",
           simple(**{**FORCED, "speculation__acceptance_length": 3.84})),
    "P5": (simple(**NATURAL, candidate={"speculation__acceptance_length": 5.0}), Effect.QUALIFIED, "5 against 4.2",
           simple(**NATURAL)),
    "P6": (phase(False), Effect.INCOMPLETE, "no end-to-end row for b4", simple()),
    "P7": (simple(workload__concurrency=1), Effect.INCOMPLETE, "single stream", batches(1, 8, 64)),
    "P8": (batches(4, 8, headline="best"), Effect.INCOMPLETE, "leads with the best", batches(4, 8)),
    "P9": (simple(**CACHED, candidate={"engine__prefix_cache_hit_rate": 0.97},
                  baseline={"engine__prefix_cache_hit_rate": 0.03}), Effect.INVALID, "97.0% against 3.0%",
           simple(**CACHED, candidate={"engine__prefix_cache_hit_rate": 0.500},
                  baseline={"engine__prefix_cache_hit_rate": 0.505})),
    "P10": (simple(candidate={"result__failed": 3}), Effect.INVALID, "3 requests failed", simple()),
    "P11": (simple(candidate={"validity__repeated_ngrams": 0.93}), Effect.INVALID, "93% of 8-grams",
            simple(candidate={"validity__repeated_ngrams": 0.2})),
    "P12": (simple(validity__accuracy=None), Effect.PROVISIONAL, "no accuracy bundle", shard(validity__accuracy=None)),
    "P13": (simple(baseline={"engine__graph_mode": "none"}), Effect.SUPPRESSED, "engine.graph_mode full against none",
            records.merged(simple(candidate={"engine__options": {"decode-backend": "fast"}}),
                           {"under_test": {"subject": "option", "options": ["decode-backend"]},
                            "pairs": [pair(server(150.0, engine__options={"decode-backend": "fast"}), server(100.0))]})),
    "P14": (simple(baseline={"identity__released": "2026-05-03"}), Effect.NOTE, "140 days before",
            simple(baseline={"identity__released": "2026-07-20"})),
    "P15": (repeated([100, 104, 98, 103, 99], [100, 99, 101, 98, 102]), Effect.NO_CHANGE, "holds 1",
            repeated([150, 154, 148, 153, 149], [100, 99, 101, 98, 102])),
    "P16": (swap(10.30, 10.05), Effect.INVALID, "2.5%", swap(10.10, 10.05)),
    # 150 tok/s/user without speculation is 6.67 ms a step: at 8 TB/s that is 53.3 GB.
    "P17": (floor(54_000_000_000), Effect.INVALID, "needs 6750.00 us", floor(53_000_000_000)),
    "P18": (simple(workload__seeds=[0]), Effect.INVALID, "1 seed for 5 repetitions",
            simple(workload__seeds=[0], workload__warm_between_repetitions=False)),
    "P19": (simple(baseline={"hardware__sm_clock_mhz": 1755}), Effect.SUPPRESSED, "1920 against 1755", simple()),
    "P20": (simple(**DECODE, candidate={"timed__prefill_in_window": False}, baseline={"timed__prefill_in_window": True}),
            Effect.SUPPRESSED, "TTFT of b4: 200.0 ms against 200.0 ms", simple(**DECODE)),
}  # fmt: skip


def of(rule, data):
    return [one for one in rules.RULES[rule](parsed(data))]


def test_every_rule_is_here():
    assert list(CASES) == list(rules.RULES) == [f"P{n}" for n in range(1, 21)]


@pytest.mark.parametrize("rule", CASES)
def test_objects(rule):
    data, effect, words, _ = CASES[rule]
    (found,) = of(rule, data)
    assert (found.rule, found.effect) == (rule, effect) and words in found.message
    assert rule in {one.rule for one in check(parsed(data)).findings}


@pytest.mark.parametrize("rule", CASES)
def test_lets_its_twin_pass(rule):
    assert of(rule, CASES[rule][3]) == []


@pytest.mark.parametrize("rule", CASES)
def test_a_claim_that_it_objects_to_is_not_passed_as_it_stands(rule):
    found = check(parsed(CASES[rule][0]))
    if CASES[rule][1] in (Effect.QUALIFIED, Effect.NOTE):
        assert found.status is Status.PASSES
    else:
        assert found.status is not Status.PASSES


@pytest.mark.parametrize("rule", CASES)
def test_page(rule):
    page = rules.page(rule)
    assert page.id == rule and page.title and all(page.section(name) for name in ("Why", "Remedy", "Example"))


@pytest.mark.parametrize(
    ("rule", "data", "effect", "words"),
    [
        ("P1", {**simple(), "pairs": [{**simple()["pairs"][0], "swap": None}]}, Effect.WITHHELD, "swap"),
        ("P1", simple(candidate={"identity__candidate_active": None}), Effect.WITHHELD, "candidate_active"),
        ("P1", simple(candidate={"workload__context": 4096}), Effect.WITHHELD, "baseline: workload.context"),
        ("P1", simple(**DRAFT), Effect.WITHHELD, "speculation.acceptance_length"),
        ("P1", simple(**CACHED), Effect.WITHHELD, "engine.prefix_cache_hit_rate"),
        ("P1", simple(topology__disaggregated=True), Effect.WITHHELD, "hardware.gpus_decode"),
        ("P1", simple(**{**DECODE, "timed__share": None}), Effect.WITHHELD, "timed.share"),
        ("P2", simple(candidate=TP16), Effect.SUPPRESSED, "hardware.gpus 16 against 8"),
        ("P4", simple(**{**NATURAL, "speculation__acceptance_length": 8.5}), Effect.ERROR, "at most 8"),
        ("P4", simple(**{**FORCED, "identity__model": "other", "speculation__acceptance_length": 5.3}), Effect.ERROR, "5.21"),
        ("P5", simple(**NATURAL, candidate={**latency(5.0), "speculation__acceptance_length": 5.0, **NO_STEP},
                      baseline={**latency(6.0), **NO_STEP}), Effect.SUPPRESSED, "no step time to tell them apart"),
        ("P6", elsewhere(), Effect.INCOMPLETE, "no end-to-end row for b4"),
        ("P6", shard(), Effect.QUALIFIED, "decode only"),
        ("P6", phase(True), Effect.QUALIFIED, "decode only"),
        ("P8", batches(4, 8, cells=["b4", "b8", "b16"]), Effect.INCOMPLETE, "b16 not shown"),
        ("P10", simple(candidate={"result__completed": 0}), Effect.INVALID, "no request was completed"),
        ("P1", simple(hardware__sku="a card"), Effect.WITHHELD, "a data sheet of 'a card'"),
        ("P9", simple(candidate={"engine__prefix_cache": True, "engine__prefix_cache_hit_rate": 0.5}), Effect.INVALID, "50.0%"),
        ("P10", simple(candidate={"workload__osl_achieved": 800.0}), Effect.INVALID, "800 tokens where 1024"),
        ("P10", simple(**CHAT, candidate={"workload__osl_achieved": 800.0}), Effect.INVALID, "800 against 1024"),
        ("P10", simple(candidate={"workload__isl_achieved": 900.0}), Effect.INVALID, "prompts of 900"),
        ("P11", simple(validity__sane=False), Effect.INVALID, "sanity"),
        ("P12", simple(candidate={"identity__commit": "b2"}), Effect.PROVISIONAL, "of a1, the candidate is b2"),
        ("P12", simple(validity__accuracy={"commit": "a1", "sha256": "0", "passed": False}), Effect.INVALID, "did not pass"),
        ("P13", simple(baseline={"workload__isl_asked": 512}), Effect.SUPPRESSED, "workload.isl_asked 1024 against 512"),
        ("P13", simple(candidate={"engine__options": {"x": "1"}}), Effect.SUPPRESSED, "engine.options.x 1 against not set"),
        ("P13", simple(baseline={"result__statistic": "median"}), Effect.SUPPRESSED, "result.statistic"),
        ("P15", repeated([150, 151, 149], [100, 101, 99]), Effect.NO_CHANGE, "fewer than 5"),
        ("P15", repeated([150, 154, 148, 153, 149], [100, 99, 101, 98, 102], interleaved=False), Effect.NO_CHANGE, "took turns"),
        ("P19", simple(hardware__throttled=True), Effect.SUPPRESSED, "both arms were throttled"),
    ],
)  # fmt: skip
def test_further_ways(rule, data, effect, words):
    found = of(rule, data)
    assert any(one.effect is effect and words in one.message for one in found), found


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_says_nothing_of_a_clean_claim(rule):
    assert of(rule, simple()) == []


def test_the_headline_of_forced_and_of_split_claims():
    step = check(
        parsed(records.merged(simple(**{**FORCED, "speculation__acceptance_length": 3.84}), {"metric": "step_time"}))
    )
    assert step.status is Status.PASSES and step.qualifiers == ("acceptance forced",)
    # 150 against 100 tok/s/user at 5 and 4 tokens a step: 33.3 ms against 40 ms a step, 1.2 times; 1.25 in acceptance
    arms = {"candidate": {"speculation__acceptance_length": 5.0}, "baseline": {"speculation__acceptance_length": 4.0}}
    (split,) = check(parsed(simple(**NATURAL, **arms))).splits
    assert (split.step_time, split.acceptance) == (pytest.approx(1.2), pytest.approx(1.25))


def test_rows_end_to_end_are_held_to_the_rules_as_well():
    fine = check(parsed(phase(True)))
    assert fine.status is Status.PASSES and round(fine.whole.rows[0].ratio.value, 2) == 1.20
    data = phase(True)
    data["end_to_end"][0]["baseline"]["hardware"]["driver"] = "550"
    found = check(parsed(data))
    assert found.whole.rows[0].ratio is None
    assert any(one.rule == "P13" and one.message.startswith("end-to-end row: ") for one in found.findings)


def noisy(*cells, **changes):
    """Cells of (name, baseline figures, candidate figures)."""

    def arm(values, **more):
        series = {"unit": "tok/s", "values": values}
        repeated = {"metric": "tok_s_user", "interleaved": True, "series": series}
        return server(100.0, result__repetitions=repeated, result__tok_s_user=None, **more)

    return claim(*(pair(arm(mine), arm(other, identity__commit="a0"), name) for name, other, mine in cells), **changes)


EVEN = [100.0, 104.0, 98.0, 103.0, 99.0], [100.0, 99.0, 101.0, 98.0, 102.0]


def test_a_cell_without_a_change_is_a_result_of_a_grid():
    steady = [100.0] * 5
    found = check(parsed(noisy(("b4", steady, [150.0] * 5), ("b8", *EVEN), ("b16", steady, [80.0] * 5))))
    assert found.status is Status.PASSES
    assert [one.effect for one in found.findings if one.rule == "P15"] == [Effect.QUALIFIED]
    even = found.rows[1]
    # Nothing is gained from it: it counts as 1 at most. (100 99 101 98 102) against (100 104 98 103 99) looks slower.
    assert even.ratio is None and even.counted < 1
    assert found.summary.worst == pytest.approx(0.8) and found.summary.losing == ("b16",)
    text = markdown(found)
    assert "| no measurable change |" in text and "slower in b16; no measurable change in b8" in text
    turned = check(parsed(noisy(("b4", steady, [150.0] * 5), ("b8", *reversed(EVEN)))))
    assert turned.rows[1].counted == 1.0


def test_repetitions_of_another_figure_are_none():
    data = simple()
    found = check(parsed({**data, "metric": "ttft"}))
    (one,) = (finding for finding in found.findings if finding.rule == "P1")
    assert "candidate: repetitions that give ttft, baseline: repetitions that give ttft" in one.message
    assert found.status is Status.WITHHELD and found.rows[0].ratio is None


def test_the_title_carries_every_arm():
    data = simple(scope="rank_shard", timed__phase="decode", workload__context=1024, collectives=[])
    assert check(parsed(data)).qualifiers == ("one rank, exchange bytes local, no communication", "decode only")
    data["pairs"][0]["baseline"]["collectives"] = ["all_reduce"]
    assert check(parsed(data)).qualifiers[0] == "one rank, collectives: all_reduce"
    del data["pairs"][0]["baseline"]["collectives"]
    assert check(parsed(data)).qualifiers[0] == "one rank, collectives: unknown"
