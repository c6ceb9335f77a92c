"""Fused kernels of two parts of Kimi K3's op graph, at nano widths: honest ones pass, those that skip it do not."""

from types import SimpleNamespace

import op_exam
import pytest
from judged import skip_compiling
from judging import candidate, replaced

from fasttrack_validation.contracts.kimi_k3.architecture import NANO, Architecture
from fasttrack_validation.contracts.kimi_k3.part import subgraph
from fasttrack_validation.judge.judge import Judge
from fasttrack_validation.judge.verdict import Status

MIX, NORM = "o_proj_residual+attn_res_norm", "attn_res_norm+in_projection"
ROUTED = "front+routing"

MIXED = '''
import triton
import triton.language as tl


@triton.jit
def mixed(
    blocks, stream, key, row, block_stride, block_row_stride, D: tl.constexpr, BLOCKS: tl.constexpr,
    BANKS: tl.constexpr,
):
    """The softmax mix of the banks and of `stream`, all in float32."""
    d = tl.arange(0, D)
    b = tl.arange(0, BANKS)
    banks = tl.load(
        blocks + b[:, None] * block_stride + row * block_row_stride + d[None, :], mask=b[:, None] < BLOCKS, other=0.0
    ).to(tl.float32)
    own = tl.sum(stream * key, 0) * tl.rsqrt(tl.sum(stream * stream, 0) / D + 1e-5)
    logits = tl.sum(banks * key[None, :], 1) * tl.rsqrt(tl.sum(banks * banks, 1) / D + 1e-5)
    logits = tl.where(b < BLOCKS, logits, float("-inf"))
    most = tl.maximum(tl.max(logits, 0), own)
    weights, mine = tl.exp(logits - most), tl.exp(own - most)
    return (tl.sum(banks * weights[:, None], 0) + stream * mine) / (tl.sum(weights, 0) + mine)


@triton.jit
def normed(h, weight, D: tl.constexpr):
    return h * tl.rsqrt(tl.sum(h * h, 0) / D + 1e-5) * weight
'''

FUSED_MIX = MIXED + '''

@triton.jit
def fused(
    w, x, peers, residual, partial, stream, res_norm, res_proj, out_norm, blocks, out,
    x_stride, peer_stride, peer_row_stride, residual_stride, block_stride, block_row_stride,
    D: tl.constexpr, K: tl.constexpr, PEERS: tl.constexpr, RESTART: tl.constexpr, BLOCKS: tl.constexpr,
    BANKS: tl.constexpr,
):
    row = tl.program_id(0)
    d = tl.arange(0, D)
    k = tl.arange(0, K)
    weight = tl.load(w + d[:, None] * K + k[None, :]).to(tl.float32)
    own = tl.sum(weight * tl.load(x + row * x_stride + k).to(tl.float32)[None, :], 1)
    tl.store(partial + row * D + d, own.to(tl.bfloat16))
    total = own
    for p in range(PEERS):
        total += tl.load(peers + p * peer_stride + row * peer_row_stride + d).to(tl.float32)
    if not RESTART:
        total += tl.load(residual + row * residual_stride + d).to(tl.float32)
    tl.store(stream + row * D + d, total.to(tl.bfloat16))
    key = tl.load(res_norm + d).to(tl.float32) * tl.load(res_proj + d).to(tl.float32)
    seen = total
    if BLOCKS == 0:
        h = seen
    else:
        h = mixed(blocks, seen, key, row, block_stride, block_row_stride, D, BLOCKS, BANKS)
    tl.store(out + row * D + d, normed(h, tl.load(out_norm + d).to(tl.float32), D).to(tl.bfloat16))


def launch(ctx, buffers, axes, config):
    count = axes["blocks"]
    banks = buffers.blocks if count else buffers.stream
    residual = buffers.stream if axes["restart"] else buffers.residual
    fused[(axes["rows"],)](
        buffers.o_proj, buffers.o_proj_residual_x, buffers.peers, residual, buffers.partial, buffers.stream,
        buffers.res_norm, buffers.res_proj, buffers.out_norm, banks, buffers.attn_res_norm_x,
        buffers.o_proj_residual_x.stride(0), buffers.peers.stride(0), buffers.peers.stride(1), residual.stride(0),
        banks.stride(0), banks.stride(1), D=128, K=axes["k"], PEERS=axes["tp"] - 1, RESTART=axes["restart"],
        BLOCKS=count, BANKS=4,
    )
'''

FUSED_NORM = MIXED + '''

@triton.jit
def fused(
    stream, res_norm, res_proj, out_norm, blocks, w, out, stream_stride, block_stride, block_row_stride, n,
    D: tl.constexpr, TILE: tl.constexpr, BLOCKS: tl.constexpr, BANKS: tl.constexpr,
):
    row = tl.program_id(0)
    d = tl.arange(0, D)
    own = tl.load(stream + row * stream_stride + d).to(tl.float32)
    key = tl.load(res_norm + d).to(tl.float32) * tl.load(res_proj + d).to(tl.float32)
    if BLOCKS == 0:
        h = own
    else:
        h = mixed(blocks, own, key, row, block_stride, block_row_stride, D, BLOCKS, BANKS)
    x = normed(h, tl.load(out_norm + d).to(tl.float32), D)
    for first in range(0, n, TILE):
        c = first + tl.arange(0, TILE)
        weight = tl.load(w + c[:, None] * D + d[None, :], mask=c[:, None] < n, other=0.0).to(tl.float32)
        tl.store(out + row * n + c, tl.sum(weight * x[None, :], 1).to(tl.bfloat16), mask=c < n)


def launch(ctx, buffers, axes, config):
    banks = buffers.blocks if axes["blocks"] else buffers.projected
    fused[(axes["rows"],)](
        buffers.stream, buffers.res_norm, buffers.res_proj, buffers.out_norm, banks, buffers.in_proj, buffers.projected,
        buffers.stream.stride(0), banks.stride(0), banks.stride(1), axes["n"], D=128, TILE=128, BLOCKS=axes["blocks"],
        BANKS=4,
    )
'''


FUSED_ROUTING = '''
import triton
import triton.language as tl


@triton.jit
def tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def product(weight, x, ROWS: tl.constexpr, D: tl.constexpr):
    n = tl.arange(0, ROWS)
    d = tl.arange(0, D)
    return tl.sum(tl.load(weight + n[:, None] * D + d[None, :]).to(tl.float32) * x[None, :], 1)


@triton.jit
def fused(
    router, latent_down, shared_gate_up, bias, x, latent, shared, ids, weights, x_stride,
    D: tl.constexpr, E: tl.constexpr, L: tl.constexpr, S: tl.constexpr, K: tl.constexpr,
):
    row = tl.program_id(0)
    own = tl.load(x + row * x_stride + tl.arange(0, D)).to(tl.float32)
    tl.store(latent + row * L + tl.arange(0, L), product(latent_down, own, L, D).to(tl.bfloat16))
    s = tl.arange(0, S)
    gate = product(shared_gate_up, own, S, D)
    up = product(shared_gate_up + S * D, own, S, D)
    tl.store(shared + row * S + s, (4.0 * tanh(gate / 4.0) * tl.sigmoid(gate) * 25.0 * tanh(up / 25.0)).to(tl.bfloat16))
    e = tl.arange(0, E)
    logits = product(router, own, E, D)
    scores = tl.sigmoid(logits)
    sums = scores + tl.load(bias + e)
    left = tl.where(sums == sums, sums, float("-inf"))
    taken = e < 0
    k = tl.arange(0, K)
    total = 0.0
    chosen = tl.zeros([K], tl.int32)
    kept = tl.zeros([K], tl.float32)
    for place in tl.static_range(K):
        best = tl.max(tl.where(taken, float("-inf"), left), 0)
        expert = tl.min(tl.where((left == best) & (taken == 0), e, E), 0)
        score = tl.sum(tl.where(e == expert, scores, 0.0), 0)
        taken = taken | (e == expert)
        chosen = tl.where(k == place, expert, chosen)
        kept = tl.where(k == place, score, kept)
        total += score
    tl.store(ids + row * K + k, chosen)
    tl.store(weights + row * K + k, kept / (total + 1e-20))


def launch(ctx, buffers, axes, config):
    fused[(axes["rows"],)](
        buffers.router, buffers.latent_down, buffers.shared_gate_up, buffers.correction_bias, buffers.x, buffers.latent,
        buffers.shared, buffers.ids, buffers.weights, buffers.x.stride(0), D=128, E=32, L=64, S=axes["shared"], K=4,
    )
'''


@pytest.fixture(scope="module")
def judge(tmp_path_factory, kept_sandboxes):
    architecture = Architecture.from_config(NANO)
    # One TP: what is fused is the same at each.
    ops = {name: op_exam.nano(name, tp=(16,)) for name in "+".join((MIX, NORM, ROUTED)).split("+")}
    parts = {name: subgraph(architecture, ops, name) for name in (MIX, NORM, ROUTED)}
    model = SimpleNamespace(model="kimi_k3", op=parts.__getitem__, ops=parts, digest=lambda op: "0" * 64)
    with Judge(model, cache=tmp_path_factory.mktemp("kernels")) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize(("name", "text"), [(MIX, FUSED_MIX), (NORM, FUSED_NORM), (ROUTED, FUSED_ROUTING)])
def test_an_honest_fused_kernel_is_accepted(judge, name, text):
    found = judge.screen(candidate(text, name))
    assert found.status is Status.ACCEPTED, (found.reason, found.message)
    assert found.op == name and all(result.launches == 1 for result in found.workloads)


FAULTS = {
    "the mix never sees the new stream": (
        MIX, FUSED_MIX, ("seen = total", "seen = total * 0.0"),
        "attn_res_norm: the stream itself is left out of the mix",
    ),
    "the weight of the norm inside is left out": (
        NORM, FUSED_NORM, ("tl.load(out_norm + d).to(tl.float32), D)", "key * 0.0 + 1.0, D)"),
        "attn_res_norm: the norm's weight is left out",
    ),
    "equal scores go to the higher expert": (
        ROUTED, FUSED_ROUTING,
        ("expert = tl.min(tl.where((left == best) & (taken == 0), e, E), 0)",
         "expert = tl.max(tl.where((left == best) & (taken == 0), e, -1), 0)"),
        "routing: equal scores go to the higher expert",
    ),
    "router logits pass through bfloat16": (
        ROUTED, FUSED_ROUTING, ("logits = product(router, own, E, D)",
                                "logits = product(router, own, E, D).to(tl.bfloat16).to(tl.float32)"),
        "front: router logits are rounded to bfloat16",
    ),
    "biases are left out of the choice": (
        ROUTED, FUSED_ROUTING, ("sums = scores + tl.load(bias + e)", "sums = scores + 0.0 * tl.load(bias + e)"),
        "routing: the bias is left out of the selection",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_kernel_that_skips_what_is_inside_is_rejected(judge, name, monkeypatch):
    """Which tensor, and so which cause, comes first is up to the draw: one of five draws must show this one."""
    skip_compiling(monkeypatch)
    op, text, edit, cause = FAULTS[name]
    messages = []
    for _ in range(5):
        found = judge.screen(candidate(replaced(text, *edit), op))
        assert found.status is Status.REJECTED, found.message
        assert found.reason.startswith("numerics."), (found.reason, found.message)
        messages.append(found.message)
        if f"explained by: {cause}" in found.message:
            return
    raise AssertionError(messages)
