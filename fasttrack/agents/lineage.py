"""Which candidate the next one should start from: islands, the best for each batch bucket, and what failed last.

A pure function of the history, so that a resumed search goes on as if it had never stopped.
"""

import ast
import random
from collections.abc import Sequence
from dataclasses import dataclass

from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.judge.verdict import Status, Verdict
from fasttrack_validation.records import canonical_json, sha256

from ..model_dir import Bucket
from ..selection import times
from .protocol import Evaluation

ISLANDS = 3
REPAIRS = 3
# One draw in so many takes its parent from any island.
MIGRATION = 5


@dataclass(frozen=True)
class Draw:
    """Where to start. `parent` None: what the tree has. `failed`: the last attempt, to be repaired."""

    island: int
    parent: Evaluation | None
    bucket: Bucket | None
    failed: Evaluation | None

    @property
    def parents(self) -> tuple[str, ...]:
        """Digests of the candidates that are shown to be worked on."""
        found = [e.proposal.candidate.digest() for e in (self.parent, self.failed) if e is not None]
        return tuple(dict.fromkeys(found))


def draw(history: Sequence[Evaluation], buckets: Sequence[Bucket], seed: int) -> Draw:
    """The next start.

    An island is kept while its last attempts failed, at most `REPAIRS` in a row, and left for the next one after
    that or after a success. The parent is the island's best at a bucket that is drawn; now and then the best of all.
    """
    rng = random.Random(f"{seed}/lineage/{len(history)}")
    bucket = rng.choice(list(buckets)) if buckets else None
    migrate = rng.randrange(MIGRATION) == 0
    island, failed = 0, None
    if history:
        last = history[-1]
        island = last.proposal.island
        if last.verdict.status is Status.ACCEPTED or _failures(history) >= REPAIRS:
            island = (island + 1) % ISLANDS
        else:
            failed = last
    own = originals(history)
    members = [e for e in own if migrate or e.proposal.island == island]
    return Draw(island, best_at(members, bucket), bucket, failed)


def best_at(history: Sequence[Evaluation], bucket: Bucket | None) -> Evaluation | None:
    """The accepted candidate with the least time at a bucket, measured before modelled; else the best in sum."""
    accepted = [e for e in history if e.verdict.status is Status.ACCEPTED]
    place = bucket and (bucket.hardware, bucket.workload)
    timed = [(t.measured, t.microseconds, e) for e in accepted if (t := times(e.verdict).get(place))]
    if timed:
        return min(timed, key=lambda one: (not one[0], one[1]))[2]
    return min((e for e in accepted if e.objective is not None), key=lambda e: e.objective, default=None)


def originals(history: Sequence[Evaluation]) -> list[Evaluation]:
    """The history without candidates that came to the same kernel pack as an earlier one."""
    copies = duplicates(history)
    return [evaluation for number, evaluation in enumerate(history) if number not in copies]


def duplicates(history: Sequence[Evaluation]) -> dict[int, int]:
    """Position of a candidate -> position of the earlier one with the same kernel pack."""
    first: dict[str, int] = {}
    result = {}
    for number, evaluation in enumerate(history):
        digest = pack_digest(evaluation.proposal.candidate, evaluation.verdict)
        if digest is None:
            continue
        if digest in first:
            result[number] = first[digest]
        else:
            first[digest] = number
    return result


def pack_digest(candidate: Candidate, verdict: Verdict) -> str | None:
    """One digest of what would run: the launch plan, and the kernels' code without comments and docstrings.

    Host code, names of configuration parameters and layout do not count: they leave no trace in a plan. None where no
    plan was recorded.
    """
    if verdict.plan is None:
        return None
    plan = verdict.plan.model_dump(mode="json") | {"candidate_digest": ""}
    kernels = {name: _code(text) for name, text in candidate.files.items()}
    return sha256(canonical_json({"plan": plan, "kernels": kernels}).encode())


def _code(text: str) -> str:
    """What of a file is compiled: its jitted functions and constants; CUDA C++ as it is."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return text
    kept = []
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef) and statement.decorator_list:
            if isinstance(statement.body[0], ast.Expr) and isinstance(statement.body[0].value, ast.Constant):
                statement.body = statement.body[1:] or [ast.Pass()]
            kept.append(ast.dump(statement))
        elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.ImportFrom):
            kept.append(ast.dump(statement))
    return "\n".join(kept)


def _failures(history: Sequence[Evaluation]) -> int:
    """Attempts at the end of the history, on its last island, that were not accepted."""
    count = 0
    for evaluation in reversed(history):
        same = evaluation.proposal.island == history[-1].proposal.island
        if not same or evaluation.verdict.status is Status.ACCEPTED:
            break
        count += 1
    return count
