"""What of the exchange needs no GPU: its memory, its words' layout against the kernels' text, and the ranks' agreement."""

import re
from pathlib import Path

import fasttrack_models.kimi_k3.exchange as exchange
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from fasttrack_models.kimi_k3.exchange import mailboxes
from fasttrack_validation.contracts.kimi_k3.architecture import Architecture

HEADER = (Path(exchange.__file__).parent / "mailbox.cuh").read_text()


def test_a_row_fills_its_words():
    hidden = Architecture.from_config().hidden_size
    assert hidden == mailboxes.HIDDEN == mailboxes.WORDS * mailboxes.VALUES
    # Seven values of two bytes and a tag of two.
    assert mailboxes.WORD_BYTES == 2 * mailboxes.VALUES + 2
    found = {name: int(value) for name, value in re.findall(r"constexpr int (k\w+) = (\d+);", HEADER)}
    assert found == {"kValues": mailboxes.VALUES, "kWords": mailboxes.WORDS}


def test_simulated_ranks_know_where_every_mailbox_lies():
    ranks = exchange.local(ranks=3, rows=2, device="cpu")
    assert ranks[1].box.numel() * 8 == mailboxes.size_bytes(3, 2) == 2 * 2 * 3 * 1024 * 16
    for one in ranks:
        assert one.boxes.tolist() == [other.box.data_ptr() for other in ranks]
        assert one.healths.tolist() == [other.health.data_ptr() for other in ranks]
        assert not one.box.any() and one.counts.tolist() == [0, 0]
        one.check()


@pytest.mark.parametrize(("health", "words"), [((3, 0), "rank 0 waited for rank 2 in vain"), ((0, 2), "rank 1 gave up")])
def test_a_health_word_stops_the_step(health, words):
    rank = exchange.local(ranks=3, rows=1, device="cpu")[0]
    rank.health.copy_(torch.tensor(health))
    with pytest.raises(exchange.Stopped, match=words):
        rank.check()


def _agree(rank: int, folder: str, reasons: list[list[str]], pipe) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=len(reasons))
    pipe.put((rank, exchange.agree(reasons[rank]).reasons))
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("reasons", "verdict"),
    [([[], []], ()), ([[], ["no peer access to device 0", "cache is fp8"]], ("rank 1: no peer access to device 0", "rank 1: cache is fp8"))],
)  # fmt: skip
def test_all_ranks_come_to_one_verdict(tmp_path, reasons, verdict):
    pipe = mp.get_context("spawn").Queue()
    mp.start_processes(_agree, (str(tmp_path), reasons, pipe), nprocs=len(reasons), start_method="spawn")
    assert sorted(pipe.get(timeout=60) for _ in reasons) == [(rank, verdict) for rank in range(len(reasons))]
