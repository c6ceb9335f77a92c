"""The exchange's kernels on the CPU, all ranks as fibers: sums, mixes, columns and parcels beside what torch makes of them."""

import shutil
from pathlib import Path

import exchange_on_cpu
import fasttrack_models.kimi_k3 as package
import pytest
import torch
from fasttrack_models.kimi_k3.exchange import Mix, Parcel, Stopped, exchange, gather, local
from fasttrack_validation.contracts.kimi_k3.layer_weights import MixWeights
from fasttrack_validation.contracts.kimi_k3.step.attn_res import mix_norm
from fasttrack_validation.contracts.kimi_k3.step.precision import EXACT

HIDDEN, PATIENCE = 7168, 200
ROOT = Path(package.__file__).parent
SOURCES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in ROOT.rglob("*.cu*")}
pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")


@pytest.fixture(scope="module")
def ctx(tmp_path_factory):
    return exchange_on_cpu.Context(SOURCES, tmp_path_factory.mktemp("kernels"))


def random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def nothing(*shape: int) -> torch.Tensor:
    return torch.full(shape, float("nan"), dtype=torch.bfloat16)


def summed(shares, residual):
    total = torch.zeros(residual.shape)
    for share in shares:
        total += share.float()
    return (total + residual.float()).bfloat16()


def run(ctx, boxes, shares, residual, *, mixes=None, backwards=False):
    """Every rank's stream after one exchange."""
    outs = [nothing(len(share), HIDDEN) for share in shares]
    for rank, (box, share, out) in enumerate(zip(boxes, shares, outs, strict=True)):
        mix = mixes[rank] if mixes else None
        given = None if residual is None else residual[: len(share)]
        exchange(ctx, box, share, given, out, mix=mix, patience_ns=PATIENCE)
    ctx.run(backwards=backwards)
    return outs


@pytest.mark.parametrize("backwards", [False, True])
def test_every_rank_holds_the_same_sum_whatever_the_batch(ctx, backwards):
    boxes = local(2, 2, "cpu")
    for box in boxes:
        box.counts.fill_(65533)  # the first row's tags pass zero, what fresh memory holds
    for number, rows in enumerate((1, 2, 1, 2)):
        shares, residual = [random(10 * number + rank, rows, HIDDEN) for rank in range(2)], random(99, rows, HIDDEN)
        for out in run(ctx, boxes, shares, residual, backwards=backwards):
            assert torch.equal(out, summed(shares, residual)), number
    for box in boxes:
        assert box.counts.tolist() == [65537, 65535]
        box.check()


def test_three_ranks_are_added_in_rank_order(ctx):
    # What is small is kept if it comes last.
    values = (256.0, -256.0, 2.0**-16)
    shares = [torch.full((1, HIDDEN), value).bfloat16() for value in values]
    for out in run(ctx, local(3, 1, "cpu"), shares, torch.zeros(1, HIDDEN).bfloat16()):
        assert torch.equal(out, torch.full((1, HIDDEN), 2.0**-16).bfloat16())


@pytest.mark.parametrize("banks", [0, 3, 8])
def test_the_mix_behind_a_sum(ctx, banks):
    rows, boxes = 1, local(2, 1, "cpu")
    shares, residual = [random(rank, rows, HIDDEN) for rank in range(2)], random(5, rows, HIDDEN)
    norms, banked = [random(6 + n, HIDDEN) for n in range(3)], random(20, banks, rows, HIDDEN)
    normed = [nothing(rows, HIDDEN) for _ in range(2)]
    outs = run(ctx, boxes, shares, residual, mixes=[Mix(banked if banks else None, *norms, x) for x in normed])
    stream = summed(shares, residual)
    exact = mix_norm([*banked.double(), stream.double()], MixWeights(*norms), 1e-5, EXACT)
    for out, x in zip(outs, normed, strict=True):
        assert torch.equal(out, stream)
        assert ((x.double() - exact).norm() / exact.norm()).item() < 3e-3
    assert torch.equal(*normed)


def test_columns_of_all_ranks_become_a_stream(ctx):
    whole = random(1, 2, HIDDEN)
    outs = run(ctx, local(2, 2, "cpu"), [half.contiguous() for half in whole.chunk(2, 1)], None)
    assert all(torch.equal(out, whole) for out in outs)


def test_parcels_reach_whom_they_are_for(ctx):
    ranks, rows, boxes = 2, 1, local(2, 1, "cpu")
    latents = [random(rank, rows, 3584) for rank in range(ranks)]
    theirs = [random(10 + rank, ranks, rows, 3584) for rank in range(ranks)]
    got = [(nothing(ranks, rows, 3584), nothing(ranks, rows, 3584)) for _ in range(ranks)]
    for box, latent, sent, (first, second) in zip(boxes, latents, theirs, got, strict=True):
        gather(ctx, box, Parcel(latent.expand_as(first), first, True), Parcel(sent, second, False), patience_ns=PATIENCE)
    ctx.run()
    for rank, (first, second) in enumerate(got):
        assert torch.equal(first, torch.stack(latents))
        assert torch.equal(second[1 - rank], theirs[1 - rank][rank]) and second[rank].isnan().all()


def test_another_batch_stops_all_and_gives_no_wrong_row(ctx):
    boxes = local(3, 2, "cpu")
    shares, residual = [random(rank, 2, HIDDEN) for rank in range(3)], random(9, 2, HIDDEN)
    outs = [nothing(2, HIDDEN) for _ in range(3)]
    # Rank 1 brings a row where the others bring two: its second row's blocks find nobody to run for.
    for rank, box in enumerate(boxes):
        if rank != 1:
            exchange(ctx, box, shares[rank], residual, outs[rank], patience_ns=PATIENCE)
    ctx.run()
    for rank in (0, 2):
        assert outs[rank].isnan().all()
        with pytest.raises(Stopped, match="rank 1 in vain|gave up"):
            boxes[rank].check()
    with pytest.raises(Stopped, match="gave up an exchange"):
        boxes[1].check()


FAULTS = {
    "the count stands still": ("counts[row] = count + 1;", ";"),
    "no tag is looked at": ("if (found.tag() == tag(count)) {", "if (true) {"),
    "a peer is left out": ("for (int step = 1; step < ranks_; ++step)", "for (int step = 2; step < ranks_; ++step)"),
    "the last value of a word is lost": ("for (int i = 0; i < kValues; ++i) to[i] = stream[i];", "for (int i = 0; i < 6; ++i) to[i] = stream[i];"),
}  # fmt: skip


def behaves(ctx) -> bool:
    """One exchange of two ranks is right, and in the next one, to which rank 1 does not come, rank 0 takes nothing."""
    boxes = local(2, 1, "cpu")
    shares, residual = [random(rank, 1, HIDDEN) for rank in range(2)], random(99, 1, HIDDEN)
    right = all(torch.equal(out, summed(shares, residual)) for out in run(ctx, boxes, shares, residual))
    (alone,) = run(ctx, boxes[:1], shares[:1], residual)
    return right and bool(alone.isnan().all()) and boxes[0].health.tolist() == [2, 0]


def test_without_a_fault_nothing_shows(ctx):
    assert behaves(ctx)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_kernel_shows(tmp_path, fault):
    right, wrong = FAULTS[fault]

    def spoiled(text: str) -> str:
        assert right in text
        return text.replace(right, wrong)

    assert not behaves(exchange_on_cpu.Context(SOURCES, tmp_path, spoiled))
