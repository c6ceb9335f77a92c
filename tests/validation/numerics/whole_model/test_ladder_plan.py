"""Which units there are, and what their scenarios do: positions, sizes of graphs, what verify steps keep."""

from collections import Counter

import pytest
from fasttrack_validation.numerics.whole_model import scenarios
from fasttrack_validation.numerics.whole_model.pieces import plan_material
from fasttrack_validation.numerics.whole_model.plan import FAR, FARTHER, PROMPT, TOGETHER, WIDTH, Material, Settings, works
from fasttrack_validation.numerics.whole_model.scenario import Kind, RungName
from fasttrack_validation.numerics.whole_model.scenarios import TAIL
from fasttrack_validation.numerics.whole_model.table import REACH

COUNTING = Material(stream=lambda count, seed: [n % 12 for n in range(count)], propose=lambda seen, count: [11] * count, vocabulary=12)


def actions(generator):
    """All actions, with an oracle that always says 5."""
    found = [next(generator)]
    while True:
        watched = [5 for target in found[-1].targets if target is not None]
        try:
            found.append(generator.send(tuple(watched)))
        except StopIteration:
            return found


def units(**settings):
    return {work.unit.key: work for work in works(Settings(**settings), COUNTING)}


def decoded(work):
    return [action for action in actions(work.actions()) if action.kind is Kind.DECODE]


def test_a_stream_is_read_in_prefill_and_again_token_by_token():
    found = units(tokens=16)
    stream, alone = (found[f"teacher_forced-tp1-{name}"] for name in ("stream", "decoded"))

    def targets(work):
        return [target for action in actions(work.actions()) for target in action.targets]

    assert targets(stream) == targets(alone) and len(targets(alone)) == PROMPT + 16
    assert [len(decoded(work)) for work in (stream, alone)] == [16, PROMPT + 15]
    assert not any(key.endswith("decoded") for key in found if "-tp8-" in key)


@pytest.mark.parametrize(("name", "prompt", "band", "steps"), [("far", FAR, 1024, 24), ("farther", FARTHER, 8192, 32)])
def test_tokens_beyond_the_first_bands_are_decoded(name, prompt, band, steps):
    found = units(tokens=16 if name == "far" else 64, device="cuda")
    assert ("teacher_forced-tp1-farther" in found) is (name == "farther")
    work = found[f"teacher_forced-tp1-{name}"]
    everything = actions(work.actions())
    read = sum(len(action.tokens) for action in everything if action.kind is Kind.PREFILL)
    watched = [t is not None for a in everything if a.kind is Kind.PREFILL for t in a.targets]
    assert read == prompt >= band and watched == [False] * (prompt - TAIL) + [True] * TAIL
    assert not any(a.judged for a in everything if a.kind is Kind.PREFILL) and TAIL >= REACH
    assert len(decoded(work)) == steps and work.unit.max_tokens > prompt + steps


@pytest.mark.parametrize(("device", "sizes"), [("cpu", (2, 4, 8)), ("cuda", (2, 4, 8, 16, 32, 64))])
def test_every_size_of_a_graph_is_decoded_full_and_with_one_row_beside_the_next_smaller(device, sizes):
    found = units(tokens=16, device=device)
    rows = {key: work for key, work in found.items() if key.startswith("batch_sweep-tp1-rows") and "padded" not in key}
    counts = {}
    for work in rows.values():
        (count,) = {len(action.requests) for action in decoded(work)}
        assert count == work.unit.requests
        counts.setdefault(work.unit.buckets[0], set()).add(count)
    assert counts == {size: {size, size // 2 + 1} for size in sizes}


def test_prompts_of_a_batch_are_read_side_by_side():
    work = units(tokens=16, device="cuda")["batch_sweep-tp1-rows64"]
    steps = [action for action in actions(work.actions()) if action.kind is Kind.PREFILL]
    assert 1 < len(steps) <= -(-64 * 26 // scenarios.PREFILL) and max(len(step.tokens) for step in steps) <= scenarios.PREFILL
    assert [request for step in steps for request in step.requests] == list(range(64))
    assert all(sum(step.counts) == len(step.tokens) for step in steps)


def accepted(work):
    """(width, accepted) of steps to verify."""
    return {(step.counts[0], step.accepted[0]) for step in decoded(work) if step.counts[0] > 1}


def test_every_accepted_count_of_every_width_is_tried():
    everything = {(width, kept) for width in range(2, WIDTH + 1) for kept in range(width + 1)}
    for settings in ({"tokens": 16, "device": "cuda"}, {"tokens": 64}):
        assert accepted(units(**settings)["batch_sweep-tp1-verify-every"]) == everything
    # Short runs of an interpreter: none, half and all of the wide ones.
    short = {(width, kept) for width, kept in everything if width <= 4 or kept in (0, width // 2, width)}
    assert accepted(units(tokens=16)["batch_sweep-tp1-verify-every"]) == short
    assert accepted(units(tokens=16, device="cuda")["batch_sweep-tp16-verify-every"]) == short


def test_steps_of_a_draft_head_have_an_executor():
    """Rows of a verify step: tokens of a request times the requests of a size that holds them."""
    for name, width, requests in (("verify-draft", WIDTH, 1), ("verify-every", WIDTH, 1), ("verify-together", TOGETHER, 2)):
        unit = units(tokens=64)[f"batch_sweep-tp1-{name}"].unit
        assert unit.width == width and unit.requests == requests
        assert width * requests in {width * bucket for bucket in unit.buckets if width * bucket <= unit.buckets[-1]}
        assert requests in unit.buckets


def test_other_ranks_sweep_batches_and_verify_as_well():
    larger = {key.removeprefix("batch_sweep-tp8-") for key in units(tokens=16, device="cuda") if key.startswith("batch_sweep-tp8-")}
    assert larger == {"rows3", "rows8", "rows64", "verify-together", "verify-every"}
    found = {key: work for key, work in units(tokens=16).items() if key.startswith("batch_sweep-tp8-")}
    assert sorted(found) == ["batch_sweep-tp8-rows3", "batch_sweep-tp8-verify-together"]
    steps = decoded(found["batch_sweep-tp8-verify-together"])
    assert {max(action.counts) for action in steps} == {1, TOGETHER}
    assert len({kept for action in steps if max(action.counts) > 1 for kept in action.accepted}) >= 2


@pytest.mark.parametrize("steps", [2, 8])
def test_requests_that_verify_together_keep_counts_of_their_own(steps):
    streams = [[(7 * n + r) % 11 for n in range(200)] for r in range(2)]
    found = actions(scenarios.verify_together(streams, 20, lambda seen, count: [11] * count, 4, steps))
    places, kept = [20, 20], Counter()
    for action in found:
        if action.kind is not Kind.DECODE:
            continue
        assert action.requests == (0, 1)
        row = 0
        for request, (count, accepted) in enumerate(zip(action.counts, action.accepted, strict=True)):
            tokens, targets = action.tokens[row : row + count], action.targets[row : row + count]
            here = streams[request][places[request] :]
            assert list(tokens[:accepted]) == here[:accepted] and list(targets[:accepted]) == here[1 : accepted + 1]
            assert accepted == count or tokens[accepted] != here[accepted]
            kept[accepted] += count > 1
            places[request] += accepted
            row += count
    assert sum(kept.values()) == 2 * steps and len(kept) >= 2


def test_the_real_material_fills_every_unit():
    of = plan_material()
    for work in works(Settings(tokens=16, device="cuda", rungs=tuple(r for r in RungName)), of):
        if work.unit.rung != RungName.GREEDY:
            assert all(0 <= token < of.vocabulary for action in actions(work.actions()) for token in action.tokens)
