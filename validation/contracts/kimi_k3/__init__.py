"""Kimi K3: constants, op contracts, and the files that each exam consists of."""

from importlib import import_module
from pathlib import Path

from ... import strict
from ...errors import UserError
from ..base import OpContract
from ..policy import ContractPolicy, Envelope
from .architecture import CONFIG, NANO, Architecture
from .registry import FILES

POLICY = Path(__file__).parent / "contract.toml"


def load(policy_path: Path = POLICY) -> tuple[Architecture, dict[str, Envelope], dict[str, OpContract]]:
    """Architecture, envelopes by hardware, and op contracts by name. Raises UserError for a file that does not fit."""
    policy = strict.read(policy_path, ContractPolicy)
    if set(policy.ops) != set(FILES):
        odd = sorted(set(policy.ops) ^ set(FILES))[0]
        line = strict.line_of(policy_path.read_text("utf-8"), ("ops", odd), suffix=".toml")
        raise UserError(f"{policy_path}:{line}: ops.{odd}: has no counterpart", f"the ops are {', '.join(FILES)}")
    architecture = Architecture.from_config(CONFIG)
    ops = {
        name: import_module(f".{name}", __package__).Contract(architecture, policy.ops[name])
        for name in FILES
    }
    return architecture, policy.envelope, ops


def whole_step() -> OpContract:
    """The contract of a whole decode step, at the nano configuration."""
    return import_module(".decode_step", __package__).Contract(Architecture.from_config(NANO))
