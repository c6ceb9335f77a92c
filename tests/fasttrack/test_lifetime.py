"""Dates of review and removal: a warning a month before, a failure after, and no change that prolongs its own life."""

import datetime

import pytest
from gated_change import INSIDE, MANIFEST, STATEMENT, ids, parse_manifest, run_gate, statement, statuses, tree

REVIEW, REMOVE = datetime.date(2101, 1, 1), datetime.date(2102, 1, 1)  # as in the manifest
DAY = datetime.timedelta(days=1)


def judged(forge, today, manifest=MANIFEST, before=None):
    """The gate on that day. `before`: the base's manifest."""
    base = forge.commit(tree({"README.md": b"# alpha\n"} | ({"fasttrack.toml": before} if before else {})))
    inside = {"README.md": b"# alpha\n"} | INSIDE | {"fasttrack.toml": manifest, STATEMENT: statement(INSIDE)}
    head = forge.commit(tree(inside), base)
    return run_gate(forge.path, base, head, "alpha", parse_manifest=parse_manifest, today=today)


@pytest.mark.parametrize(
    ("today", "code", "failed", "warned"),
    [
        (REVIEW - 32 * DAY, 0, [], []),
        (REVIEW - 31 * DAY, 0, [], ["lifetime.review_soon"]),
        (REVIEW, 0, [], ["lifetime.review_soon"]),
        (REVIEW + DAY, 1, ["lifetime.review"], []),
        (REMOVE, 1, ["lifetime.review"], ["lifetime.removal_soon"]),
        (REMOVE + DAY, 1, ["lifetime.review", "lifetime.removal"], []),
    ],
)
def test_dates(forge, today, code, failed, warned):
    result = judged(forge, today)
    assert (result.exit_code, ids(result, "lifetime")) == (code, failed)
    assert [reason.id for reason in result.draft_only] == warned
    assert statuses(result)["lifetime"] == ("fail" if failed else "pass")


def test_a_change_does_not_prolong_its_own_life(forge):
    """The base's dates have passed, and the change moves them."""
    ended = MANIFEST.replace(b"2101-01-01", b"2090-01-01")
    result = judged(forge, REVIEW - 60 * DAY, MANIFEST, ended)
    assert result.exit_code == 1 and ids(result, "lifetime") == ["lifetime.review"]
    assert "lifetime.moved" in [reason.id for reason in result.draft_only]
    in_time = judged(forge, datetime.date(2080, 1, 1), MANIFEST, ended)
    assert in_time.exit_code == 0 and [reason.id for reason in in_time.draft_only] == ["lifetime.moved"]


def test_an_earlier_end_is_the_changes_own_business(forge):
    result = judged(forge, datetime.date(2080, 1, 1), MANIFEST.replace(b"2102-01-01", b"2101-06-01"), MANIFEST)
    assert result.exit_code == 0 and result.draft_only == ()
