"""What this server is: enough for a client to tell two builds apart, and to tell that two serve the same model."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pydantic import Field

from fasttrack_validation.errors import UserError
from fasttrack_validation.generation.asked import ScoredBy
from fasttrack_validation.generation.paths import Card
from fasttrack_validation.records import Frozen, canonical_json, sha256

from ..git import Repository

_NOT_COMPUTING = {"commit": True, "model": True, "path": {"context"}}


class Build(Frozen):
    """A server's own account of itself."""

    package: str = Field(description="version of fasttrack")
    commit: str | None = Field(description="of the checkout that serves")
    model: str = Field(description="the name that it is served by")
    prompt_scores: ScoredBy = Field(description="what computes the log-probabilities of prompts, unless a request says")
    path: Card

    @property
    def fingerprint(self) -> str:
        """`system_fingerprint`: the same for servers that compute the same, whatever they are called and how long prompts
        may be. Sources are named by their digest alone: a commit may change nothing that computes."""
        computes = self.model_dump(mode="json", exclude=_NOT_COMPUTING)
        return f"fp_{sha256(canonical_json(computes).encode())[:20]}"


def build(model: str, card: Card, prompt_scores: ScoredBy) -> Build:
    """The account of a server that runs from here."""
    try:
        package = version("fasttrack")
    except PackageNotFoundError:  # a checkout on the path, not installed
        package = "0+checkout"
    return Build(package=package, commit=_commit(), model=model, prompt_scores=prompt_scores, path=card)


def _commit() -> str | None:
    """None where the package is not inside a checkout of its own. Changed files show in the digest of sources."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        return Repository.open(root).resolve("HEAD")
    except UserError:
        return None
