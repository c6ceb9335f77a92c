"""The whole walk: verify and roll-back, mixed batches, chunked prefill, tensor parallelism, padding."""

from dataclasses import replace

import k3_weights
import pytest
import torch

from fasttrack_validation.contracts.kimi_k3.step.model import Model
from fasttrack_validation.contracts.kimi_k3.step.precision import EXACT
from fasttrack_validation.contracts.kimi_k3.step.state import PADDING, Batch, State
from fasttrack_validation.errors import UserError

PICO, WEIGHTS = k3_weights.pico(), k3_weights.pico_weights()
PROMPT = k3_weights.tokens(PICO, 6)
DRAFT = k3_weights.tokens(PICO, 8, seed=2)


def one(token) -> Batch:
    return Batch(torch.tensor([int(token)]), (0,), (1,))


def whole(precision=EXACT, weights=WEIGHTS) -> Model:
    return Model(PICO, [weights], precision)


def started(model: Model, prompt=PROMPT, page_size: int = 4) -> State:
    """One request after its prompt, in pools whose pages are dealt out in no order."""
    state = model.new_state(2, 24, page_size=page_size)
    rng = torch.Generator().manual_seed(9)
    for table in (state.slots, state.pages):
        table.copy_(1 + torch.randperm(table.numel(), generator=rng).view(table.shape))
    model.prefill(Batch(prompt, (0,), (len(prompt),)), state)
    return state


def singles(model: Model, state: State, tokens) -> list[torch.Tensor]:
    logits = []
    for token in tokens:
        logits.append(model.decode(one(token), state))
        state.commit(one(token), (1,))
    return logits


def assert_same_state(left: State, right: State, tolerance: float = 1e-11) -> None:
    assert left.lengths == right.lengths
    for mine, theirs in zip(k3_weights.fingerprint(left, 0), k3_weights.fingerprint(right, 0), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("width, accepted", [(q, a) for q in (1, 2, 3, 5, 8) for a in range(q + 1)])
def test_verify_is_single_steps_up_to_what_was_accepted(width, accepted):
    """Logits of all q rows; then the state, and a step after it. A page holds 4 rows: some counts end on its edge."""
    model = whole()
    verified, stepped = started(model), started(model)
    batch = Batch(DRAFT[:width], (0,), (width,))
    logits = model.decode(batch, verified)
    verified.commit(batch, (accepted,))

    expected = singles(model, stepped, DRAFT[:accepted])
    if accepted:
        torch.testing.assert_close(logits[:accepted], torch.cat(expected), rtol=1e-10, atol=1e-10)
    assert_same_state(verified, stepped)
    after = DRAFT[-1]
    torch.testing.assert_close(
        model.decode(one(after), verified), model.decode(one(after), stepped), rtol=1e-10, atol=1e-10
    )


def test_none_accepted_leaves_every_committed_bit():
    """Index accepted - 1 would be -1: the last slot, or the last page of the pool."""
    model = whole()
    state = started(model)
    before = [tensor.clone() for tensor in k3_weights.fingerprint(state, 0)]
    batch = Batch(DRAFT, (0,), (8,))
    model.decode(batch, state)
    state.commit(batch, (0,))
    assert all(torch.equal(*pair) for pair in zip(before, k3_weights.fingerprint(state, 0), strict=True))
    assert state.lengths[0] == len(PROMPT)


def test_verifies_in_a_row():
    """Roll-back after roll-back: slots change places, and none of them may be taken for another."""
    model = whole()
    verified, stepped = started(model), started(model)
    at = 0
    stream = k3_weights.tokens(PICO, 12, seed=5)
    for width, accepted in ((4, 2), (4, 0), (3, 3), (5, 1), (2, 2)):
        batch = Batch(stream[at : at + width], (0,), (width,))
        model.decode(batch, verified)
        verified.commit(batch, (accepted,))
        singles(model, stepped, stream[at : at + accepted])
        at += accepted
    assert_same_state(verified, stepped)


@pytest.mark.parametrize("accepted", [(5, 0), (-1, 0), (0,)])
def test_accepted_counts_out_of_range_are_refused_whole(accepted):
    model = whole()
    state = started(model)
    batch = Batch(DRAFT[:5], (0, 1), (4, 1))
    model.decode(batch, state)
    slots, lengths = state.slots.clone(), list(state.lengths)
    with pytest.raises(UserError, match="accepted"):
        state.commit(batch, accepted)
    assert torch.equal(state.slots, slots) and state.lengths == lengths
    state.commit(batch, (4, 0))
    assert state.lengths == [lengths[0] + 4, 0]


def test_what_no_step_has_left_cannot_be_accepted():
    """Slots hold states of older steps: taking one up twice, or after a prefill, would restore one of those."""
    model = whole()
    state = started(model)
    batch = Batch(DRAFT[:3], (0,), (3,))
    with pytest.raises(UserError, match="1 tokens accepted of 0"):
        state.commit(batch, (1,))
    model.decode(batch, state)
    state.commit(batch, (2,))
    with pytest.raises(UserError, match="1 tokens accepted of 0"):
        state.commit(batch, (1,))
    model.decode(batch, state)
    model.prefill(batch, state)
    with pytest.raises(UserError, match="3 tokens accepted of 0"):
        state.commit(batch, (3,))


def test_more_tokens_than_a_request_has_slots_for_are_refused():
    model = whole()
    state = model.new_state(1, 24, verify_width=2)
    model.decode(Batch(DRAFT[:2], (0,), (2,)), state)
    with pytest.raises(UserError, match="3 tokens of one request"):
        model.decode(Batch(DRAFT[:3], (0,), (3,)), state)


@pytest.mark.parametrize("requests, counts", [((0, 0), (1, 1)), ((0,), (2, 1)), ((0, 1), (2, 0)), ((-2, 1), (1, 1))])
def test_batches_that_do_not_add_up_are_refused(requests, counts):
    with pytest.raises(UserError):
        Batch(DRAFT[:2], requests, counts)


@pytest.mark.parametrize("form", ["decode", "prefill"])
def test_a_mixed_batch_is_its_requests_alone(form):
    """Verify widths 1 and 5 with padding between and behind: no row depends on another, no page on the padding."""
    model = whole()
    mixed, alone = started(model), started(model)
    tokens = torch.cat([DRAFT[:5], DRAFT[6:7], DRAFT[:1], DRAFT[2:4]])
    batch = Batch(tokens, (0, PADDING, 1, PADDING), (5, 1, 1, 2))
    out = getattr(model, form)(batch, mixed)
    for rows, request in ((slice(0, 5), 0), (slice(6, 7), 1)):
        own = Batch(tokens[rows], (request,), (len(tokens[rows]),))
        expected = getattr(model, form)(own, alone)
        torch.testing.assert_close(out[rows], expected, rtol=1e-10, atol=1e-10)
    for left, right in zip(mixed.ranks[0].values(), alone.ranks[0].values(), strict=True):
        for name in vars(left):
            torch.testing.assert_close(getattr(left, name), getattr(right, name), rtol=1e-11, atol=1e-11)
            assert not getattr(left, name)[0].any()


@pytest.mark.parametrize("form", ["decode", "prefill"])
def test_padded_rows_may_hold_nan(form):
    """A bucket of 8 with 5 real rows. The padding's embedding is NaN and passes every layer beside the live rows."""
    embedding = WEIGHTS.embedding.clone()
    embedding[63] = torch.nan
    model = whole(weights=replace(WEIGHTS, embedding=embedding))
    tokens = DRAFT[:5].clamp(max=62)
    padded, plain = started(model, PROMPT.clamp(max=62)), started(model, PROMPT.clamp(max=62))
    bucket = Batch(torch.cat([tokens, torch.full((3,), 63)]), (0, 1, PADDING), (2, 3, 3))
    out = getattr(model, form)(bucket, padded)
    expected = getattr(model, form)(Batch(tokens, (0, 1), (2, 3)), plain)
    torch.testing.assert_close(out[:5], expected, rtol=1e-10, atol=1e-10)
    for cache in padded.ranks[0].values():
        assert all(pool.isfinite().all() and not pool[0].any() for pool in vars(cache).values())


def test_rows_that_fill_a_prefill_bucket_are_no_tokens():
    """A bucket of 48 with sequences that end at 2, 36 and 47: the last row, and none before it, is padding."""
    model = whole()
    ends, tokens = (0, 2, 36, 47, 48), k3_weights.tokens(PICO, 48, seed=9)
    counts = tuple(end - begin for begin, end in zip(ends, ends[1:], strict=False))
    bucket, alone = model.new_state(3, 48), model.new_state(3, 48)
    out = model.prefill(Batch(tokens, (0, 1, 2, PADDING), counts), bucket)
    for request, (begin, end) in enumerate(zip(ends[:3], ends[1:4], strict=True)):
        expected = model.prefill(Batch(tokens[begin:end], (request,), (end - begin,)), alone)
        torch.testing.assert_close(out[begin:end], expected, rtol=1e-9, atol=1e-10)
    assert bucket.lengths == alone.lengths == [2, 34, 11]
    for left, right in zip(bucket.ranks[0].values(), alone.ranks[0].values(), strict=True):
        for name in vars(left):
            torch.testing.assert_close(getattr(left, name), getattr(right, name), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("chunk", [4, 16])
def test_chunked_prefill_is_token_by_token(chunk):
    model = whole()
    tokens = k3_weights.tokens(PICO, 19, seed=3)
    chunked, stepped = model.new_state(2, 24), model.new_state(2, 24)
    logits = model.prefill(Batch(tokens, (0,), (19,)), chunked, chunk=chunk)
    torch.testing.assert_close(logits, torch.cat(singles(model, stepped, tokens)), rtol=1e-9, atol=1e-9)
    assert_same_state(chunked, stepped, 1e-10)


def test_a_prompt_in_two_parts_is_the_prompt():
    model = whole()
    tokens = k3_weights.tokens(PICO, 13, seed=4)
    parts, at_once = model.new_state(1, 24), model.new_state(1, 24)
    logits = [model.prefill(Batch(part, (0,), (len(part),)), parts) for part in tokens.split([7, 6])]
    torch.testing.assert_close(
        torch.cat(logits), model.prefill(Batch(tokens, (0,), (13,)), at_once), rtol=1e-10, atol=1e-10
    )
    assert_same_state(parts, at_once)


@pytest.mark.parametrize("tp", [1, 2, 8, 16])
def test_ranks_add_up_layer_by_layer(tp):
    """The stream after each layer, from one verify step of four tokens after a prompt; then the logits."""
    walks = []
    for ranks in ([WEIGHTS], k3_weights.shard_model(WEIGHTS, PICO, tp)):
        model = Model(PICO, ranks, EXACT)
        state = started(model)
        batch = Batch(DRAFT[:4], (0,), (4,))
        attention = model.decoding(batch, state)
        stream, seen = model.embed(batch.tokens), []
        for number in range(PICO.layers):
            model.layer(number, stream, [rank.layers[number] for rank in ranks], attention)
            seen.append(stream.prefix)
        walks.append([*seen, model.head(stream)])
    for unsharded, summed in zip(*walks, strict=True):
        torch.testing.assert_close(summed, unsharded, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("tp", [2, 8, 16])
def test_a_sharded_model_decodes_like_the_unsharded_one(tp):
    model, sharded = whole(), Model(PICO, k3_weights.shard_model(WEIGHTS, PICO, tp), EXACT)
    batch = Batch(DRAFT[:3], (0,), (3,))
    left, right = started(model), started(sharded)
    torch.testing.assert_close(sharded.decode(batch, right), model.decode(batch, left), rtol=1e-10, atol=1e-10)
    right.commit(batch, (2,))
    left.commit(batch, (2,))
    torch.testing.assert_close(
        sharded.decode(one(DRAFT[3]), right), model.decode(one(DRAFT[3]), left), rtol=1e-10, atol=1e-10
    )
    heads = torch.cat([rank[0].recurrent[right.slots[0, 0]] for rank in right.ranks])
    torch.testing.assert_close(heads, left.ranks[0][0].recurrent[left.slots[0, 0]], rtol=1e-11, atol=1e-12)


def test_nano_decodes_after_a_prompt():
    """The nano configuration end to end: 13 layers, three blocks; a verify of two against two steps."""
    nano = k3_weights.nano()
    assert nano.mla_layers[-2:] == (11, 12) and nano.layers > 2 * nano.attn_res_block_size
    model = Model(nano, [k3_weights.nano_weights()], EXACT)
    tokens = k3_weights.tokens(nano, 6)
    verified, stepped = model.new_state(1, 8), model.new_state(1, 8)
    for state in (verified, stepped):
        model.prefill(Batch(tokens[:4], (0,), (4,)), state)
    logits = model.decode(Batch(tokens[4:], (0,), (2,)), verified)
    torch.testing.assert_close(logits, torch.cat(singles(model, stepped, tokens[4:])), rtol=1e-10, atol=1e-10)
