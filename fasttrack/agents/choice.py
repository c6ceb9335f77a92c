"""Which agent writes the candidates, and why."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fasttrack_validation.errors import UserError
from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.records import canonical_json

from ..dispatch import Config
from . import floor
from . import settings as chat_settings
from .protocol import Proposal, Proposer
from .scripted import Scripted, read_transcript
from .search import Search
from .settings import ChatOptions, ChatSettings

if TYPE_CHECKING:
    from fasttrack_validation.contracts.base import OpContract

    from ..model_dir import Bucket, ModelDirectory
    from .external import External

OF_THE_TABLE = "a configuration of the dispatch table"
"""What a search says of the configurations that it starts from"""
AGENTS = ("auto", "search", "chat", "external", "replay")


@dataclass(frozen=True)
class Surroundings:
    """What of a run an agent may see and use beside the history."""

    run: Path
    buckets: "Sequence[Bucket]"
    floors: Mapping[tuple[str, str], float | None]
    seed: int
    rounds: int
    hardware: Sequence[str]
    chat: ChatSettings | None = None
    external: "External | None" = None
    recorded: Sequence[Candidate] | None = None
    """What a search may draw from, where nothing can be recorded"""
    judging_seconds: Callable[[], float] = lambda: 0.0
    say: Callable[[str], None] = lambda line: None


def choose(
    agent: str, transcript: Path | None, chat: ChatOptions | None = None, packs: int = 0
) -> tuple[str, str]:  # fmt: skip
    """The agent that `agent` stands for, and why. Raises UserError for an unknown one or a missing transcript."""
    if agent == "single":
        return agent, f"{packs} submitted packs" if packs else "one submitted candidate"
    if agent not in AGENTS:
        raise UserError(f"no agent {agent!r}", f"agents: {', '.join(AGENTS)}")
    if packs:
        if agent not in ("auto", "search"):
            raise UserError(f"agent {agent} writes candidates that no pack has", "leave out --pack, or let search draw")
        return "search", f"{packs} packs to draw from"
    if (agent == "replay") != (transcript is not None):
        raise UserError("agent replay and --transcript belong together", "give both, or neither")
    if agent == "auto":
        if chat is not None and chat_settings.configured(chat):
            return "chat", "a model endpoint is configured"
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
        return [replace(proposal, candidate=directory.place(proposal.candidate)) for proposal in found]
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
    _require_table(directory, op, [one.config for one in packed if (one.files, one.entry) == (first.files, first.entry)])
    return [Proposal(one, "submitted") for one in packed]


def _require_table(directory: "ModelDirectory", op: str, recorded: Sequence[Config]) -> None:
    """What the table holds may have to stand in it again, and is judged before it does."""
    if lacking := [config for config in _configs(directory, op) if config not in recorded]:
        raise UserError(
            f"{len(lacking)} configurations of the dispatch table are not recorded with these sources",
            "record them as well: " + "; ".join(f"--config '{canonical_json(config)}'" for config in lacking),
        )


def check(
    agent: str, directory: "ModelDirectory", op: str, external: "External | None",
    recorded: Sequence[Candidate] | None = None,
) -> None:  # fmt: skip
    """Raises UserError where the agent could not work: no design space, no package, no readable key, no server, records
    of other sources or without the table's configurations."""
    if agent == "search":
        _space(directory, op)
        if recorded:
            if other := [one for one in recorded if one != directory.candidate(op, one.config)]:
                raise UserError(f"{other[0].digest()[:12]} was recorded from other sources than the tree's", "record it again")
            _require_table(directory, op, [one.config for one in recorded])
    elif agent == "chat":
        from .secrets import api_key

        api_key()
        _require("openai", "chat")
    elif agent == "external":
        if external is None:
            raise UserError("nothing serves the tools of this run", f"use `fasttrack mcp {directory.path.name} --op {op}`")
        _require("mcp", "mcp")


@contextmanager
def seated(
    name: str, directory: "ModelDirectory", contract: "OpContract", around: Surroundings,
    scripted: Sequence[Proposal] | None,
) -> Iterator[Proposer]:  # fmt: skip
    """The proposer called `name` for the op of `contract`, for as long as it is needed. Raises UserError as `check`."""
    if scripted is not None:
        yield Scripted(name, scripted)
    elif name == "chat":
        with _chat(directory, contract, around) as chat:
            yield chat
    elif name == "external":
        from .bench import Workbench

        check(name, directory, contract.op, around.external)
        around.external.open(Workbench(directory, contract, around.buckets, around.floors))
        yield around.external
    else:
        yield _search(directory, contract, around)


@contextmanager
def _chat(directory: "ModelDirectory", contract: "OpContract", around: Surroundings) -> Iterator[Proposer]:
    from ..storage import endpoint_memory
    from . import secrets
    from .bench import Workbench
    from .capabilities import Memory
    from .chat import Chat
    from .endpoint import Endpoint
    from .ledger import Requests
    from .metered import Metered

    settings = around.chat
    key, scrub = secrets.api_key(), secrets.scrubber()
    endpoint = Endpoint(settings, key, scrub)
    try:
        requests = Requests(around.run, settings.price)
        try:
            memory = Memory(endpoint_memory(os.environ), settings.base_url, settings.model)
            metered = Metered(endpoint, requests, memory, settings, around.judging_seconds, around.say)
            bench = Workbench(directory, contract, around.buckets, around.floors)
            yield Chat(bench, metered, around.seed, around.rounds, scrub)
        finally:
            around.say(f"requests: {requests.bill}")
            requests.close()
    finally:
        endpoint.close()


def _search(directory: "ModelDirectory", contract: "OpContract", around: Surroundings) -> Search:
    op = contract.op
    space = _space(directory, op)
    table = directory.table(op)
    here = [table.at(bucket.hardware, bucket.tp, bucket.rows[1]).config for bucket in around.buckets]
    starts = [(config, OF_THE_TABLE) for config in here]
    starts.append((space.default, "the default of the design space"))
    sizes = {w.name: contract.cost(w).bytes_read for w in contract.workloads()}
    workload_bytes = {
        name: [sizes[bucket.workload] for bucket in around.buckets if bucket.hardware == name]
        for name in around.hardware
        if name in floor.CARDS
    }
    for config in floor.seeds(space, workload_bytes):
        starts.append((config, "bytes in flight cover latency x bandwidth"))
    among = None if around.recorded is None else [one.config for one in around.recorded]
    return Search(space, lambda config: directory.candidate(op, config), starts, around.seed, among)


def _space(directory: "ModelDirectory", op: str):
    space = directory.space(op)
    if space is None:
        raise UserError(
            f"op {op!r} of {directory.manifest.model.name} declares no design space to search",
            f"add one under ops.{op}.space in fasttrack.toml, or submit a candidate with `fasttrack submit`",
        )
    return space


def _require(package: str, extra: str) -> None:
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise UserError(f"the package {package} is not installed", f"pip install 'fasttrack[{extra}]'")


def _configs(directory: "ModelDirectory", op: str) -> list[Config]:
    result: list[Config] = []
    for entry in directory.table(op).entry:
        if entry.config not in result:
            result.append(entry.config)
    return result
