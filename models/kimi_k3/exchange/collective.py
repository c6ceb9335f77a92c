"""One verdict for all ranks: a path that one of them cannot take, none of them takes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch.distributed as dist


@dataclass(frozen=True)
class Verdict:
    """What all ranks decided together: `reasons` is empty, or says of every rank that objects why, "rank 3: ..."."""

    reasons: tuple[str, ...]

    @property
    def agreed(self) -> bool:
        """Whether every rank can take the path."""
        return not self.reasons


def agree(reasons: Sequence[str], group: dist.ProcessGroup | None = None) -> Verdict:
    """Brings every rank's reasons against a path together; the same verdict on each. A collective of `group`.

    Without it each rank would decide alone, and those that take the path would wait for those that do not. Needs a
    group with a CPU backend (gloo): the verdict must not depend on what it is about.
    """
    gathered: list[Sequence[str] | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, tuple(reasons), group=group)
    return Verdict(tuple(f"rank {rank}: {reason}" for rank, found in enumerate(gathered) for reason in found))
