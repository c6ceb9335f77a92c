"""The exam of a whole decode step: what it is made of, a layer by hand, known mistakes, pages of nobody."""

import re

import op_exam
import pytest
import torch
from long_tests import long

from fasttrack_validation.contracts.base import TensorRole
from fasttrack_validation.errors import UserError
from fasttrack_validation.judge.sanity import check_task
from fasttrack_validation.judge.verdict import Outcome

STEP = op_exam.REAL.op("step")
WORKLOAD = next(w for w in STEP.workloads() if w.axes["rows"] == 4)


def test_it_is_the_nano_configuration_on_one_rank():
    specs = {spec.name: spec for spec in STEP.tensors(WORKLOAD)}
    assert specs["embedding"].shape == (4, 128) and specs["logits"].shape == (4, 512)
    # Published layers count from one: 4, 8, 12 and 13 are MLA; the first is dense.
    assert {name for name in specs if name.endswith("_cache")} == {"l3_cache", "l7_cache", "l11_cache", "l12_cache"}
    assert {name for name in specs if name.endswith("_gate_up") and "shared" not in name} == {"l0_gate_up"}
    assert specs["l5_router"].shape == (32, 128) and specs["l5_w13_packed"].shape == (32, 1024, 32)
    assert "l0_attention_mix_res_norm" not in specs and "l1_attention_mix_res_norm" in specs
    assert all(name.isidentifier() for name in specs), "a candidate reads them as attributes"
    assert {w.axes["tp"] for w in STEP.workloads()} == {1}


def test_the_first_layer_by_hand():
    inputs = STEP.make_inputs(WORKLOAD, "typical", 3)
    found = STEP.oracle(inputs, WORKLOAD)
    x = inputs["embedding"].double()
    x = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * inputs["l0_attention_mix_out_norm"].double()
    raw = x @ inputs["l0_in_proj"].double().T
    for row, slot in enumerate(inputs["slots"].tolist()):
        state = found["l0_conv_state"][slot]
        torch.testing.assert_close(state[-1], raw[row, : state.shape[1]], rtol=1e-11, atol=1e-11)
        assert torch.equal(state[:-1], inputs["l0_conv_state"][slot, 1:].double())


def test_what_nobody_owns_stays_and_every_row_leaves_a_state():
    inputs = STEP.make_inputs(WORKLOAD, "typical", 4)
    found, slots = STEP.oracle(inputs, WORKLOAD), set(inputs["slots"].tolist())
    for name in STEP.produced:
        if name == "logits":
            continue
        for index in range(len(inputs[name])):
            owner = STEP.row_of(name, (index, 0, 0), inputs)
            same = torch.equal(found[name][index], inputs[name][index].double())
            assert same or owner is not None, name
            if not name.endswith("_cache"):
                assert (owner is not None) == (index in slots) and same == (index not in slots)


def test_the_plain_path_passes_and_known_mistakes_do_not():
    missed = set(STEP.hypotheses)
    for distribution in STEP.distributions:
        inputs = STEP.make_inputs(WORKLOAD, distribution, 6)
        oracle, plain = STEP.oracle(inputs, WORKLOAD), STEP.plain(inputs, WORKLOAD)
        assert not [r for r in op_exam.rulings(STEP, WORKLOAD, inputs, oracle, plain, plain) if r.decision != "pass"]
        for name in sorted(missed):
            got = STEP.hypotheses[name](inputs, WORKLOAD)
            if any(r.decision == "fail" for r in op_exam.rulings(STEP, WORKLOAD, inputs, oracle, plain, got)):
                missed.discard(name)
    assert not missed


def test_a_redrawn_row_changes_itself_alone():
    inputs = STEP.make_inputs(WORKLOAD, "typical", 7)
    changed = STEP.perturb_row(inputs, WORKLOAD, 1, 8)
    before, after = STEP.oracle(inputs, WORKLOAD), STEP.oracle(changed, WORKLOAD)
    for name in STEP.produced:
        differs = (before[name] != after[name]).flatten(1).any(1)
        rest = (0,) * (before[name].dim() - 1)
        owners = {STEP.row_of(name, (index, *rest), inputs) for index in differs.nonzero().flatten().tolist()}
        assert owners == {1}, name


def test_layouts_vary():
    seen = set()
    for seed in range(20):
        varied = STEP.vary(STEP.workloads()[-1], seed)
        seen.add((varied.axes["rows"], varied.axes["page_size"], varied.axes["slots"]))
        inputs = STEP.make_inputs(varied, "full", seed)
        for spec in STEP.tensors(varied):
            if spec.role is not TensorRole.OUTPUT:
                assert tuple(inputs[spec.name].shape) == spec.shape
        assert 4 < varied.axes["rows"] <= 8
    assert len(seen) > 5


def test_every_kind_of_input_matters():
    """Of each kind the last layer's: what a layer makes of it must still reach something that the step produces."""
    inputs, other = (STEP.make_inputs(WORKLOAD, "typical", seed) for seed in (9, 10))
    oracle = STEP.oracle(inputs, WORKLOAD)
    kinds = {re.sub(r"^l\d+_", "", name): name for name in inputs}
    assert len(kinds) > 30
    for name in kinds.values():
        assert not torch.equal(inputs[name], other[name]), name
        changed = STEP.oracle(inputs | {name: other[name]}, WORKLOAD)
        assert any(not torch.equal(changed[what], oracle[what]) for what in STEP.produced), name


@long
def test_the_exam_is_sane():
    result = check_task(STEP, WORKLOAD, 9)
    assert result.outcome is Outcome.PASS, result.message


def test_what_it_does_not_produce_is_named():
    with pytest.raises(UserError, match="step does not produce 'hidden'"):
        STEP.row_of("hidden", (0,), {})
