"""Every op's exam: it notices trivial answers and known mistakes, and lets honest kernels pass."""

from functools import cache

import op_exam
import pytest
from fasttrack_validation.contracts.base import TensorRole
from fasttrack_validation.judge.sanity import check_task
from fasttrack_validation.judge.verdict import Outcome
from fasttrack_validation.numerics.calibrate import Decision
from fasttrack_validation.numerics.errors import same_bits
from fasttrack_validation.tensors import DType, torch_dtype

# Layouts 1 and 2 have gaps between rows; two TPs because some mistakes need more than one rank.
MISTAKES = [(name, mistake) for name in op_exam.NEW for mistake in op_exam.nano(name).hypotheses]


@cache
def trials(name):
    op = op_exam.nano(name)
    done = []
    for tp, seed in ((2, 1), (4, 2)):
        workload = op_exam.drawn(op, tp, 6, seed)
        for distribution in op.distributions:
            inputs = op.make_inputs(workload, distribution, seed)
            done.append((distribution, workload, inputs, op.oracle(inputs, workload), op.plain(inputs, workload)))
    return done


@pytest.mark.parametrize("name", op_exam.NEW)
def test_trivial_answers_fail_every_input_matters_and_the_plain_path_passes(name):
    op = op_exam.nano(name)
    for tp in (2, 8):
        result = check_task(op, op_exam.declared(op, tp, 4), 3)
        assert result.outcome is Outcome.PASS, result.message


@pytest.mark.parametrize(("name", "mistake"), MISTAKES)
def test_a_known_mistake_is_rejected(name, mistake):
    op = op_exam.nano(name)
    for _, workload, inputs, expected, plain in trials(name):
        got = op.hypotheses[mistake](inputs, workload)
        ruled = op_exam.rulings(op, workload, inputs, expected, plain, got)
        if any(ruling.decision is Decision.FAIL for ruling in ruled):
            return
    pytest.fail("no distribution shows this mistake")


@pytest.mark.parametrize("path", ["plain", "oracle"])
@pytest.mark.parametrize("name", op_exam.NEW)
def test_an_honest_path_passes_everywhere(name, path):
    op = op_exam.nano(name)
    for distribution, workload, inputs, expected, plain in trials(name):
        got = {"plain": plain, "oracle": expected}[path]
        for ruling in op_exam.rulings(op, workload, inputs, expected, plain, got):
            assert ruling.decision is Decision.PASS, (distribution, ruling.message)


@pytest.mark.parametrize("name", op_exam.NEW)
def test_what_is_drawn_and_computed_has_the_declared_shape_and_type(name):
    op = op_exam.nano(name)
    for _, workload, inputs, expected, plain in trials(name):
        specs = {spec.name: spec for spec in op.tensors(workload)}
        for tensor_name, tensor in inputs.items():
            spec = specs[tensor_name]
            assert (tuple(tensor.shape), tensor.dtype) == (spec.shape, torch_dtype(spec.dtype)), tensor_name
        assert set(specs) == set(inputs) | set(op.produced)
        for produced in op.produced:
            assert tuple(expected[produced].shape) == tuple(plain[produced].shape) == specs[produced].shape
            assert plain[produced].dtype == torch_dtype(specs[produced].dtype)


@pytest.mark.parametrize("name", op_exam.NEW)
def test_a_row_alone_changes_when_it_is_redrawn(name):
    op = op_exam.nano(name)
    workload = op_exam.drawn(op, 2, 5, 3)
    inputs = op.make_inputs(workload, "typical", 3)
    before, after = op.plain(inputs, workload), op.plain(op.perturb_row(inputs, workload, 2, 9), workload)
    for produced in op.produced:
        owners = [op.row_of(produced, (i, *(0,) * (before[produced].dim() - 1)), inputs) for i in
                  range(len(before[produced]))]  # fmt: skip
        same = same_bits(before[produced], after[produced]).flatten(1).all(1).tolist()
        for owner, equal in zip(owners, same, strict=True):
            assert equal == (owner != 2), produced


@pytest.mark.parametrize("name", op_exam.NEW)
def test_workloads(name):
    op = op_exam.REAL.op(name)
    declared, held_out = op.workloads(), op.workloads(held_out=True)
    assert {(w.axes["tp"], w.axes["rows"]) for w in declared} == {
        (tp, rows) for tp in (8, 16) for rows in (1, 2, 4, 8, 16, 32, 64)
    }
    assert len({w.name for w in (*declared, *held_out)}) == len(declared) + len(held_out)
    assert not any(w.held_out for w in declared) and all(w.held_out for w in held_out)
    for workload in declared:
        varied = op.vary(workload, 5)
        assert varied.axes["rows"] <= workload.axes["rows"] < 2 * varied.axes["rows"] + 1
        assert varied == op.vary(workload, 5) and varied.axes["tp"] == workload.axes["tp"]
    for workload in (*declared, *held_out):
        for spec in op.tensors(workload):
            dense = 1
            for size, stride in sorted(zip(spec.shape, spec.strides, strict=True), key=lambda pair: pair[1]):
                assert stride >= dense or size <= 1 or 0 in spec.shape, (workload.name, spec)
                dense = max(dense, size * stride)
            if spec.role is not TensorRole.STATIC and spec.dtype is DType.BF16:
                assert all(stride == 1 or stride % 8 == 0 for stride in spec.strides), "rows begin on 16 bytes"


@pytest.mark.slow
@pytest.mark.parametrize("tp", [8, 16])
@pytest.mark.parametrize("name", [name for name in op_exam.REAL.ops if name not in ("experts", "head")])
def test_an_honest_path_passes_at_true_shapes(name, tp):
    """Two rows of typical inputs; the whole exam, the two largest ops and all mistakes: `benchmarks/true_shapes.py`."""
    op = op_exam.REAL.op(name)
    workload = next(w for w in op.workloads() if (w.axes["tp"], w.axes["rows"]) == (tp, 2))
    inputs = op.make_inputs(workload, "typical", 1)
    expected, plain = op.oracle(inputs, workload), op.plain(inputs, workload)
    for got in (plain, expected):
        for ruling in op_exam.rulings(op, workload, inputs, expected, plain, got):
            assert ruling.decision is Decision.PASS, ruling.message


def test_probabilities_in_bf16_are_honest_on_tensor_cores():
    """What every public MLA decode kernel does; anything narrower is a known mistake."""
    op = op_exam.nano("mla_core")
    for distribution, workload, inputs, expected, plain in trials("mla_core"):
        got = op.maths.with_bf16_probabilities(op, inputs, workload)
        for ruling in op_exam.rulings(op, workload, inputs, expected, plain, got):
            assert ruling.decision is Decision.PASS, (distribution, ruling.message)


@pytest.mark.parametrize("name", op_exam.NEW)
def test_no_two_seeds_draw_the_same_inputs(name):
    """Not even of one row: the judge takes a repeated input for a replay."""
    op = op_exam.nano(name)
    workload = op_exam.declared(op, 2, 1)
    names = [spec.name for spec in op.tensors(workload) if spec.role is TensorRole.INPUT]
    for distribution in op.distributions:
        first, second = (op.make_inputs(workload, distribution, seed) for seed in (1, 2))
        assert any(not same_bits(first[given], second[given]).all() for given in names), distribution
        again = op.make_inputs(workload, distribution, 1)
        assert all(same_bits(first[given], again[given]).all() for given in first)
