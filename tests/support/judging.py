"""Helpers for tests that judge candidates."""

from types import SimpleNamespace

from fasttrack_validation.judge.candidate import Candidate


def candidate(text: str, op: str, config: dict | None = None) -> Candidate:
    """A one-file candidate."""
    return Candidate(op=op, entry="kernel.py", files={"kernel.py": text}, config=config or {})


def replaced(text: str, old: str, new: str) -> str:
    """`text` with exactly one occurrence of `old` replaced: a planted fault that no longer fits its kernel is an error."""
    assert text.count(old) == 1, f"{text.count(old)} occurrences of {old!r}"
    return text.replace(old, new)


def model_of(contract) -> SimpleNamespace:
    """A model contract that holds one op."""
    return SimpleNamespace(
        model=contract.model, op=lambda name: contract, ops={contract.op: contract}, digest=lambda op: "0" * 64
    )
