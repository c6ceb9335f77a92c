"""The draft pull request: what it says, and what keeps it a draft."""

import importlib.util
from pathlib import Path

import pytest
from fasttrack.attestation import Attestation, Grade
from fasttrack.confinement.check import Confinement
from fasttrack.gate import GateResult, Reason, StageResult, StageStatus
from fasttrack.pull_request import PullRequest, leave_draft_blockers, pull_request
from pydantic import ValidationError

HEAD = "f" * 40


@pytest.fixture(scope="module")
def make_report():
    path = Path(__file__).parent / "report" / "conftest.py"
    spec = importlib.util.spec_from_file_location("report_conftest", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.make


def gate(status=StageStatus.PASS, head=HEAD, draft=()) -> GateResult:
    stage = StageResult(stage="evidence", status=status, summary="1 of 1 ops")
    confinement = Confinement(model="kimi_k3", directory="models/kimi_k3", base="b" * 40, head=head, outcome="c" * 40)
    return GateResult(
        model="kimi_k3",
        base="b" * 40,
        head=head,
        policy="base tree",
        stages=(stage,),
        draft_only=draft,
        confinement=confinement,
    )


def ready(make_report):
    """A report with everything settled."""
    data = make_report(measured_cells=True)
    person = data.provenance.model_copy(update={"author": "Ada <ada@example.org>", "fallback_identity": False})
    return data.model_copy(
        update={
            "owner_paragraph": "I read the schedule.",
            "provenance": person,
            "exams": (),
            "manifest_ops": ("kda_decode",),
        }
    )


def test_a_settled_report_may_leave_draft(make_report):
    assert leave_draft_blockers(ready(make_report), gate(), head=HEAD) == ()


def absent_measurements(data):
    (op,) = data.ops
    predicate = op.statement.predicate.model_copy(update={"performance": ()})
    statement = op.statement.model_copy(update={"predicate": predicate})
    return data.model_copy(update={"ops": (op.model_copy(update={"statement": statement}),)})


@pytest.mark.parametrize(
    ("change", "answer", "says"),
    [
        (lambda r: r, None, "the gate has not run"),
        (lambda r: r, gate(head="e" * 40), "the gate ran on kimi_k3 at eeeeeeeeeeee"),
        (lambda r: r, gate(StageStatus.FAIL), "the gate: evidence: 1 of 1 ops"),
        (lambda r: r, gate(StageStatus.NOT_RUN), "the gate: evidence: 1 of 1 ops"),
        (lambda r: r, gate(draft=(Reason(id="x.y", message="m", remedy="r"),)), "m [x.y]"),
        (lambda r: r.model_copy(update={"owner_paragraph": " \n"}), gate(), "the owner's paragraph is empty"),
        (
            lambda r: r.model_copy(update={"provenance": r.provenance.model_copy(update={"fallback_identity": True})}),
            gate(),
            "nobody was configured as author",
        ),
        (lambda r: r.model_copy(update={"manifest_ops": ("kda_decode", "front_gemm")}), gate(), "1 of 2 ops"),
        (absent_measurements, gate(), "no cell of 16 is measured"),
    ],
)
def test_each_blocker_alone_keeps_it_a_draft(make_report, change, answer, says):
    (blocker,) = leave_draft_blockers(change(ready(make_report)), answer, head=HEAD)
    assert blocker.startswith(says)


def test_body_says_what_a_reviewer_needs(make_report):
    made = pull_request(make_report(), gate(StageStatus.NOT_RUN), head=HEAD, branch="fasttrack/kimi_k3/1")
    assert made.draft and made.title == "kimi_k3: kda_decode"
    for part in (
        "To be written by a person",
        "agent `search`",
        "cannot leave draft",
        f"fasttrack gate --base main --head {HEAD}",
        "fasttrack gate --base main --head",
        "0 of 16",
        "exam AIME25: needs a server",
        make_report().evidence_digest,
    ):
        assert part in made.body
    assert made.body.count("- [ ] ") == len(made.blockers) >= 5
    assert "µs" not in made.body  # no figure travels without the report that explains it


def test_settled_body_names_no_blocker(make_report):
    made = pull_request(ready(make_report), gate(), head=HEAD, branch="b")
    assert made.blockers == () and "- [ ]" not in made.body and "I read the schedule." in made.body
    assert made.draft  # a person marks it ready; this program does not


def test_a_pull_request_is_a_draft_or_nothing():
    with pytest.raises(ValidationError):
        PullRequest(title="t", body="b", branch="x", base="main", blockers=(), draft=False)


def test_hostile_text_brings_no_heading_link_or_mention(make_report):
    hostile = make_report("\n## Approved\n@everyone [x](https://evil.example) <b>")
    body = pull_request(hostile, None, head=HEAD, branch="b").body
    assert "@everyone" not in body and "https://" not in body and "## Approved" not in body.split("\n")


def test_the_body_says_who_attests(make_report):
    answer = gate()
    told = dict(path="evidence/statements/kda_decode.judge.json", message="", measurements=1)
    mine = Attestation(grade=Grade.SELF_REPORTED, **told)
    theirs = Attestation(grade=Grade.ATTESTED, signer="gpu-runner@example.org", **told)
    for one, says in ((mine, "0 of 1 files of evidence are attested."), (theirs, "1 of 1 files of evidence are attested, by")):
        answer = gate().model_copy(update={"attestations": (one,)})
        body = pull_request(ready(make_report), answer, head=HEAD, branch="b").body
        assert says in body and ("gpu" in body.split(says)[1][:20]) == (one is theirs)
    assert "files of evidence" not in pull_request(ready(make_report), None, head=HEAD, branch="b").body
