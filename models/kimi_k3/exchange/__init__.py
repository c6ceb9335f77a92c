"""How ranks hand each other rows: mailboxes in each other's memory, and one decision for all of them."""

from .collective import Verdict, agree
from .kernels import Mix, Parcel, exchange, gather, prefetch
from .mailboxes import Mailbox, Stopped, local
from .peers import NoPeerMemory, connect, ipc, symmetric
from .steps import Collectives, Mailboxes, RankedStep

__all__ = [
    "Collectives", "Mailbox", "Mailboxes", "Mix", "NoPeerMemory", "Parcel", "RankedStep", "Stopped", "Verdict", "agree",
    "connect", "exchange", "gather", "ipc", "local", "prefetch", "symmetric",
]  # fmt: skip
