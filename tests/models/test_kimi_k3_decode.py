"""Whole decode steps of small models through the decode path on a CPU, beside the plain path and the oracle."""

import json
import os
import subprocess
import sys
from pathlib import Path

import decoded
import pytest
import torch
from fasttrack_models.kimi_k3 import decode
from fasttrack_models.kimi_k3.plan import Fallback, Step, Why
from fasttrack_validation.contracts.kimi_k3.architecture import Architecture
from long_tests import long

SUPPORT = Path(__file__).parents[1] / "support"
# Logits: so many times the plain path's own error. Both round at nearly the same points, and a model of random weights
# magnifies what they round differently.
RATIO = 2.0


def interpreted(script: str, *arguments: str) -> dict:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, SUPPORT / script, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("what", [pytest.param("tp1", marks=long), "tp2", pytest.param("nano", marks=long)])
def test_decoded_tokens_are_as_near_to_the_oracle_as_the_plain_paths(what):
    """After a prefill: padded rows beside live ones, pages with gaps, states updated in place; simulated ranks at TP 2."""
    found = interpreted("interpreted_decode.py", what)
    assert found.pop("allocated") is False
    logits = {name: errors for name, errors in found.items() if isinstance(errors, list)}
    assert logits
    for name, (own, plain) in logits.items():
        assert own <= max(RATIO * plain, 0.02), f"{name}: {own} against {plain}"
    for name, value in found.items():
        if name.endswith("untouched"):
            assert value is True
        elif not isinstance(value, list):
            assert value < 0.1, f"{name}: {value}"


@pytest.mark.slow
def test_a_fault_in_one_place_of_the_step_shows():
    found = interpreted("interpreted_decode.py", "faults")
    own, plain = found.pop("none")
    assert own <= max(RATIO * plain, 0.02)
    for what, (wrong, _) in found.items():
        assert wrong > 2 * max(RATIO * plain, 0.02), f"{what}: {wrong}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["kda_moe", "mla_moe", "step", "kda_verify", "mla_verify"])
def test_a_cell_on_given_tensors_passes_the_contracts_comparison(kind):
    assert set(interpreted("interpreted_shard.py", kind).values()) == {"pass"}


@pytest.mark.slow
def test_a_verify_step_that_starts_each_token_anew_fails_the_comparison():
    """The first token of each request and its page are right, so that the whole is judged by the rest."""
    found = interpreted("interpreted_shard.py", "kda_verify", "committed")
    failed = {name for name, decision in found.items() if decision == "fail"}
    assert {"recurrent_state", "conv_state"} <= {name.removeprefix("kda_verify_") for name in failed}


@pytest.mark.slow
def test_a_verify_step_whose_tokens_see_those_behind_them_fails_the_comparison():
    """The cache, which was written before, is right."""
    found = interpreted("interpreted_shard.py", "mla_verify", "unmasked")
    assert found["cache"] == "pass" and found["o_proj_residual_partial"] == "fail"


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "tensor"), [("epsilon", "latent_up_stream"), ("skipped", "shared_down_partial")])
def test_a_fault_in_a_layer_fails_the_comparison_of_what_it_spoils_alone(fault, tensor):
    found = interpreted("interpreted_shard.py", "kda_moe", fault)
    assert {name for name, decision in found.items() if decision == "fail"} == {tensor}


# What needs no launch: binding, planning, refusing.


def context():
    """Kernels' host code looks at nothing of it before a launch."""
    return None


@pytest.fixture(scope="module")
def decoder():
    of = decoded.tiny()
    decoded.resize(of)
    run = decoded.Run(of, 1, 2)
    yield run, _decoder(of, run)
    decoded.resize(Architecture.from_config())


def _decoder(of, run):
    return decode.Decoder(
        run.weights[0], decoded.here(of, 1), decoded.directory(of), context(), shape=decoded.small_shape(of),
        buckets=(1, 4), device="cpu",
    )  # fmt: skip


def test_steps_are_the_stock_paths_until_caches_are_bound_and_while_they_move(decoder):
    run, one = decoder
    assert one.plan(Step((1,))).why is Why.CACHES or one.plan(Step((1,))).why is Why.PAGES
    one.bind(run.caches(0), 6)
    assert one.plan(Step((1,))) == decode.Plan(1, 1)
    assert one.plan(Step((1, 1, 1), pages=6)) == decode.Plan(3, 4)
    assert isinstance(one.plan(Step((1,) * 5)), Fallback)
    one.unbind()
    assert one.step(Step((1,)), None, lambda fallback: fallback.why) in (Why.CACHES, Why.PAGES)


def test_sizes_share_repacked_weights_and_have_buffers_of_their_own(decoder):
    run, one = decoder
    one.bind(run.caches(0), 6)
    repacked, whole = one.prepared.bytes, one.extra_bytes
    one.bind(run.caches(0), 6)
    assert one.prepared.bytes == repacked and one.extra_bytes == whole > repacked > 0
    assert one.lane(1).memory.whole("embedding").data_ptr() != one.lane(4).memory.whole("embedding").data_ptr()


def test_rows_behind_a_steps_own_become_padding(decoder):
    run, one = decoder
    one.bind(run.caches(0), 6)
    lane, width = one.lane(4), run.of.hidden_size
    for tensor in (lane.embedding, *lane._given.values()):
        tensor.fill_(7)
    ones = {"dtype": torch.int32}
    inputs = decode.Inputs(
        torch.ones(3, width).bfloat16(), torch.tensor([5, 6, 8], **ones), torch.ones(3, 2, **ones), torch.ones(3, **ones)
    )
    lane.take(inputs, 3)
    assert lane._given["slots"].tolist() == [5, 6, 8, 0] and lane._given["lengths"].tolist() == [1, 1, 1, 0]
    assert not lane.embedding[3].any() and not lane._given["page_table"][3].any()
    # A narrower table than was prepared leaves the rest of its rows alone: no length reaches there.
    assert lane._given["page_table"][0].tolist() == [1, 1, 7, 7, 7, 7]


STEPS = {
    Why.PREFILL: Step((1, 1), prefills=1), Why.EMPTY: Step(()), Why.ROWS: Step((1,) * 65), Why.RAGGED: Step((2, 1)),
    Why.VERIFY: Step((2, 2)), Why.UNPREPARED: Step((1,) * 5), Why.PAGES: Step((1,), pages=7),
    Why.PIPELINE: Step((1,), intermediate=True), Why.PIECEWISE: Step((1,), piecewise=True),
}  # fmt: skip


@pytest.mark.parametrize("why", STEPS)
def test_outside_the_envelope_the_stock_paths_result_comes_out(decoder, why):
    run, one = decoder
    one.bind(run.caches(0), 6)
    # Inputs that would be refused show that nothing of this path runs.
    assert one.step(STEPS[why], None, lambda fallback: ("stock", fallback.why)) == ("stock", why)


@pytest.mark.parametrize(
    "change", [{"slots": torch.zeros(3, dtype=torch.int64)}, {"lengths": torch.zeros(2, dtype=torch.int32)}]
)
def test_inputs_of_another_type_or_length_are_refused(decoder, change):
    run, one = decoder
    one.bind(run.caches(0), 6)
    ones = {"dtype": torch.int32}
    fine = {
        "embedding": torch.ones(3, run.of.hidden_size).bfloat16(), "slots": torch.zeros(3, **ones),
        "page_table": torch.ones(3, 2, **ones), "lengths": torch.ones(3, **ones),
    }  # fmt: skip
    with pytest.raises(ValueError, match="3 rows of torch.int32"):
        one.lane(4).take(decode.Inputs(**fine | change), 3)


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("recurrent_state", lambda t: t.bfloat16()), ("conv_state", lambda t: t.float()),
        ("conv_state", lambda t: decoded.apart(t[:, :, :-1], 9)),
    ],
)  # fmt: skip
def test_caches_that_kernels_cannot_read_are_refused_by_layer_and_name(decoder, name, spoil):
    run, one = decoder
    caches = run.caches(0)
    caches[2] = {**caches[2], name: spoil(caches[2][name])}
    with pytest.raises(ValueError, match=f"layer 2: {name}"):
        one.bind(caches, 6)


def test_a_deployment_with_objections_is_not_built():
    of = decoded.tiny()
    with pytest.raises(ValueError, match="LoRA.*; sleep mode"):
        decode.Decoder(
            None, decoded.here(of, 1, lora=True, sleep_mode=True), decoded.directory(of), context(),
            shape=decoded.small_shape(of), device="cpu",
        )  # fmt: skip
