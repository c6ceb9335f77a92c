"""Files together: claims and records against the rules, texts against the claims."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ..errors import UserError
from .check import Checked, check, check_measurement
from .claim import Claim
from .conditions import missing
from .documents import PROSE, read
from .findings import Finding, Status, status
from .measurement import Metric
from .prose import remarks
from .sarif import Located


class Reviewed(NamedTuple):
    """A claim or a record, judged."""

    kind: str
    name: str
    path: str
    line: int
    status: Status
    findings: tuple[Finding, ...]
    unknown: tuple[str, ...]
    checked: Checked | None


class Review(NamedTuple):
    """Everything that files hold. A text without a figure was checked; a file of data without claims was not."""

    items: tuple[Reviewed, ...]
    located: tuple[Located, ...]
    texts: int

    @property
    def code(self) -> int:
        """Exit code: 0 pass, 1 fail, 3 withheld, 4 nothing to check."""
        statuses = {item.status for item in self.items}
        if Status.FAILS in statuses or any(one.effect is None for one in self.located):
            return 1
        if Status.WITHHELD in statuses:
            return 3
        return 0 if self.items or self.texts else 4


def review(paths: Iterable[Path]) -> Review:
    """Reads and checks files; a text may name claims of any of them. Raises UserError for what cannot be read."""
    items: list[Reviewed] = []
    texts: list[tuple[Path, str]] = []
    for path in paths:
        text, found = read(path)
        if path.suffix in PROSE:
            texts.append((path, text))
        for item in found:
            items.append(_reviewed(item.value, str(item.path), item.line))
    claims: dict[str, Checked] = {}
    for item in items:
        if item.checked is None:
            continue
        if item.name in claims and claims[item.name].claim != item.checked.claim:
            raise UserError(
                f"{item.path}:{item.line}: another claim is called {item.name!r}", "give it a name of its own"
            )
        claims[item.name] = item.checked
    located = [
        Located(one.rule, one.effect, one.message, item.path, item.line, item.name)
        for item in items for one in item.findings
    ]  # fmt: skip
    located += [
        Located(one.rule, None, one.message, str(path), one.line)
        for path, text in texts
        for one in remarks(text, claims)
    ]
    return Review(tuple(items), tuple(located), len(texts))


def _reviewed(value, path: str, line: int) -> Reviewed:
    if isinstance(value, Claim):
        checked = check(value)
        return Reviewed("claim", value.id, path, line, checked.status, checked.findings, (), checked)
    found = check_measurement(value)
    unknown = missing(value, Metric.STEP_TIME)
    return Reviewed("measurement", value.scope, path, line, status(found), found, unknown, None)
