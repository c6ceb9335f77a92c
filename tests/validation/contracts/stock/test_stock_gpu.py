"""The stock path on a GPU: nano's whole decode step against the oracle, and as a captured graph."""

from collections import Counter
from dataclasses import replace

import k3_weights
import pytest
import torch

from fasttrack_validation.contracts.kimi_k3 import stock
from fasttrack_validation.contracts.kimi_k3.layer_weights import ModelWeights, MoeWeights, Shard
from fasttrack_validation.contracts.kimi_k3.step.model import Model
from fasttrack_validation.contracts.kimi_k3.step.moe import experts
from fasttrack_validation.contracts.kimi_k3.step.precision import EXACT, PUBLISHED
from fasttrack_validation.contracts.kimi_k3.step.router import choose
from fasttrack_validation.contracts.kimi_k3.step.state import PADDING, Batch, State
from fasttrack_validation.contracts.kimi_k3.stock.step import Tables
from fasttrack_validation.errors import UserError

NANO = k3_weights.nano()
# The published roundings leave about this much between plain path and oracle; another order of them no more than twice.
SLACK = 2


@pytest.fixture(scope="module")
def path():
    try:
        return stock.path(NANO, 1)
    except UserError as missing:
        pytest.skip(missing.what)


def error(out: torch.Tensor, reference: torch.Tensor) -> float:
    reference = reference.cpu().double()
    return ((out.cpu().double() - reference).norm() / reference.norm()).item()


def decisive(model: ModelWeights) -> ModelWeights:
    """The bias alone chooses experts: otherwise a rounding before the router may swap the last of them."""
    rng = torch.Generator().manual_seed(5)

    def of(layer):
        if not isinstance(layer.mlp, MoeWeights):
            return layer
        bias = 2.0 * torch.randperm(NANO.moe.experts, generator=rng)
        return replace(layer, mlp=replace(layer.mlp, correction_bias=bias))

    return replace(model, layers={number: of(layer) for number, layer in model.layers.items()})


def walk(path, prepared, model: ModelWeights, batch: Batch, state: State, tables: Tables) -> torch.Tensor:
    stream = path.start(model.embedding[batch.tokens])
    for layer in prepared:
        path.layer(layer, stream, state.ranks[0][layer.number], tables)
    final, head = stock_to_gpu(model.final_mix), stock_to_gpu(model.lm_head)
    return path.head(stream, final, head)


def stock_to_gpu(part):
    from fasttrack_validation.contracts.kimi_k3.stock.layer import to_device

    return to_device(part, "cuda")


@pytest.mark.gpu
def test_two_steps_of_nano_are_as_near_to_the_oracle_as_the_plain_path(path):
    """Ragged requests with padding; what was accepted in the first step is where the second starts."""
    model = decisive(k3_weights.nano_weights())
    prepared = [path.prepare(number, layer) for number, layer in model.layers.items()]
    prompts = Batch(k3_weights.tokens(NANO, 70), (0, 1), (60, 10))
    steps = [
        (Batch(k3_weights.tokens(NANO, 6, seed=2), (1, PADDING, 0), (3, 1, 2)), (2, 0, 0)),
        (Batch(k3_weights.tokens(NANO, 4, seed=3), (0, 1), (1, 3)), (1, 3)),
    ]
    references = {}
    for precision in (EXACT, PUBLISHED):
        plain = Model(NANO, [model], precision)
        state = plain.new_state(2, 90, verify_width=3)
        plain.prefill(prompts, state)
        if precision is PUBLISHED:
            ours = State.allocate(NANO, 1, PUBLISHED, 2, 90, verify_width=3, device="cuda")
            ours.lengths = list(state.lengths)
            for layer, cache in state.ranks[0].items():
                for name, tensor in vars(cache).items():
                    getattr(ours.ranks[0][layer], name).copy_(tensor)
        references[precision] = []
        for batch, accepted in steps:
            references[precision].append(plain.decode(batch, state))
            state.commit(batch, accepted)
    for i, (batch, accepted) in enumerate(steps):
        tables = Tables.of(batch, ours, "cuda")
        out = walk(path, prepared, model, batch, ours, tables)
        ours.offer(batch)
        ours.commit(batch, accepted)
        live = tables.live.cpu()
        exact, plain = references[EXACT][i][live], references[PUBLISHED][i][live]
        assert error(out[tables.live], exact) < SLACK * error(plain, exact)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_choice_and_experts_are_the_plain_path(path, rows):
    """40 rows put more than eight tokens on an expert; logits in pairs make every choice a tie."""
    weights = k3_weights.nano_weights().layers[1].mlp
    prepared = path.prepare(1, k3_weights.nano_weights().layers[1]).mlp
    moe = path.moe(NANO.moe.expert_intermediate_size)
    rng = torch.Generator().manual_seed(rows)
    logits = torch.randn(rows, NANO.moe.experts, generator=rng)
    logits[:, 1::2] = logits[:, ::2]
    bias = torch.zeros(NANO.moe.experts)
    ids, scales = choose(logits, bias, NANO.moe, PUBLISHED)
    routes = moe.experts.route(logits.cuda(), bias.cuda())
    assert torch.equal(routes.ids.cpu().long(), ids)
    torch.testing.assert_close(routes.weights.cpu(), scales, rtol=1e-5, atol=0)

    latent = torch.randn(rows, NANO.moe.latent_size, generator=rng).bfloat16()
    scaled = (latent.float() * 2.0**96).bfloat16().cuda()
    out = moe.experts(scaled, routes, prepared.w13, prepared.w2)
    exact = experts(latent.double(), ids, scales.double(), weights, NANO.situ, EXACT)
    plain = experts(latent.float(), ids, scales, weights, NANO.situ, PUBLISHED)
    assert error(out, exact) < SLACK * error(plain, exact)


@pytest.mark.gpu
@pytest.mark.parametrize("score", [0.0, -0.0, float("nan"), float("-inf"), float("inf")])
def test_odd_logits_are_chosen_as_in_the_plain_path(path, score):
    logits = torch.randn(2, NANO.moe.experts, generator=torch.Generator().manual_seed(1))
    logits[0, 3::4] = score
    logits[1] = score
    bias = torch.zeros(NANO.moe.experts)
    ids, scales = choose(logits, bias, NANO.moe, PUBLISHED)
    routes = path.moe(NANO.moe.expert_intermediate_size).experts.route(logits.cuda(), bias.cuda())
    assert torch.equal(routes.ids.cpu().long(), ids)
    torch.testing.assert_close(routes.weights.cpu(), scales, rtol=1e-5, atol=0, equal_nan=True)


@pytest.mark.gpu
def test_ranks_sum_to_the_whole_layer(path):
    """Partial sums of two ranks, reduced where a group all-reduces, against the unsharded experts."""
    whole = k3_weights.nano_weights().layers[1].mlp
    rng = torch.Generator().manual_seed(8)
    latent = torch.randn(5, NANO.moe.latent_size, generator=rng).bfloat16()
    logits, bias = torch.randn(5, NANO.moe.experts, generator=rng), torch.zeros(NANO.moe.experts)
    total = 0
    for rank in range(2):
        part = stock_to_gpu(k3_weights.shard_moe(whole, Shard(2, rank)))
        moe = path.moe(NANO.moe.expert_intermediate_size // 2)
        packed = moe.pack(part)
        routes = moe.experts.route(logits.cuda(), bias.cuda())
        scaled = (latent.float() * 2.0**96).bfloat16().cuda()
        total = total + moe.experts(scaled, routes, packed.w13, packed.w2).float()
    ids, scales = choose(logits, bias, NANO.moe, EXACT)
    exact = experts(latent.double(), ids, scales.double(), whole, NANO.situ, EXACT)
    assert error(total, exact) < 1e-2


@pytest.mark.gpu
def test_a_captured_layer_replays_and_its_launches_are_counted(path):
    from fasttrack_validation.contracts.kimi_k3.stock.attn_res import Stream
    from fasttrack_validation.contracts.kimi_k3.stock.graph import capture

    number = NANO.kda_layers[1]
    layer = path.prepare(number, k3_weights.nano_weights().layers[number])
    state = State.allocate(NANO, 1, PUBLISHED, 2, 32, verify_width=1, device="cuda")
    batch = Batch(torch.zeros(2, dtype=torch.int64), (0, 1), (1, 1))
    tables = Tables.of(batch, state, "cuda")
    embedding = torch.randn(2, NANO.hidden_size, device="cuda").bfloat16()
    prefix, bank = embedding.clone(), torch.zeros(3, 2, NANO.hidden_size, device="cuda", dtype=torch.bfloat16)

    def run():
        stream = Stream(prefix, bank, NANO.attn_res_block_size)
        path.layer(layer, stream, state.ranks[0][number], tables)
        stream.mlp_input(number, layer.mlp_mix, NANO.eps.backbone)

    prefix.copy_(embedding)
    run()
    eager = prefix.clone()
    captured = capture(run)
    prefix.copy_(embedding)
    captured.replay()
    torch.cuda.synchronize()
    assert torch.equal(prefix, eager)

    found = Counter(captured.kernels)
    own = ("route", "first", "second_few", "combine", "_convolve_kernel", "_gated_norm_kernel", "_situ_kernel")
    assert {name: found[name] for name in own} == dict.fromkeys(own, 1)
    assert found["_mix_norm_kernel"] == 3
    assert found["fused_recurrent_kda_fwd_kernel"] == 1
    # Seven cuBLAS products, of which those that split k launch a second kernel.
    products = len(captured.kernels) - sum(found[name] for name in (*own, "_mix_norm_kernel", "_rms_norm_kernel")) - 1
    assert 7 <= products <= 14
    assert captured.others == ()
