"""Which agent writes the candidates, and why."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fasttrack_validation.errors import UserError
from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.records import canonical_json

from ..dispatch import Config
from . import floor
from .protocol import Proposal, Proposer
from .scripted import Scripted, read_transcript
from .search import Search

if TYPE_CHECKING:
    from fasttrack_validation.contracts.base import OpContract

    from ..model_dir import ModelDirectory

AGENTS = ("auto", "search", "replay")


def choose(agent: str, transcript: Path | None) -> tuple[str, str]:
    """The agent that `agent` stands for, and why. Raises UserError for an unknown one or a missing transcript."""
    if agent not in AGENTS:
        raise UserError(f"no agent {agent!r}", f"agents: {', '.join(AGENTS)}")
    if (agent == "replay") != (transcript is not None):
        raise UserError("agent replay and --transcript belong together", "give both, or neither")
    if agent == "auto":
        return "search", "the default agent; it needs no model endpoint"
    return agent, "asked for with --agent"


def scripted_proposals(
    directory: "ModelDirectory", op: str, *, transcript: Path | None, submitted: Candidate | None,
    packed: Sequence[Candidate],
) -> list[Proposal] | None:  # fmt: skip
    """The proposals of a scripted agent, under the names that they will have in the tree; None for a search.

    A submitted candidate is tried with the configurations of the dispatch table as well. What was recorded before is
    taken as it was recorded; raises UserError where it has other names than the tree's, or where the table names a
    configuration that was not recorded with the first one's sources: it may have to stand in the table again.
    """
    if transcript is not None:
        found = read_transcript(transcript, op)
        return [Proposal(directory.place(proposal.candidate), proposal.note) for proposal in found]
    if packed:
        return _packed(directory, op, packed)
    if submitted is None:
        return None
    space = directory.space(op)
    default = space.default if space else {}
    first = directory.place(submitted.model_copy(update={"config": submitted.config or default}))
    proposals = [Proposal(first, "submitted")]
    for config in _configs(directory, op):
        candidate = first.model_copy(update={"config": config})
        if candidate not in [proposal.candidate for proposal in proposals]:
            proposals.append(Proposal(candidate, "the submitted sources with a configuration of the dispatch table"))
    return proposals


def _packed(directory: "ModelDirectory", op: str, packed: Sequence[Candidate]) -> list[Proposal]:
    first = packed[0]
    if first != directory.place(first):
        raise UserError(f"the files of {first.digest()[:12]} have other names than in the tree", "record the kernel file alone")
    recorded = [one.config for one in packed if (one.files, one.entry) == (first.files, first.entry)]
    if lacking := [config for config in _configs(directory, op) if config not in recorded]:
        raise UserError(
            f"{len(lacking)} configurations of the dispatch table are not recorded with these sources",
            "record them as well: " + "; ".join(f"--config '{canonical_json(config)}'" for config in lacking),
        )
    return [Proposal(one, "submitted") for one in packed]


def proposer(
    name: str, directory: "ModelDirectory", contract: "OpContract", hardware: Sequence[str], seed: int,
    scripted: Sequence[Proposal] | None,
) -> Proposer:  # fmt: skip
    """The proposer called `name` for the op of `contract`. Raises UserError when the op has no design space."""
    if scripted is not None:
        return Scripted(name, scripted)
    op = contract.op
    space = directory.space(op)
    if space is None:
        raise UserError(
            f"op {op!r} of {directory.manifest.model.name} declares no design space to search",
            f"add one under ops.{op}.space in fasttrack.toml, or submit a candidate with `fasttrack submit`",
        )
    starts = [(config, "a configuration of the dispatch table") for config in _configs(directory, op)]
    starts.append((space.default, "the default of the design space"))
    sizes = {w.name: contract.cost(w).bytes_read for w in contract.workloads()}
    workload_bytes = {
        name: [sizes[bucket.workload] for bucket in directory.buckets(contract) if bucket.hardware == name]
        for name in hardware
        if name in floor.CARDS
    }
    for config in floor.seeds(space, workload_bytes):
        starts.append((config, "bytes in flight cover latency x bandwidth"))
    return Search(space, lambda config: directory.candidate(op, config), starts, seed)


def _configs(directory: "ModelDirectory", op: str) -> list[Config]:
    result: list[Config] = []
    for entry in directory.table(op).entry:
        if entry.config not in result:
            result.append(entry.config)
    return result
