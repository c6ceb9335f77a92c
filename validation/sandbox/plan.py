"""What the supervisor and the jail agree on about one job."""

from dataclasses import dataclass, field
from typing import Any, Protocol

from .records import Limits, Profile


@dataclass
class Plan:
    """One job. `scratch` and `facts` are filled in by the rung; `facts` describe what is in force."""

    profile: Profile
    entry: str
    payload: dict[str, Any]
    limits: Limits
    roots: tuple[str, ...]
    memory: tuple[int, ...]
    uid: int
    gid: int
    drop_uid: bool
    scratch: str = ""
    scratch_is_sized: bool = False
    other_tasks: int = 0
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def may_fork(self) -> bool:
        """Whether the profile may fork and execute."""
        return self.profile is Profile.RECORDER


class SetupError(Exception):
    """A confinement that could not be put up: the message names what is missing."""


class RungModule(Protocol):
    """One way to confine a job: a module with these functions. Each raises OSError or SetupError."""

    CONFINES: bool

    @staticmethod
    def outside(plan: Plan) -> None:
        """In the supervisor, before it forks the jail's first process."""

    @staticmethod
    def inside(plan: Plan) -> None:
        """In the jail's first process, still with the caller's privileges."""

    @staticmethod
    def lock(plan: Plan) -> None:
        """In the job's own process, the last step before its code: no way back."""

    @staticmethod
    def clean(plan: Plan) -> None:
        """In the supervisor, once every process of the job is gone."""
