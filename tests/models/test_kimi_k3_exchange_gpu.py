"""Several ranks on one GPU, each with a stream and a mailbox of its own: sums, batches that come and go, lost ranks."""

from pathlib import Path

import fasttrack_models.kimi_k3 as package
import pytest
import torch

RANKS, ROWS, HIDDEN = 4, 4, 7168
pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def ctx():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    from fasttrack_models.kimi_k3 import launcher

    from fasttrack_models.kimi_k3.exchange import exchange, local

    root = Path(package.__file__).parent
    sources = {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*.cu*")}
    made = launcher.ServingContext(launcher.hardware("h200"), sources)
    # Compiles both kernels, for which a rank would have to wait in the middle of its first exchange.
    row = torch.zeros(1, HIDDEN, device="cuda")
    exchange(made, local(1, ROWS, "cuda")[0], row, row.bfloat16(), row.bfloat16())
    torch.cuda.synchronize()
    return made


@pytest.fixture
def ranks():
    from fasttrack_models.kimi_k3.exchange import local

    return local(RANKS, ROWS, "cuda"), [torch.cuda.Stream() for _ in range(RANKS)]


def shares(rows: int, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, HIDDEN, generator=generator).cuda() for _ in range(RANKS)]


def expected(given: list[torch.Tensor], residual: torch.Tensor) -> torch.Tensor:
    """Every share rounded, summed in rank order in float32, the residual added, rounded: on the CPU."""
    total = torch.zeros(given[0].shape)
    for share in given:
        total += share.cpu().bfloat16().float()
    return (total + residual.cpu().float()).bfloat16()


def run(ctx, boxes, streams, given, residual, present=range(RANKS)):
    from fasttrack_models.kimi_k3.exchange import exchange

    outs = [torch.full_like(residual, float("nan")) for _ in boxes]
    torch.cuda.synchronize()
    for rank in present:
        with torch.cuda.stream(streams[rank]):
            exchange(ctx, boxes[rank], given[rank], residual, outs[rank])
    torch.cuda.synchronize()
    return outs


def test_every_rank_holds_the_same_sum_whatever_the_batch(ctx, ranks):
    boxes, streams = ranks
    for number, rows in enumerate((1, 4, 1, 1, 3, 4, 2, 4, 4)):
        given, residual = shares(rows, number), torch.randn(rows, HIDDEN).bfloat16().cuda()
        for out in run(ctx, boxes, streams, given, residual):
            assert torch.equal(out.cpu(), expected(given, residual)), (number, rows)
    assert boxes[0].counts.tolist() == [9, 6, 5, 4]
    for box in boxes:
        box.check()


def test_counts_wrap(ctx, ranks):
    boxes, streams = ranks
    for box in boxes:
        box.counts.fill_(65531)  # both slots are used before a tag is zero, what fresh memory holds
    for number in range(8):
        given, residual = shares(2, number), torch.zeros(2, HIDDEN, dtype=torch.bfloat16).cuda()
        for out in run(ctx, boxes, streams, given, residual):
            assert torch.equal(out.cpu(), expected(given, residual)), number


def test_late_ranks_are_waited_for(ctx, ranks):
    boxes, streams = ranks
    given, residual = shares(2, 5), torch.zeros(2, HIDDEN, dtype=torch.bfloat16).cuda()
    run(ctx, boxes, streams, given, residual)  # compiles
    with torch.cuda.stream(streams[2]):
        torch.cuda._sleep(20_000_000)  # about 10 ms
    for out in run(ctx, boxes, streams, given, residual):
        assert torch.equal(out.cpu(), expected(given, residual))


def test_a_missing_rank_stops_the_others_within_the_bound(ctx, ranks):
    from fasttrack_models.kimi_k3.exchange import Stopped

    boxes, streams = ranks
    given, residual = shares(1, 6), torch.zeros(1, HIDDEN, dtype=torch.bfloat16).cuda()
    run(ctx, boxes, streams, given, residual, present=(0, 1, 3))
    for rank in (0, 1, 3):
        with pytest.raises(Stopped, match="rank 2|gave up"):
            boxes[rank].check()


def test_another_batch_stops_all_and_gives_no_wrong_row(ctx, ranks):
    """Rank 1 replays one row where the others replay two: the row that all have is right, the other is not written."""
    boxes, streams = ranks
    given, residual = shares(2, 7), torch.zeros(2, HIDDEN, dtype=torch.bfloat16).cuda()
    given[1] = given[1][:1].clone()
    outs = run(ctx, boxes, streams, given, residual)
    right = expected([share[:1] for share in given], residual[:1])
    for rank in (0, 2, 3):
        assert torch.equal(outs[rank][:1].cpu(), right) and outs[rank][1].isnan().all()
        assert boxes[rank].health.any()
