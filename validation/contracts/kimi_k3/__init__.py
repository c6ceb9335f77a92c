"""Kimi K3: constants, op contracts, and the files that each exam consists of."""

from pathlib import Path

from ... import strict
from ...errors import UserError
from ..base import OpContract
from ..policy import ContractPolicy, Envelope
from .architecture import CONFIG, Architecture
from .kda_decode import KdaDecode

POLICY = Path(__file__).parent / "contract.toml"

_OPS: dict[str, type[OpContract]] = {"kda_decode": KdaDecode}

_SHARED = ("__init__.py", "architecture.py", "config.json", "contract.toml")

# Op -> the files of this directory that decide its verdicts.
FILES: dict[str, tuple[str, ...]] = {
    "kda_decode": (
        *_SHARED,
        "kda_decode/__init__.py",
        "kda_decode/contract.py",
        "kda_decode/hypotheses.py",
        "kda_decode/inputs.py",
        "kda_decode/layout.py",
        "kda_decode/oracle.py",
        "kda_decode/plain.py",
        "kda_decode/stock.py",
        "kda_decode/stock_conv.py",
    ),
}


def load(policy_path: Path = POLICY) -> tuple[Architecture, dict[str, Envelope], dict[str, OpContract]]:
    """Architecture, envelopes by hardware, and op contracts by name. Raises UserError for a file that does not fit."""
    policy = strict.read(policy_path, ContractPolicy)
    if set(policy.ops) != set(_OPS):
        odd = sorted(set(policy.ops) ^ set(_OPS))[0]
        line = strict.line_of(policy_path.read_text("utf-8"), ("ops", odd), suffix=".toml")
        raise UserError(f"{policy_path}:{line}: ops.{odd}: has no counterpart", f"the ops are {', '.join(_OPS)}")
    architecture = Architecture.from_config(CONFIG)
    ops = {name: _OPS[name](architecture, op_policy) for name, op_policy in policy.ops.items()}
    return architecture, policy.envelope, ops
