"""Mailboxes of ranks in processes of their own: memory that all of them map, and who decides which kind.

symmetric   torch symmetric memory, one GPU a rank. No multicast address is asked for or used.
ipc         CUDA IPC: every rank opens its peers' allocations. Ranks may share GPUs.

Peers' memory is reached by plain stores and loads either way, over NVLink or within the GPU.
"""

import socket
import weakref
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist

from .collective import agree
from .mailboxes import Mailbox, mailbox, words_of


class NoPeerMemory(RuntimeError):
    """The ranks have no memory that all of them can map; the text has every rank's reasons."""


def symmetric(rows: int, group: dist.ProcessGroup) -> Mailbox:
    """This rank's mailbox in torch symmetric memory. A collective of `group`; RuntimeError where memory cannot be mapped."""
    import torch.distributed._symmetric_memory as symm_mem

    device = torch.device("cuda", torch.cuda.current_device())
    memory = symm_mem.empty(words_of(group.size(), rows), dtype=torch.int64, device=device)
    memory.zero_()
    torch.cuda.synchronize()
    handle = symm_mem.rendezvous(memory, group)
    rank, starts = handle.rank, [int(address) for address in handle.buffer_ptrs]
    offset = memory.data_ptr() - starts[rank]
    made = mailbox(rank, rows, memory, [start + offset for start in starts], (memory, handle))
    dist.barrier(group)  # every mailbox is empty before anybody stores into one
    return made


def ipc(rows: int, group: dist.ProcessGroup) -> Mailbox:
    """This rank's mailbox in an allocation that its peers open. A collective of `group`, which needs gloo.

    RuntimeError where a peer's allocation cannot be opened.
    """
    from cuda.bindings import driver

    from .cuda_ipc import export, opened

    rank, ranks = group.rank(), group.size()
    memory = torch.zeros(words_of(ranks, rows), dtype=torch.int64, device=torch.cuda.current_device())
    torch.cuda.synchronize()
    found: list = [None] * ranks
    dist.all_gather_object(found, export(memory), group=group)
    mapped = {peer: opened(*handle) for peer, handle in enumerate(found) if peer != rank}
    starts = [memory.data_ptr() if peer == rank else mapped[peer].start for peer in range(ranks)]
    owner = _Held(memory, tuple(mapped.values()))
    for one in mapped.values():
        weakref.finalize(owner, driver.cuIpcCloseMemHandle, one.base).atexit = False
    made = mailbox(rank, rows, memory, starts, owner)
    dist.barrier(group)
    return made


class _Held:
    """Keeps memory, and closes peers' with itself."""

    def __init__(self, *held: object) -> None:
        self.held = held


KINDS: Mapping[str, Callable[[int, dist.ProcessGroup], Mailbox]] = {"symmetric": symmetric, "ipc": ipc}


def connect(rows: int, group: dist.ProcessGroup, kinds: tuple[str, ...] = tuple(KINDS)) -> tuple[str, Mailbox]:
    """The first of `kinds` that all ranks can take, and this rank's mailbox of it. A collective; `group` needs gloo.

    Raises NoPeerMemory, on every rank, where there is none.
    """
    here = (socket.gethostname(), torch.cuda.current_device(), _identity())
    found: list = [None] * group.size()
    dist.all_gather_object(found, here, group=group)
    objections: list[str] = []
    for kind in kinds:
        verdict = agree(reasons_against(kind, here, found), group)
        if not verdict.agreed:
            objections += [f"{kind}: {reason}" for reason in verdict.reasons]
            continue
        made, why = None, []
        try:
            made = KINDS[kind](rows, group)
        except RuntimeError as error:
            why = [str(error)]
        verdict = agree(why, group)
        if verdict.agreed:
            return kind, made
        objections += [f"{kind}: {reason}" for reason in verdict.reasons]
    raise NoPeerMemory("ranks cannot reach each other's memory:\n" + "\n".join(f"- {one}" for one in objections))


def reasons_against(kind: str, here: tuple[str, int, str], ranks: list[tuple[str, int, str]]) -> tuple[str, ...]:
    """What speaks against `kind` for the rank `here`, one of `ranks`; each is (host, device, the GPU's identity)."""
    host, device, gpu = here
    found = [f"rank {rank} is on host {other}, this one on {host}" for rank, (other, _, _) in enumerate(ranks) if other != host]
    if kind == "symmetric" and [identity for _, _, identity in ranks].count(gpu) > 1:
        found.append(f"several ranks share GPU {gpu}")
    for rank, (other, number, identity) in enumerate(ranks):
        if other == host and identity != gpu and number != device and not torch.cuda.can_device_access_peer(device, number):
            found.append(f"GPU {device} has no peer access to GPU {number} of rank {rank}")
    return tuple(found)


def _identity() -> str:
    return str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
