"""Parts that route: the choice is planted beyond any honest rounding, and wrong choices are seen wherever they show."""

import op_exam
import pytest
import torch

from fasttrack_validation.contracts.base import TensorRole
from fasttrack_validation.contracts.kimi_k3 import choice
from fasttrack_validation.contracts.kimi_k3.architecture import NANO, Architecture
from fasttrack_validation.contracts.kimi_k3.part import subgraph
from fasttrack_validation.errors import UserError
from fasttrack_validation.judge.sanity import check_task
from fasttrack_validation.judge.verdict import Outcome

OPS = {
    name: type(op)(Architecture.from_config(NANO), op.policy) for name, op in op_exam.REAL.ops.items()
}
GIVEN_LOGITS, GIVEN_X, COMPUTED = "routing+experts", "front+routing", "attn_res_norm+front+routing"
MIXTURE = "front+routing+experts+shared_down"
HALF = "routing+experts+shared_down+latent_up"
PARTS = (GIVEN_LOGITS, GIVEN_X, COMPUTED, MIXTURE, HALF)


def nano(name):
    return subgraph(Architecture.from_config(NANO), OPS, name)


def at(part, rows, tp=8, workloads=None):
    return next(w for w in workloads or part.workloads() if (w.axes["tp"], w.axes["rows"]) == (tp, rows))


def roles(part, workload):
    return {s.name: s.role.value for s in part.tensors(workload) if s.role is not TensorRole.STATIC}


def test_what_goes_in_and_comes_out():
    assert roles(nano(GIVEN_LOGITS), at(nano(GIVEN_LOGITS), 4)) == {
        "logits": "input", "x": "input", "routed": "output",
    }  # fmt: skip
    assert roles(nano(MIXTURE), at(nano(MIXTURE), 4)) == {"x": "input", "routed": "output", "partial": "output"}
    # What every rank sent is given, this rank's own share among it: reading it waits for nothing here.
    assert roles(nano(HALF), at(nano(HALF), 4)) == {
        "logits": "input", "experts_x": "input", "experts_routed": "output", "shared_down_x": "input",
        "partial": "output", "latent_up_routed": "input", "shared": "input", "residual": "input", "stream": "output",
    }  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
def test_the_exam_is_sane_and_the_plain_path_passes_everywhere(name):
    part = nano(name)
    result = check_task(part, at(part, 4), 7)
    assert result.outcome is Outcome.PASS, result.message
    for distribution in part.distributions:
        inputs = part.make_inputs(at(part, 4), distribution, 5)
        assert not op_exam.failures(part, at(part, 4), inputs, part.plain(inputs, at(part, 4))), distribution


def deciding(part, inputs, workload):
    """Sums [rows, E] float64 of the oracle and of the plain path, from logits given or computed, by hand."""
    routing = next(m for m in part.members if m.contract.op == "routing")
    bias = inputs[routing.outer["correction_bias"]].double()
    if "logits" in routing.outer:
        logits = inputs[routing.outer["logits"]].double()
        return logits.sigmoid() + bias, (1 / (1 + torch.exp(-logits.float()))).double() + bias
    if "blocks" in inputs:
        v = {name: value.double() for name, value in inputs.items()}
        sources = [*v["blocks"], v["stream"]]
        query = v["res_norm"] * v["res_proj"]
        scores = torch.stack([(s @ query) / (s.square().mean(-1) + 1e-5).sqrt() for s in sources]).softmax(0)
        h = sum(w[:, None] * s for w, s in zip(scores, sources, strict=True))
        x = h / (h.square().mean(-1, keepdim=True) + 1e-5).sqrt() * v["out_norm"]
        rounded = h.bfloat16().double()
        rounded = (rounded / (rounded.square().mean(-1, keepdim=True) + 1e-5).sqrt()).bfloat16() * inputs["out_norm"]
    else:
        x, rounded = inputs["x"].double(), inputs["x"]
    router = inputs["router"]
    return (x @ router.double().T).sigmoid() + bias, (rounded.float() @ router.float().T).double().sigmoid() + bias


@pytest.mark.parametrize("name", [GIVEN_X, COMPUTED, MIXTURE])
@pytest.mark.parametrize("rows", [4, 64])
def test_sums_that_decide_lie_further_apart_than_honest_paths_err(name, rows):
    part, workload = nano(name), at(nano(name), rows)
    k = part.members[-1].contract.architecture.moe.top_k
    for distribution in part.distributions:
        if distribution == "routing_ties":
            continue  # equal bit for bit, which is looked at below
        inputs = part.make_inputs(workload, distribution, 3)
        exact, plain = deciding(part, inputs, workload)
        live = exact.isfinite().all(1) & plain.isfinite().all(1)
        best = exact[live].topk(k + 1, 1)
        errors = (plain[live].gather(1, best.indices) - best.values).diff(dim=1).abs().amax(1)
        gaps = best.values.diff(dim=1).abs().amin(1)
        assert bool((gaps >= torch.clamp(4 * errors, min=0.9 * choice.LEAST / 4)).all()), distribution


def test_ties_are_exact_in_every_order_of_summation():
    part, workload = nano(GIVEN_X), at(nano(GIVEN_X), 8)
    inputs = part.make_inputs(workload, "routing_ties", 3)
    x, router = inputs["x"].float(), inputs["router"].float()
    logits = x @ router.T
    for order in (torch.arange(x.shape[1] - 1, -1, -1), torch.randperm(x.shape[1])):
        narrow = torch.zeros_like(logits)
        for column in order.tolist():
            narrow += x[:, column, None] * router[None, :, column]
        assert torch.equal(narrow, logits)
    sums = logits.sigmoid() + inputs["correction_bias"]
    ids = part.oracle(inputs, workload)["ids"]
    worst, out = sums.gather(1, ids[:, -1:].long()), sums.scatter(1, ids.long(), -1).amax(1, keepdim=True)
    assert bool((worst == out).any()), "ties across the cut, where lower ids win"


def test_typical_choices_are_those_of_the_experts_own_exam():
    part = nano(MIXTURE)
    workload = at(part, 64)
    inputs = part.make_inputs(workload, "typical", 9)
    exact, _ = deciding(part, inputs, workload)
    chosen = exact.topk(4, 1).indices
    counts = torch.bincount(chosen.flatten(), minlength=32)
    # 256 places over 32 experts evenly: none empty, none with thrice its share.
    assert counts.min() > 0 and counts.max() < 24
    repeated = part.make_inputs(workload, "experts_repeated", 9)
    exact, _ = deciding(part, repeated, workload)
    assert len(exact.topk(4, 1).indices.unique()) == 4, "all rows on the same experts"


def caught(part, mistake, distribution, rows=8, seed=11):
    workload = at(part, rows)
    inputs = part.make_inputs(workload, distribution, seed)
    return op_exam.failures(part, workload, inputs, part.hypotheses[mistake](inputs, workload))


TIES = "routing: equal scores go to the higher expert"
NARROW = "front: router logits are rounded to bfloat16"
SCORES = "routing: scores are rounded to bfloat16 before the selection"
BIAS = "routing: the bias is left out of the selection"


@pytest.mark.parametrize(
    ("name", "mistake", "distribution"),
    [
        (GIVEN_X, TIES, "routing_ties"), (MIXTURE, TIES, "routing_ties"), (GIVEN_LOGITS, TIES, "routing_ties"),
        (GIVEN_X, NARROW, "routing_crowded"), (MIXTURE, NARROW, "routing_crowded"), (COMPUTED, NARROW, "routing_crowded"),
        (GIVEN_X, NARROW, "typical"),
        (GIVEN_X, SCORES, "routing_crowded"), (MIXTURE, SCORES, "routing_crowded"), (COMPUTED, SCORES, "routing_crowded"),
        (GIVEN_X, BIAS, "typical"), (MIXTURE, BIAS, "typical"), (COMPUTED, BIAS, "typical"),
        (GIVEN_LOGITS, BIAS, "typical"), (HALF, BIAS, "typical"),
    ],
)  # fmt: skip
def test_wrong_choices_are_seen_where_the_ids_are_inside_too(name, mistake, distribution):
    assert caught(nano(name), mistake, distribution), "the mistake passes"


@pytest.mark.parametrize("name", [GIVEN_X, MIXTURE, COMPUTED])
def test_honest_orders_of_summation_choose_alike(name):
    """float32, in slices of K of another length, upstream rounded as published: nothing like the oracle's sums."""
    part, workload = nano(name), at(nano(name), 8)
    front = next(i for i, m in enumerate(part.members) if m.contract.op == "front")

    def split(inputs, workload):
        plain = part.members[front].contract.plain(inputs, workload)
        x, router = inputs["x"].float(), inputs["router"].float()
        slices = zip(x.split(48, 1), router.split(48, 1), strict=True)
        return {**plain, "logits": sum(a @ b.T for a, b in reversed(list(slices)))}

    for distribution in part.distributions:
        inputs = part.make_inputs(workload, distribution, 17)
        got = part._through(inputs, workload, lambda i, m: split if i == front else m.contract.plain)
        assert not op_exam.failures(part, workload, inputs, got), distribution


def test_only_the_redrawn_row_goes_unheld_and_only_where_it_follows_the_choice():
    assert nano(GIVEN_LOGITS).unheld == frozenset(), "given logits are redrawn apart"
    assert nano(GIVEN_X).unheld == {"ids", "weights"} and nano(MIXTURE).unheld == {"routed"}
    part, workload = nano(GIVEN_LOGITS), at(nano(GIVEN_LOGITS), 4)
    for seed in range(20):
        inputs = part.make_inputs(workload, "typical", seed)
        changed = part.perturb_row(inputs, workload, 1, seed + 1)
        sums = changed["logits"].double().sigmoid() + changed["correction_bias"].double()
        assert (sums.topk(5, 1).values.diff(dim=1).abs() >= 2.0**-18).all()


def test_the_redrawn_row_of_a_computed_choice_is_skipped_by_the_judge():
    from fasttrack_validation.judge.inspect_trial import measurements
    from fasttrack_validation.judge.trials import Trial, TrialSpec

    part, workload = nano(GIVEN_X), at(nano(GIVEN_X), 4)
    inputs = part.make_inputs(workload, "typical", 1)
    oracle, plain = part.oracle(inputs, workload), part.plain(inputs, workload)
    wrong = {name: tensor.clone() for name, tensor in plain.items()}
    wrong["ids"][2] = wrong["ids"][2].flip(0)

    def changed(row):
        spec = TrialSpec(workload, "typical", 1, 2, perturbed_row=row)
        return measurements(Trial(spec, "ok", "", inputs, wrong), part, oracle, plain)["ids"].changed_count

    assert changed(2) == 0 and changed(1) == 4 and changed(None) == 4
    wrong["latent"][2] = 0
    spec = TrialSpec(workload, "typical", 1, 2, perturbed_row=2)
    latent = measurements(Trial(spec, "ok", "", inputs, wrong), part, oracle, plain)["latent"]
    assert latent.errors.max() > 0.5, "what follows no choice is held in every row"


def test_parts_that_route_declare_all_experts_and_stand_ins_for_a_cpu():
    part = op_exam.REAL.op("front+routing+experts+shared_down+latent_up")
    whole, few = at(part, 4), at(part, 4, workloads=part.small())
    assert (whole.name, few.name) == ("tp8-b4", "tp8-b4-few")
    shapes = [{s.name: s.shape for s in part.tensors(w)} for w in (whole, few)]
    assert [s["router"] for s in shapes] == [(896, 7168), (64, 7168)]
    assert [s["w13_packed"][0] for s in shapes] == [s["correction_bias"][0] for s in shapes] == [896, 64]
    # 896 experts of 3 x 384 x 3584 elements: 4 bits each and a byte for 32.
    experts = 896 * 3 * 384 * 3584 * 17 // 32
    assert sum(s.storage_elements for s in part.tensors(whole) if s.name[:3] in ("w13", "w2_")) == experts
    assert part.vary(few, 3).axes["experts"] == 64 and part.vary(whole, 3).axes["experts"] == 896
    assert nano(MIXTURE).small() == (), "nano's 32 are few enough"
    assert all(not op.small() for op in op_exam.REAL.ops.values()), "single ops are judged as ever"


@pytest.mark.slow
@pytest.mark.parametrize("name", [GIVEN_LOGITS, GIVEN_X])
def test_the_exam_is_sane_at_the_true_shapes(name):
    part = op_exam.REAL.op(name)
    workload = at(part, 4, 16, part.small() or part.workloads())
    inputs = part.make_inputs(workload, "typical", 3)
    plain = part.plain(inputs, workload)
    assert not op_exam.failures(part, workload, inputs, plain)
    wrong = part.hypotheses[BIAS](inputs, workload)
    assert op_exam.failures(part, workload, inputs, wrong)


REFUSED = {
    "shared_down+attn_res_norm": "shared_down reads from front",
    "front+experts": "connected nowhere",
    "front+routing+latent_up": "connected nowhere",
    "front+routing+experts+latent_up": "shared_down lies between",
    "experts+latent_up+routing+head": "connected nowhere",
}


@pytest.mark.parametrize("name", REFUSED)
def test_parts_that_no_rank_has_connected_are_refused(name):
    with pytest.raises(UserError, match=REFUSED[name]):
        nano(name)
