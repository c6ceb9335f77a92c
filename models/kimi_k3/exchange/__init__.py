"""How ranks hand each other rows: mailboxes in each other's memory, and one decision for all of them."""

from .collective import Verdict, agree
from .kernels import exchange
from .mailboxes import Mailbox, Stopped, local, symmetric

__all__ = ["Mailbox", "Stopped", "Verdict", "agree", "exchange", "local", "symmetric"]
