"""Several ranks on one GPU, each with a stream and a mailbox of its own: sums, batches that come and go, lost ranks. And
ranks in processes of their own, on one GPU and on several, as the benchmark runs them."""

import json
import subprocess
import sys
from pathlib import Path

import fasttrack_models.kimi_k3 as package
import pytest
import torch

RANKS, ROWS, HIDDEN = 4, 4, 7168
PATIENCE = 500_000_000
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "exchange"
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
    # Compiles the kernel, for which a rank would have to wait in the middle of its first exchange.
    row = torch.zeros(1, HIDDEN, device="cuda").bfloat16()
    exchange(made, local(1, ROWS, "cuda")[0], row, row, torch.empty_like(row), patience_ns=PATIENCE)
    torch.cuda.synchronize()
    return made


@pytest.fixture
def ranks():
    from fasttrack_models.kimi_k3.exchange import local

    return local(RANKS, ROWS, "cuda"), [torch.cuda.Stream() for _ in range(RANKS)]


def shares(rows: int, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, HIDDEN, generator=generator).bfloat16().cuda() for _ in range(RANKS)]


def expected(given: list[torch.Tensor], residual: torch.Tensor) -> torch.Tensor:
    """Every share summed in rank order in float32, the residual added, rounded: on the CPU."""
    total = torch.zeros(given[0].shape)
    for share in given:
        total += share.cpu().float()
    return (total + residual.cpu().float()).bfloat16()


def run(ctx, boxes, streams, given, residual, present=range(RANKS)):
    from fasttrack_models.kimi_k3.exchange import exchange

    outs = [torch.full_like(residual, float("nan")) for _ in boxes]
    torch.cuda.synchronize()
    for rank in present:
        with torch.cuda.stream(streams[rank]):
            exchange(ctx, boxes[rank], given[rank], residual, outs[rank], patience_ns=PATIENCE)
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


def ran(tmp_path, *arguments: str) -> list[dict]:
    """The parts of a run of the benchmark."""
    done = subprocess.run(
        [sys.executable, BENCHMARK, "--out", tmp_path, *arguments], capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads((tmp_path / "exchange.json").read_text())["parts"]


def check(parts: list[dict]) -> None:
    for part in parts:
        if part["part"] == "fault":
            assert part["as expected"], part
        else:
            lines = [line for rank in part["ranks"] for line in rank["found"]]
            assert [rank["ended"] for rank in part["ranks"]] == [0] * len(part["ranks"]), part
            assert lines and all(line.get("right", True) for line in lines), part


def test_processes_that_share_a_gpu_exchange_and_stop_together(tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    parts = ran(tmp_path, "--parts", "alone", "faults", "--devices", "0", "0")
    assert {part.get("scenario") for part in parts} >= {"killed", "stalled", "other batch"}
    check(parts)


def test_gpus_exchange_and_stop_together(tmp_path):
    """The same between GPUs, and whole steps of a small model of true widths against the oracle."""
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs two CUDA GPUs, this machine has {torch.cuda.device_count()}")
    parts = ran(tmp_path, "--parts", "alone", "faults", "model", "--devices", "0", "1")
    assert {part.get("memory") for part in parts} >= {"symmetric", "ipc"}
    check(parts)
