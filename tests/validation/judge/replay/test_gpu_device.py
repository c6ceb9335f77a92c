"""The same worker on a real GPU. The judge's own kernels stand in for a candidate's: their PTX needs no compiler."""

import numpy as np
import pytest
from fasttrack_validation.contracts.base import TensorRole, TensorSpec
from fasttrack_validation.judge.arena import Arena
from fasttrack_validation.judge.pack import (
    variant_key,
)  # fmt: skip
from fasttrack_validation.judge.replay.choose import choose
from fasttrack_validation.judge.replay.device import Device
from fasttrack_validation.judge.replay.executor import Gpu, regions
from fasttrack_validation.judge.replay.kernels import drawn, host_digest
from fasttrack_validation.tensors import DType
from own_kernels import SEED, WORDS, codes, delay, noise, noise_plan


@pytest.fixture(scope="module", params=["fake", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    if request.param == "fake":
        with Device("fake", run_seconds=10.0) as made:
            yield made
        return
    found, why = choose("auto")
    if found is None:
        pytest.skip(why)
    with Device("cuda", run_seconds=3.0) as made:
        found.close()
        yield made


@pytest.fixture
def arena():
    specs = [("x", TensorRole.INPUT), ("out", TensorRole.OUTPUT), ("also", TensorRole.OUTPUT)]
    made = Arena(
        tuple(TensorSpec(name=n, dtype=DType.I64, role=r, shape=(WORDS,), strides=(1,)) for n, r in specs), {}, {},
        np.random.Generator(np.random.PCG64(3)),
    )  # fmt: skip
    made.seal()
    yield made
    made.close()


def execute(device, plan, arena, shifts=None, **fields):
    return Gpu(device, codes(plan, **fields)).execute(plan, arena, "shuffled:1", shifts or {})


def words(arena, name):
    return arena.take(name).numpy().view(np.uint64)


def test_a_plan_leaves_what_it_should_and_nothing_else(device, arena):
    plan = noise_plan(noise(), noise(SEED + 1, "also", stream="side"))
    assert execute(device, plan, arena)["status"] == "ok"
    assert np.array_equal(words(arena, "out"), drawn(SEED, 0, WORDS))
    assert np.array_equal(words(arena, "also"), drawn(SEED + 1, 0, WORDS))
    assert arena.stray_writes() == ()


def test_launch_attributes_are_taken(device, arena):
    plan = noise_plan(noise(SEED + 1), noise())
    for fields in (
        {"launch_pdl": True}, {"launch_cooperative_grid": True}, {"ctas": 2}, {"ctas": 4, "launch_pdl": True},
    ):  # fmt: skip
        outcome = execute(device, plan, arena, **fields)
        assert outcome["status"] == "ok", (fields, outcome)
        assert np.array_equal(words(arena, "out"), drawn(SEED, 0, WORDS)), fields


def test_an_access_outside_is_named_and_the_device_goes_on(device, arena):
    before = device.restarts
    outcome = execute(device, noise_plan(noise()), arena, {"out": 1 << 44})
    assert outcome["status"] == "illegal_access", outcome
    outcome = execute(device, noise_plan(noise()), arena, {"out": 4})
    assert outcome["status"] == "misaligned", outcome
    assert device.restarts == before + 2
    assert execute(device, noise_plan(noise()), arena)["status"] == "ok"


def test_an_overrun_is_seen_by_the_arena(device, arena):
    assert execute(device, noise_plan(noise(size=8 * WORDS + 16)), arena)["status"] == "ok"
    (stray,) = arena.stray_writes()
    assert (stray.region, stray.where) == ("guard band", "0 bytes after the end of out")


def test_launches_that_the_driver_refuses_are_named(device, arena):
    outcome = execute(device, noise_plan(noise()), arena, warps=64)
    assert outcome["status"] == "refused_launch" and "launch 0 (judge_noise)" in outcome["message"], outcome
    assert execute(device, noise_plan(noise()), arena, trailing_scratch=True)["status"] == "parameters"
    assert execute(device, noise_plan(noise()), arena, cubin=b"no code")["status"] == "refused_launch"
    assert execute(device, noise_plan(noise()), arena)["status"] == "ok"


def test_a_missing_wait_shows(device, arena):
    # Both write `out`; the second one only counts when it waits for the first.
    first, second = noise(SEED + 1, stream="side"), noise()
    assert execute(device, noise_plan(first, second), arena)["status"] in ("order_dependent", "not_reproducible")
    waiting = noise_plan(first, second.model_copy(update={"waits": ("side",)}))
    assert execute(device, waiting, arena)["status"] == "ok"
    assert np.array_equal(words(arena, "out"), drawn(SEED, 0, WORDS))


@pytest.mark.gpu
def test_a_kernel_that_does_not_end_is_killed(device, arena):
    if device.facts.name == "fake device":
        pytest.skip("a delay takes no time there; test_gpu_trials.py has an endless kernel for it")
    outcome = execute(device, noise_plan(delay(30_000_000_000)), arena)
    assert outcome["status"] == "hang", outcome
    assert execute(device, noise_plan(noise()), arena)["status"] == "ok"


def test_slots_replay_in_one_graph(device, arena):
    plan = noise_plan(noise(), noise(SEED + 1, "also"), delay(200_000))
    key = (5, 9)
    by_key = {name: codes(plan)[variant_key(v)] for name, v in plan.kernels.items()}
    pristine = arena.take("out")
    with device.session(plan, by_key) as session:
        addresses = [session.slot(n, arena.fd, arena.size, regions(plan, arena), whole=n == 0) for n in range(3)]
        assert len(set(addresses)) == 3 and not any(address % 256 for address in addresses)
        assert session.capture(range(3)) == 9
        elapsed = session.replay()
        # Three delays of 200 us each, one after the other, and the host saw at least that.
        assert elapsed.event_ns >= 590_000  # two clocks
        expected = host_digest([drawn(s, 0, WORDS).tobytes() for s in (SEED + 1, SEED)], key)  # also, out
        assert session.digest([0, 1, 2], key) == [expected] * 3
        session.restore([1])
        untouched = host_digest([arena.take(name).numpy().tobytes() for name in ("also", "out")], key)
        assert session.digest([0, 1, 2], key) == [expected, untouched, expected]
        session.download(2, arena.fd)
        assert not np.array_equal(arena.take("out"), pristine)
        session.download(1, arena.fd)
        assert np.array_equal(arena.take("out"), pristine)
