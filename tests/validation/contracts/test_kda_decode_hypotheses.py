"""Every known mistake is caught, and the two honest ways of computing the step are not."""

import kda_tolerance
import pytest
from fasttrack_validation.contracts.kimi_k3.kda_decode.hypotheses import VARIANTS
from fasttrack_validation.numerics.calibrate import Decision, decide, measure

OP, WORKLOAD = kda_tolerance.OP, kda_tolerance.WORKLOAD


@pytest.fixture(scope="module")
def trials():
    trials = {}
    for name in OP.distributions:
        inputs = OP.make_inputs(WORKLOAD, name, 7)
        trials[name] = (inputs, OP.oracle(inputs, WORKLOAD), OP.plain(inputs, WORKLOAD))
    return trials


def rulings(trial, path):
    inputs, expected, plain = trial
    got = path(inputs, WORKLOAD)
    for comparison in OP.comparisons:
        name = comparison.tensor
        value = got[name].to(plain[name].dtype)
        owners = [OP.row_of(name, (index,), inputs) for index in range(len(value))]
        yield decide(comparison, [measure(comparison, expected[name], plain[name], value, owners)])


@pytest.mark.parametrize("description", VARIANTS)
def test_a_known_mistake_is_rejected(trials, description):
    variant = OP.hypotheses[description]
    failed = (ruling.decision is Decision.FAIL for trial in trials.values() for ruling in rulings(trial, variant))
    assert any(failed), "no distribution shows this mistake"


@pytest.mark.parametrize(
    ("mistake", "distribution"),
    [
        ("the decay is rounded to bfloat16", "decay_extremes"),
        ("beta is rounded to bfloat16", "beta_extremes"),
        ("the gate projection is truncated", "gate_ties"),
        ("the gate projection f_b f_a is not rounded", "gate_mantissas"),
        ("the L2 norm is bounded below", "near_zero"),
        ("the L2 norm has no epsilon", "near_zero"),
        ("padded rows are treated as live", "padded"),
        ("the recurrent state is kept in bfloat16", "accumulated"),
        ("q, k and v are rounded to bfloat16", "converged"),
    ],
)
def test_a_distribution_catches_what_it_is_there_for(trials, mistake, distribution):
    (description,) = (name for name in VARIANTS if name.startswith(mistake))
    assert any(r.decision is Decision.FAIL for r in rulings(trials[distribution], OP.hypotheses[description]))


@pytest.mark.parametrize(
    "path", [OP.oracle, *kda_tolerance.HONEST.values()], ids=["oracle, rounded", *kda_tolerance.HONEST]
)
def test_an_honest_path_passes_everywhere(trials, path):
    for name, trial in trials.items():
        for ruling in rulings(trial, path):
            assert ruling.decision is Decision.PASS, (name, ruling.message)


@pytest.fixture(scope="module")
def table():
    return kda_tolerance.table()


@pytest.mark.slow
@pytest.mark.parametrize("form", kda_tolerance.HONEST)
def test_float32_noise_keeps_a_distance_from_the_limit(table, form):
    """Functions of two ulp take up most of it, another order of sums never half."""
    allowed = 0.9 if "two ulp" in form else 0.5
    for quantile, limit in (("median", 0.05), ("p999", allowed), ("maximum", allowed)):
        share, where = table[form][quantile]
        assert share < limit, (quantile, where)


@pytest.mark.slow
@pytest.mark.parametrize("start", kda_tolerance.DISHONEST)
def test_bfloat16_inside_the_recurrence_is_far_beyond_the_limit(table, start):
    """Beta, decay, log decay, q, k and v: at the median, where chance plays no part."""
    (form,) = (name for name in kda_tolerance.FORMS if name.startswith(start))
    assert table[form]["median"][0] > 20
