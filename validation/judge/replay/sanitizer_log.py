"""What compute-sanitizer wrote, as findings. Pure; a log that is not understood proves nothing.

A report begins at the prefix with one space ("========= Invalid __global__ write of size 4 bytes") and goes on in
indented lines ("=========     at kernel(int *)+0x60 in file.cu:34"). Racecheck calls its reports Error or Warning and
names two accesses. The last line sums up: without it the tool did not reach its end.
"""

import re
from dataclasses import dataclass

_PREFIX = "========="
_SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) errors?|RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) errors?, \d+ warnings?\))")
# "at void k<int>(int *)+0x60 in k.cu:3", "Read access at k+0x10 in ...", "at 0x60 in k.cu:3:k(int *)" (older tools)
_PLACE = re.compile(r"\bat (?P<name>[^\s+][^+]*?)\+0x[0-9a-f]+\b|\bat 0x[0-9a-f]+ in (?:\S*?:\d+:)?(?P<old>[^\s(]+)")
_WHERE = re.compile(r"0x[0-9a-f]+(?: in [^\s:]+:\d+)?")
_NOT_REPORTS = ("COMPUTE-SANITIZER", "ERROR SUMMARY", "RACECHECK SUMMARY", "LEAK SUMMARY", "Warning: ")
_SHOWN = 200


@dataclass(frozen=True)
class Finding:
    """What a tool reports of one kernel: its first words, and how many reports there are. `kernel` may be unknown."""

    kernel: str | None
    message: str
    count: int
    places: tuple[str, ...] = ()
    """Where the first report says that it happened, two places for a race: "0x90 in k.cu:34", with the line if it is known."""


@dataclass(frozen=True)
class Log:
    """A log that was read. `errors` is what the tool counted; None where it did not come to its end."""

    findings: tuple[Finding, ...]
    errors: int | None
    complaint: str = ""
    """The first report that names no kernel: mostly what kept the tool from its work."""


def read(text: str) -> Log:
    """The findings of a log, by kernel, in the order of their first report."""
    reports: list[list[str]] = []
    for line in text.splitlines():
        if not line.startswith(_PREFIX):
            continue
        body = line[len(_PREFIX) :]
        if body.startswith("    ") and reports:
            reports[-1].append(body.strip())
        elif body.strip():
            reports.append([body.strip()])
    counts: dict[str | None, list] = {}
    places: dict[str | None, tuple[str, ...]] = {}
    for first, *more in reports:
        if first.startswith(_NOT_REPORTS) or _SUMMARY.search(first):
            continue
        place = next((found for one in (first, *more) if (found := _kernel(one))), None)
        other = " ".join(one for one in more if one.startswith("and ") and _PLACE.search(one))  # racecheck's other access
        counts.setdefault(place, [_printable(f"{first} {other}".strip()), 0])[1] += 1
        places.setdefault(place, tuple(at for one in (first, *more) if (at := _where(one))))
    errors = [int(found[1] or found[2] or 0) for report in reports if (found := _SUMMARY.search(report[0]))]
    return Log(
        findings=tuple(
            Finding(kernel, message, count, places[kernel]) for kernel, (message, count) in counts.items() if kernel
        ),
        errors=sum(errors) if errors else None,
        complaint=counts[None][0] if None in counts else "",
    )


def _kernel(line: str) -> str | None:
    found = _PLACE.search(line)
    if not found:
        return None
    whole = found["name"] or found["old"]
    words = re.sub(r"[(<].*", "", whole).split()  # without parameters, of either kind
    return _printable(words[-1] if words else whole)


def _where(line: str) -> str | None:
    """Offset in the kernel, and the line of its source where the code has lines."""
    found = _PLACE.search(line) and _WHERE.search(line)
    return _printable(found[0]) if found else None


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)[:_SHOWN]
