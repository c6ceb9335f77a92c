"""Which trials are run where a contract has stand-ins for workloads that are too large to draw often."""

from types import SimpleNamespace

import pytest
from judging import candidate
from toy_contract import KERNEL, Toy

from fasttrack_validation import contracts
from fasttrack_validation.judge import trial_plan
from fasttrack_validation.judge.judge import Judge
from fasttrack_validation.judge.recorded import RecordedError, workloads_of
from fasttrack_validation.judge.verdict import Status


class Large(Toy):
    """The toy op as if its declared workloads were too large for a CPU."""

    def small(self):
        return tuple(w.model_copy(update={"name": f"{w.name}_few"}) for w in super().workloads())


FEW, WHOLE = ("tp8_rows1_few", "tp8_rows4_few"), ("tp8_rows1", "tp8_rows4")


def of(contract, checked, declared):
    seeds = {name: (5,) for name in (*checked, *declared)}
    return workloads_of(contract, checked=checked, declared=declared, unseen=seeds, far_base=None)


def shown(groups):
    return {(group[0].workload.name, group[0].distribution) for group in groups}


def test_distributions_run_on_the_stand_ins_and_typical_values_on_all():
    groups = trial_plan.launched(Large(), of(Large(), FEW, WHOLE))
    seen = shown(groups)
    assert {(name, d) for name in FEW for d in ("typical", "padded", "large")} <= seen
    assert {d for name, d in seen if name in WHOLE or name.startswith(tuple(f"{w}_unseen" for w in WHOLE))} == {"typical"}
    assert {name for name, _ in seen} >= {*FEW, *WHOLE, *(f"{w}_unseen" for w in WHOLE)}
    twins = {group[0].workload.name: len(group) for group in groups if group[0].distribution == "typical"}
    assert twins["tp8_rows4"] == 3, "moved, and with a row redrawn"
    # A fault is found where it is cheap.
    assert groups[0][0].workload.name in FEW and groups[-1][0].workload.name not in FEW


def test_without_stand_ins_every_distribution_runs_on_what_is_declared():
    seen = shown(trial_plan.launched(Toy(), of(Toy(), WHOLE, WHOLE)))
    assert {(name, d) for name in WHOLE for d in ("typical", "padded", "large")} <= seen


def test_an_interpreter_runs_the_stand_ins_alone():
    seen = {name for name, _ in shown(trial_plan.interpreted(Large(), of(Large(), FEW, WHOLE)))}
    assert not seen & {*WHOLE, *(f"{w}_unseen" for w in WHOLE)}


def test_a_name_that_is_neither_declared_nor_a_stand_in_is_refused():
    with pytest.raises(RecordedError, match="declares no workload 'tp8_rows1_few'"):
        of(Toy(), FEW, WHOLE)


def test_a_screening_on_a_cpu_judges_the_stand_ins_and_plans_what_is_declared(kept_sandboxes):
    model = SimpleNamespace(model="toy", op=lambda _: Large(), ops={"accumulate": Large()}, digest=lambda op: "0" * 64)
    with Judge(model) as judge:
        recorded = judge.record(candidate(KERNEL, "accumulate"))
        assert recorded.checked == FEW and recorded.declared == WHOLE and set(recorded.packs) >= {*FEW, *WHOLE}
        found = judge.screen(candidate(KERNEL, "accumulate"))
        assert found.status is Status.ACCEPTED, found.message
        judged = {result.workload for result in found.workloads if result.trials}
        assert judged and not judged & set(WHOLE)


@pytest.mark.parametrize("op", ["kda_verify", "attn_res_norm+in_projection+kda_verify+o_proj_residual+attn_res_norm+front"])
def test_of_requests_whose_rows_depend_on_each_other_a_request_is_redrawn_and_alone_it_has_no_neighbour(op):
    contract = contracts.load("kimi_k3").op(op)
    place = {w.axes["rows"]: w for w in contract.workloads() if w.axes["tp"] == 16}
    assert (place[8].axes["tokens"], place[16].axes["tokens"], place[4].axes["tokens"]) == (8, 8, 2)
    assert len(trial_plan._group(contract, place[8], "typical", None)) == 2
    redrawn = {trial_plan._group(contract, place[16], "typical", None)[2].perturbed_row for _ in range(40)}
    assert redrawn == {0, 1}, "numbers past the last request would redraw nothing"
    single = contracts.load("kimi_k3").op("kda_decode")
    (eight,) = [w for w in single.workloads() if (w.axes["tp"], w.axes["rows"]) == (16, 8)]
    assert {trial_plan._group(single, eight, "typical", None)[2].perturbed_row for _ in range(300)} == set(range(8))
