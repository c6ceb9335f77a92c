"""Which options say something to which form of `fasttrack validate`: one that was given and says nothing is refused."""

from collections.abc import Collection
from enum import StrEnum

from fasttrack_validation.errors import UserError


class Form(StrEnum):
    """What a command line asks for, as a person would call it."""

    LADDER = "the ladder in process"
    LADDER_AGAIN = "a verdict from kept records"
    FAULTS = "planted faults"
    SERVERS = "two servers, token by token"
    SERVERS_AGAIN = "a verdict from kept answers"
    ACCURACY = "stage accuracy"


_KEPT = frozenset({"out", "as_json"})
_DRAWN = _KEPT | {"checkpoint", "tokens", "rung", "replicas", "steps", "context", "seed", "fresh"}
USED = {
    Form.LADDER: _DRAWN | {"candidate", "tp", "device", "layers", "jobs", "plot"},
    Form.LADDER_AGAIN: _KEPT | {"recompute", "plot", "candidate", "layers"},
    Form.FAULTS: _DRAWN | {"faults"},
    Form.SERVERS: _KEPT | {
        "stock_url", "candidate_url", "oracle_url", "control_url", "declare", "tokens", "top", "piece", "replicas", "fresh"
    },
    Form.SERVERS_AGAIN: _KEPT | {"recompute", "stock_url", "candidate_url"},
    Form.ACCURACY: _KEPT | {
        "plan", "exams", "stock_url", "candidate_url", "stock_model", "candidate_model", "workers", "silence", "price"
    },
}  # fmt: skip
"""Form -> the options that decide something there. Some only say where what is kept lies, if --out does not"""


def check(form: Form, given: Collection[str]) -> None:
    """UserError for the first of the options `given` on the command line that `form` would pass over."""
    odd = sorted(set(given) - USED[form])
    if odd:
        flag = f"--{'json' if odd[0] == 'as_json' else odd[0].replace('_', '-')}"
        raise UserError(f"{flag} says nothing about {form}", "leave it out; `fasttrack validate --help` tells what each option is for")
