"""What of the exchange needs no GPU: its memory, its words' layout against the kernels' text, what a step sends and where
to, and the ranks' agreement."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import decoded
import fasttrack_models.kimi_k3.exchange as exchange
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from fasttrack_models.kimi_k3 import decode
from fasttrack_models.kimi_k3.exchange import kernels, mailboxes, peers
from fasttrack_validation.contracts.kimi_k3.architecture import Architecture
from long_tests import long

FOLDER = Path(exchange.__file__).parent
HEADER = (FOLDER / "mailbox.cuh").read_text()
SUPPORT = Path(__file__).parents[1] / "support"


def test_a_row_fills_its_words():
    hidden = Architecture.from_config().hidden_size
    assert hidden == mailboxes.HIDDEN == mailboxes.WORDS * mailboxes.VALUES
    # Seven values of two bytes and a tag of two.
    assert mailboxes.WORD_BYTES == 2 * mailboxes.VALUES + 2
    found = {name: int(value) for name, value in re.findall(r"constexpr int (k\w+) = (\d+);", HEADER)}
    assert found == {"kValues": mailboxes.VALUES, "kWords": mailboxes.WORDS}


def test_a_cluster_has_a_thread_for_every_word_of_a_row():
    text = (FOLDER / "cluster.cuh").read_text()
    found = {name: int(value) for name, value in re.findall(r"constexpr int (kBlocks|kThreads) = (\d+);", text)}
    assert found == {"kBlocks": kernels.CLUSTER, "kThreads": kernels.THREADS}
    assert kernels.CLUSTER * kernels.THREADS == mailboxes.WORDS


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


class Recorded:
    """A `ctx` that keeps what kernels are launched with."""

    def __init__(self):
        self.launches = []

    def scalar(self, type, value):
        return value

    def wait(self, name):
        self.launches.append(("wait", name))

    def cuda(self, file, kernel, **options):
        def grid(sizes):
            return lambda *arguments: self.launches.append((kernel, sizes, arguments, options["constants"]))

        return type("Kernel", (), {"__getitem__": lambda self, sizes: grid(sizes)})()


def values(argument, place: int, count: int) -> torch.Tensor:
    """`count` 16-bit values from an address on, `place` values behind a tensor's start."""
    whole = argument.view(torch.int16) if argument.element_size() == 2 else argument.view(torch.int32).view(torch.int16)
    flat = torch.empty(0, dtype=torch.int16).set_(argument.untyped_storage(), 0, (argument.untyped_storage().nbytes() // 2,), (1,))
    start = argument.storage_offset() * argument.element_size() // 2 + place
    assert whole.dtype == torch.int16
    return flat[start : start + count]


def carry(parcels: list[tuple], ranks: int, rows: int) -> None:
    """What the kernel does with one parcel of every rank."""
    for source, (sent, _, width, row_stride, peer_stride, *_, keeps) in enumerate(parcels):
        for peer in range(ranks):
            if peer == source and not keeps:
                continue
            _, received, _, _, _, to_row, to_rank, _ = parcels[peer]
            for row in range(rows):
                values(received, row * to_row + source * to_rank, width).copy_(
                    values(sent, row * row_stride + peer * peer_stride, width)
                )


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_expert_sums_go_to_the_ranks_that_need_them(ranks):
    rows, columns = 3, mailboxes.HIDDEN // ranks
    boxes = exchange.local(ranks, rows, "cpu")
    routed = [torch.zeros(ranks, rows, 3584, dtype=torch.bfloat16) for _ in range(ranks)]
    partial = [torch.zeros(ranks, rows, mailboxes.HIDDEN, dtype=torch.bfloat16) for _ in range(ranks)]
    generator, contexts = torch.Generator().manual_seed(0), []
    for rank in range(ranks):
        for whole in (routed, partial):
            whole[rank][rank] = torch.randn(whole[rank][rank].shape, generator=generator)
        contexts.append(Recorded())
        exchange.Mailboxes(contexts[-1], boxes[rank]).shared(routed[rank], partial[rank], columns)()
    ((kernel, grid, _, _),) = contexts[0].launches
    assert (kernel, grid) == ("gather", (8, rows))
    for half in (slice(0, 8), slice(8, 16)):
        carry([ctx.launches[0][2][half] for ctx in contexts], ranks, rows)
    for rank in range(ranks):
        mine = slice(rank * columns, (rank + 1) * columns)
        for other in range(ranks):
            assert torch.equal(routed[rank][other], routed[other][other])
            assert torch.equal(partial[rank][other][:, mine], partial[other][other][:, mine])
            if other != rank:
                beside = torch.cat([partial[rank][other][:, : mine.start], partial[rank][other][:, mine.stop :]], 1)
                assert not beside.any()


def test_float32_goes_as_pairs_of_values():
    parcel = exchange.Parcel(torch.zeros(2, 3, 448), torch.zeros(2, 3, 448), keeps=True)
    assert parcel.words == 448 * 2 // 7
    assert parcel.arguments()[2:] == (896, 896, 3 * 896, 896, 3 * 896, 1)


def test_what_fits_no_row_is_refused():
    box, ctx = exchange.local(2, 1, "cpu")[0], Recorded()
    wide = exchange.Parcel(*(torch.zeros(2, 1, 7168, dtype=torch.bfloat16) for _ in range(2)), keeps=False)
    with pytest.raises(ValueError, match="2048 words a row and rank; a mailbox has 1024"):
        exchange.gather(ctx, box, wide, wide)
    row, norm = torch.zeros(1, 7168, dtype=torch.bfloat16), torch.zeros(7168, dtype=torch.bfloat16)
    banks = torch.zeros(9, 1, 7168, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="9 banked streams; the kernel mixes 8"):
        exchange.exchange(ctx, box, row, None, row, mix=exchange.Mix(banks, norm, norm, norm, row))
    assert not ctx.launches


ALONE = ("a", 0, "gpu-0")


@pytest.mark.parametrize(
    ("kind", "ranks", "access", "reasons"),
    [
        ("symmetric", [ALONE, ("a", 1, "gpu-1")], True, ()),
        ("symmetric", [ALONE, ALONE], True, ("several ranks share GPU gpu-0",)),
        ("ipc", [ALONE, ALONE], False, ()),
        ("ipc", [ALONE, ("a", 1, "gpu-1")], False, ("GPU 0 has no peer access to GPU 1 of rank 1",)),
        ("ipc", [ALONE, ("b", 1, "gpu-1")], True, ("rank 1 is on host b, this one on a",)),
    ],
)  # fmt: skip
def test_what_speaks_against_a_kind_of_memory(monkeypatch, kind, ranks, access, reasons):
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: access)
    assert peers.reasons_against(kind, ALONE, ranks) == reasons


class Noted:
    """A transport that says what it was bound to."""

    def __init__(self, fuses):
        self.fuses, self.bound = fuses, []

    def summed(self, partial, residual, stream, mix):
        return self._launch("summed", residual is not None, stream, mix)

    def columns(self, parts):
        for own, whole in parts:
            assert whole.shape[1] == 2 * own.shape[1] and whole.dtype == own.dtype
        return self._launch("columns", False, parts[0][1], None)

    def shared(self, routed, partial, columns):
        return self._launch("shared", False, routed, None)

    def whole(self, own, stream, mix):
        return self._launch("whole", False, stream, mix)

    def _launch(self, *what):
        self.bound.append(what)
        return lambda: None


@pytest.fixture(scope="module")
def ranked():
    of = decoded.tiny(narrower=4)
    decoded.resize(of)
    run = decoded.Run(of, 2, 2)
    made = decode.Decoder(
        run.weights[0], decoded.here(of, 2), decoded.directory(of), Recorded(), shape=decoded.small_shape(of), buckets=(4,),
        device="cpu",
    )  # fmt: skip
    made.bind(run.caches(0), 6)
    yield of, made
    decoded.resize(Architecture.from_config())


def test_every_value_that_ranks_wait_for_is_exchanged_once(ranked):
    of, made = ranked
    noted = Noted(fuses=True)
    step = exchange.RankedStep(made.executors[4], made.lane(4), noted)
    # A dense layer exchanges two sums; the others one sum, logits and latents, the experts' and the stream.
    assert step.exchanges == 2 + 4 * (of.layers - 1) == len(noted.bound)
    each = ["summed", "columns", "shared", "whole"]
    assert [what for what, *_ in noted.bound] == ["summed", "summed", *each * (of.layers - 1)]
    # Every mix but the first follows an exchange, and is left to it.
    mixes = [bound for bound in made.executors[4].bound if bound.call.op == "attn_res_norm"]
    assert sum(mix is not None for *_, mix in noted.bound) == len(mixes) - 1 == 2 * of.layers
    assert len(step.launches) == len(made.executors[4].bound) - (len(mixes) - 1) + step.exchanges
    # Layers 0, 2 and 4 begin a block: their attention restarts the stream. The dense MLP's sum comes second.
    assert [residual for what, residual, *_ in noted.bound if what == "summed"] == [False, True, True, False, True, False]


def test_a_transport_that_does_not_fuse_leaves_the_mixes_alone(ranked):
    _, made = ranked
    step = exchange.RankedStep(made.executors[4], made.lane(4), Noted(fuses=False))
    assert len(step.launches) == len(made.executors[4].bound) + step.exchanges


@long
@pytest.mark.slow
def test_ranks_of_two_processes_decode_as_near_to_the_oracle_as_the_plain_path(tmp_path):
    """By gloo in place of mailboxes: what is sent, when, and where it lands."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path]), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, SUPPORT / "interpreted_ranks.py", str(rank), str(tmp_path)], env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]  # fmt: skip
    for rank in ranks:
        out, err = rank.communicate(timeout=900)
        assert rank.returncode == 0, err[-3000:]
        found = json.loads(out.splitlines()[-1])
        assert found["exchanges"] == 18
        for own, plain in found["errors"]:
            assert own <= max(2 * plain, 0.02)
