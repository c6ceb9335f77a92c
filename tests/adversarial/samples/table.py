"""The table of README.md: every id of the list with its samples, or with what holds it elsewhere."""

from . import ELSEWHERE, SAMPLES

LISTED = tuple(
    f"X-{number:02}"
    for number in (
        1, 2, 3, 4, 6, 7, 9, 10, 11, 12, 14, 15, 16, 17, 18, 19, 20, 21, 24, 26, 27, 29, 30, 31, 32, 34, 35, 37, 38, 39,
        42, 44, 45, 46, 48, 49, 51, 52, 53, 54, 55, 57, 58, 59, 60, 61, 64, 66, 67, 68, 69, 71, 72, 73, 74, 75, 77, 78,
        81, 83, 84, 85, 86, 87, 89, 90, 91, 92, 94, 95, 97, 98,
    )
)  # fmt: skip
OWN = {
    "D-outside": "device code reads or writes what is not its own",
    "D-poison": "device code reads what an output held before",
    "D-race": "device code races, or sums in no order",
    "D-dependent": "device code finishes early under programmatic dependent launch",
    "D-hang": "device code never ends",
    "D-alignment": "device code assumes an alignment, a stride or a value",
    "D-values": "device code is right only for some values, neighbours or machines",
    "P-lie": "the plan says what is not so",
    "P-role": "the plan hides work in a prefetch",
    "P-prepare": "the plan hides work in `prepare`",
}
"""Ids of this directory's own, for device code and plans."""

_HEAD = "| id | what it tries | sample or test | check | reason id | ruled on in | honest twin |"


def table() -> str:
    """The table in Markdown, ordered by id."""
    rows = []
    for id in (*LISTED, *OWN):
        for sample in (one for one in SAMPLES.values() if id in one.ids):
            outcome = f"`{sample.reason}`" if sample.reason else "any" if sample.rejected else "without effect: accepted"
            cells = (id, sample.mechanism, sample.name, sample.check or "any" if sample.rejected else "-", outcome)
            rows.append((*cells, sample.runs, sample.twin))
        for other in (one for one in ELSEWHERE if one.id == id):
            where = f"`{other.test.partition('::')[2]}`" if other.test else "does not apply"
            rows.append((id, other.mechanism, where, "-", other.why, "-", "-"))
    return "\n".join((_HEAD, "| --- " * 7 + "|", *("| " + " | ".join(row) + " |" for row in rows)))


if __name__ == "__main__":
    print(table())
