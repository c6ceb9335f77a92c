"""The draft pull request: its body, rendered from evidence, and what keeps it a draft. Opening it is a person's act."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from fasttrack_validation.records import Frozen

from .gate import GateResult
from .report.data import ReportData
from .targets.profile import Profile, load

if TYPE_CHECKING:
    from .forge.github import Found


class PullRequest(Frozen):
    """A pull request as data. It is always a draft, and always under a person's name."""

    title: str
    body: str = Field(description="Markdown")
    branch: str
    base: str
    draft: Literal[True] = True
    blockers: tuple[str, ...] = Field(description="what a person has to settle before it leaves draft")


def pull_request(
    data: ReportData, gate: GateResult | None, *, head: str, branch: str, base: str = "main",
    profile: Profile | None = None, duplicates: "Sequence[Found] | None" = None, base_commit: str | None = None,
) -> PullRequest:  # fmt: skip
    """The draft for the commit `head`. `base` is the target branch, and `base_commit` where it was looked at.

    `profile`: the target's, by default this layout's. `duplicates`: what a search found; None where nobody searched.
    """
    from .report.render import environment

    profile = profile or load("own")

    blockers = leave_draft_blockers(data, gate, head=head)
    ops = ", ".join(op.op for op in data.ops) or "no op"
    body = environment().get_template("pull_request.md.j2").render(
        r=data, gate=gate, head=head, branch=branch, base=base, blockers=blockers, profile=profile,
        duplicates=duplicates, base_commit=base_commit,
    )  # fmt: skip
    return PullRequest(
        title=f"{data.model}: {ops}", body=re.sub(r"\n{3,}", "\n\n", body).strip() + "\n", branch=branch, base=base, blockers=blockers
    )


def leave_draft_blockers(data: ReportData, gate: GateResult | None, *, head: str) -> tuple[str, ...]:
    """Every reason why the pull request stays a draft; empty when a person may mark it ready.

    `head` is the commit that would be merged: a gate's answer for any other commit counts for nothing.
    """
    found = []
    if gate is None:
        found.append("the gate has not run")
    elif gate.model != data.model or gate.head != head:
        found.append(f"the gate ran on {gate.model} at {gate.head[:12]}, not on {data.model} at {head[:12]}")
    elif gate.exit_code:
        found += [f"the gate: {stage.stage}: {stage.summary}" for stage in gate.stages
                  if stage.required and stage.status != "pass"]  # fmt: skip
    if gate is not None:
        found += [f"{reason.message} [{reason.id}]" for reason in gate.draft_only]
    if not data.owner_paragraph.strip():
        found.append("the owner's paragraph is empty: a person writes it")
    if data.provenance.fallback_identity:
        found.append(
            "nobody was configured as author: commit again under a person's name (git config user.name, user.email)"
        )
    if data.accepted < len(data.manifest_ops) or not data.manifest_ops:
        found.append(f"{data.accepted} of {len(data.manifest_ops)} ops have an accepted verdict")
    if not data.measured:
        found.append(f"no cell of {data.cell_count} is measured")
    found += [f"exam {exam.name} did not run: {exam.reason}" for exam in data.not_sat]
    found += [f"exam {one.exam}: {one.verdict}" for one in data.sat if one.verdict != "pass"]
    return tuple(found)
