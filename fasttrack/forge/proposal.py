"""What is sent: one commit, the gate's answer for it over the forge's own base, and the draft made from its evidence."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fasttrack_validation.errors import UserError

from .. import model_dir
from ..gate import GateResult, run_gate
from ..git import Repository
from ..pull_request import PullRequest, leave_draft_blockers, pull_request
from ..report.data import ReportData
from ..report.page import report_data
from ..stages import StageStatus
from ..targets.profile import Profile
from .github import Found

Gate = Callable[[Path, str, str, str], GateResult]

MARK = "<!-- fasttrack: rendered from evidence"
OWNER_BEGINS, OWNER_ENDS = "<!-- owner's paragraph: a person writes below -->", "<!-- end of the owner's paragraph -->"


@dataclass(frozen=True)
class Proposal:
    """A commit that may be sent, judged over the base as it is on the forge."""

    model: str
    branch: str
    commit: str
    base: str
    """The target branch"""
    base_commit: str
    data: ReportData
    gate: GateResult
    profile: Profile

    @property
    def moved(self) -> bool:
        """Whether the base is another commit than the one that the run started from."""
        return self.data.provenance.base_commit != self.base_commit

    def blockers(self, owner: str = "") -> tuple[str, ...]:
        """What keeps it a draft. `owner`: the owner's paragraph, where it was written on the forge."""
        return leave_draft_blockers(self._with(owner), self.gate, head=self.commit)

    def draft(self, duplicates: Sequence[Found] | None = None, owner: str = "") -> PullRequest:
        """Title and body for the target. `duplicates`: None where nobody searched."""
        return pull_request(self._with(owner), self.gate, head=self.commit, branch=self.branch, base=self.base,
                            profile=self.profile, duplicates=duplicates, base_commit=self.base_commit)  # fmt: skip

    def _with(self, owner: str) -> ReportData:
        return self.data.model_copy(update={"owner_paragraph": owner}) if owner.strip() else self.data


def prepare(
    repository: Repository, checkout: Path, model: str, branch: str, profile: Profile, base: str, base_commit: str,
    gate: Gate = run_gate,
) -> Proposal:  # fmt: skip
    """Judges the head of `branch` over `base_commit`. UserError where the gate refuses it, or it has no report."""
    commit = repository.resolve(f"refs/heads/{branch}")
    answer = gate(checkout, base_commit, commit, model)
    if answer.exit_code in (1, 4):
        stages = [s for s in answer.stages if s.required and s.status in (StageStatus.FAIL, StageStatus.EMPTY)]
        reasons = [reason for stage in stages for reason in stage.reasons if reason.status is not StageStatus.PASS]
        first = f"{reasons[0].message} [{reasons[0].id}]" if reasons else stages[0].summary
        more = f", and {len(reasons) - 1} more" if len(reasons) > 1 else ""
        raise UserError(
            f"the gate refuses {branch} over {base} at {base_commit[:12]}: {first}{more}",
            (reasons[0].remedy if reasons else "commit a change first")
            + f". All of it: `fasttrack gate --base {base_commit[:12]} --head {branch} --model {model}`",
        )
    files = repository.files(commit, f"models/{model}")
    return Proposal(model, branch, commit, base, base_commit, _data(files), answer, profile)


def _data(files: Mapping[str, bytes]) -> ReportData:
    manifest = model_dir.parse_manifest(files[model_dir.MANIFEST].decode("utf-8"), Path(model_dir.MANIFEST))
    return report_data(files, manifest)


def owner_paragraph(body: str) -> str:
    """What a person wrote between the marks of a body; empty where it is only the request to write it."""
    if OWNER_BEGINS not in body:
        return ""
    text = body.split(OWNER_BEGINS, 1)[1].split(OWNER_ENDS, 1)[0].strip()
    return "" if text.startswith("*To be written by a person") else text
