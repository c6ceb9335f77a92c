"""The ladder on the kept nano checkpoint: noise is noise, planted faults are found where they are."""

import pytest
import torch
from fasttrack_validation.contracts.kimi_k3.numerics import kernel_sizes, long_state, material, op_exams
from fasttrack_validation.contracts.kimi_k3.numerics.faults import FAULTS
from fasttrack_validation.contracts.kimi_k3.numerics.paths import Paths
from fasttrack_validation.contracts.kimi_k3.architecture import Architecture
from fasttrack_validation.contracts.kimi_k3.step.state import Batch
from fasttrack_validation.numerics.whole_model import findings, long_rung, long_sections, op_rung, pieces, scenarios, side_by_side, tokens
from fasttrack_validation.numerics.whole_model.findings import Result
from fasttrack_validation.numerics.whole_model.plan import Settings
from fasttrack_validation.numerics.whole_model.runner import UnitRun
from fasttrack_validation.numerics.whole_model.scenario import RungName, Unit


@pytest.fixture(scope="module")
def paths():
    torch.set_num_threads(1)
    return Paths(material.CHECKPOINT)


def held(paths, tmp_path, names, actions, *, requests=1, width=1):
    """Verdict of each candidate over one unit."""
    unit = Unit(RungName.BATCH_SWEEP, "made", 1, requests, 140, width)
    contestants = {"oracle": paths.oracle(), "stock": paths.stock(1), "again-1": paths.again(1, 1), "again-2": paths.again(1, 2)}
    contestants |= {f"candidate-{name}": material.plain_candidate(paths, name, 1) for name in names}
    header = tokens.Header(
        unit=unit.key, rung=unit.rung, tp=1, subject="s", candidate="several", replicas=("again-1", "again-2")
    )
    records = tokens.read(UnitRun(unit, contestants, pieces.batch, tmp_path, header)(actions))
    return {name: findings.judged([side_by_side.only(records, name)]) for name in names}


@pytest.mark.slow
def test_states_that_acceptance_leaves_wrong_are_found(paths, tmp_path):
    stream = material.streams.stream(60, 0)
    names = ("twin", "accepted_zero", "not_rolled_back")
    found = held(paths, tmp_path, names, scenarios.verify_every(stream, 20, {2: range(3), 3: range(4)}, material.VOCABULARY), width=4)
    assert found["twin"].result is not Result.FAIL, found["twin"].text
    for name in names[1:]:
        assert found[name].result is Result.FAIL and found[name].first.pool == "recurrent_state"


@pytest.mark.slow
def test_layers_are_named_and_padding_and_pages_are_seen(paths, tmp_path):
    streams = [material.streams.stream(60, seed) for seed in (0, 1)]
    names = ("twin", "gate_swapped", "swiglu", "stale_row", "page_boundary", "bias_dropped", "bank_aliased")
    found = held(paths, tmp_path, names, scenarios.batch(streams, (12, 20), 8, padded=(1,)), requests=2)
    assert found["twin"].result is not Result.FAIL, found["twin"].text
    for name in names[1:]:
        verdict, layer = found[name], FAULTS[name].layer
        assert verdict.result is Result.FAIL, name
        assert verdict.first.layer == (8 if name == "bank_aliased" else layer), (name, verdict.first)
    # What was written over; the row that was to be written there is position 16.
    assert (found["page_boundary"].first.position, found["page_boundary"].first.pool) == (0, "cache")


def test_every_fault_that_an_op_can_make_is_a_known_mistake_of_its_contract(paths):
    contracts = op_exams.contracts(paths.architecture)
    for name, fault in FAULTS.items():
        if fault.mistake is not None:
            assert fault.mistake in contracts[fault.op].hypotheses, name


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.mistake])
def test_the_op_rung_finds_what_an_op_can_do_wrong(paths, name):
    fault = FAULTS[name]
    contract = op_exams.contracts(paths.architecture)[fault.op]
    decisions = {}
    for run in (op_rung.mistaken(fault.mistake), op_rung.plainly):
        exams = []
        for rows in op_rung.OP_ROWS:
            at = op_exams.workload(contract, fault.tp, rows, rows)
            exams += [op_rung.sit(contract, at, line, number, run) for number, line in enumerate(contract.distributions)]
        decisions[run] = op_rung.judged(exams)
    wrong, right = decisions.values()
    assert wrong.result is Result.FAIL and wrong.first.unit == fault.op
    # Where it is: the first layer that runs the op, a row, a tensor.
    layers = op_exams.layers(contract)
    assert wrong.first.layer == layers[0] and wrong.first.position is not None and wrong.first.pool
    assert right.result is Result.PASS


@pytest.mark.parametrize(("name", "result"), [(None, Result.PASS), ("decay_bf16", Result.FAIL), ("beta_bf16", Result.FAIL)])
def test_the_long_state_tells_a_narrow_decay_from_noise(name, result):
    settings = Settings(candidate="plain:twin", steps=30, context=256, replicas=2)
    sections = long_sections.plain(settings, FAULTS.get(name), lambda step: None)
    points = [point for compute in sections.values() for point in compute()]
    assert {point.at for point in points if point.what == "state"} == {1, 10, 30}
    verdict = long_rung.judged(points, long_sections.LONG_TP)
    assert verdict.result is result
    # Layer 0 of the published model is a KDA layer; errors are there by number of steps.
    if name:
        assert verdict.first.layer == 0 and verdict.first.position in (1, 10, 30)
    bands = {(spread.metric, spread.band) for spread in verdict.spreads}
    assert {("state", "1 step"), ("state", "30 steps"), ("output", "10 steps"), ("context", "0-1k")} <= bands


def test_a_token_that_is_looked_for_far_back_is_found_there():
    of = Architecture.from_config()
    at, inputs, positions = long_state.needles(of, 48, 512, 0)
    exact = op_exams.contracts(of)["mla_core"].oracle(inputs, at)["context"]
    table, size = inputs["page_table"][0], at.axes["page_size"]
    for row, position in enumerate(positions):
        value = inputs["cache"][table[position // size], position % size, : of.mla.kv_lora_rank].double()
        shares = (exact[row] @ value) / value.square().sum()
        assert (shares > 0.25).all(), position
    assert {0, 63, 64, 511} <= set(positions)


def test_noise_differs_from_stock_and_stays_as_near_to_the_oracle(paths):
    stream = torch.tensor(material.streams.stream(24, 3))
    seen = {}
    for name, path in (("oracle", paths.oracle()), ("stock", paths.stock(1)), ("again", paths.again(1, 1))):
        path.begin(1, 40, 1)
        seen[name] = path.prefill(Batch(stream, (0,), (len(stream),)))
    errors = {n: (seen[n].streams.double() - seen["oracle"].streams).norm(dim=-1).median() for n in ("stock", "again")}
    assert not torch.equal(seen["stock"].streams, seen["again"].streams)
    assert 0.5 < errors["stock"] / errors["again"] < 2


def test_draft_proposals_are_accepted_now_and_then():
    stream, head = material.streams.stream(400, 0), material.draft_head()
    kept = [
        next((n for n, (a, b) in enumerate(zip(head.propose(stream[: i + 1], 7), stream[i + 1 :])) if a != b), 7)
        for i in range(40, 300)
    ]  # fmt: skip
    assert 0.1 < sum(kept) / len(kept) < 6 and {0, 1, 2} <= set(kept)


def test_tensors_are_laid_where_the_inputs_are(paths):
    """On a GPU in earnest; here on torch's device without memory."""
    contract = op_exams.contracts(paths.architecture)["kda_decode"]
    at = op_exams.workload(contract, 2, 3, 0)
    inputs = {name: tensor.to("meta") for name, tensor in contract.make_inputs(at, "typical", 0).items()}
    found = op_exams.laid(contract, at, inputs)
    assert {tensor.device.type for tensor in found.values()} == {"meta"}
    assert {spec.name: spec.strides for spec in contract.tensors(at)} == {name: t.stride() for name, t in found.items()}


def test_configurations_split_over_all_ranks(paths):
    for tp in (1, 8, 16):
        found = kernel_sizes.configurations(paths.architecture, tp)
        assert (2 * paths.architecture.moe.expert_intermediate_size // tp) % found["experts"]["block_n"] == 0
        assert paths.architecture.hidden_size // tp % found["latent_up"]["block_n"] == 0
