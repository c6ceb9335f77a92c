"""What searches gained over the configurations that people had picked, from their traces.

    python benchmarks/search_gains.py models/kimi_k3/evidence/search/h200          # a table of the traces there
    python benchmarks/search_gains.py DIRECTORY --keep RUN_DIRECTORY               # keeps the trace of a finished run

A trace is of a run with one workload (`fasttrack propose MODEL --op OP --at WORKLOAD --hardware CARD --device gpu`).
"""

import argparse
from pathlib import Path

from fasttrack import gains
from fasttrack.gains import Gain, Trace

HEAD = """\
| op | hand-picked | microseconds | found | microseconds | hand-picked / found | outcome | stock path | tried |
| --- | --- | --- | --- | --- | --- | --- | ---: | ---: |
"""


def found(trace: Trace) -> Gain:
    """The gain at the one place that a run was for."""
    (hardware,), (workload,) = trace.request.hardware, trace.request.workloads
    return gains.gain(trace, hardware, workload)


def row(one: Gain) -> str:
    """A line of the table."""
    both = set(one.hand) | set(one.found)
    differs = [name for name in sorted(both) if one.hand.get(name) != one.found.get(name)]

    def config(values: dict) -> str:
        return ", ".join(f"{name} {values[name]}" for name in differs or sorted(both))

    def time(value) -> str:
        return f"{value.microseconds:.2f} ({value.low:.2f} to {value.high:.2f})"

    return (
        f"| `{one.op}` | {config(one.hand)} | {time(one.hand_time)} | {config(one.found)} | {time(one.found_time)} "
        f"| {one.ratio:.3f} ({one.low:.3f} to {one.high:.3f}) | {one.outcome} | {one.stock_microseconds:.2f} | {one.tried} |\n"
    )


def table(directory: Path) -> str:
    """One line for each trace in a directory, by name."""
    return HEAD + "".join(row(found(gains.read(path))) for path in sorted(directory.glob("*.jsonl.gz")))


def main() -> None:
    """Keeps or prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--keep", type=Path, metavar="RUN_DIRECTORY")
    asked = parser.parse_args()
    if asked.keep:
        asked.directory.mkdir(parents=True, exist_ok=True)
        request = gains.read_request(asked.keep)
        gains.keep(asked.keep, asked.directory / f"{'-'.join((request.op, *request.workloads))}.jsonl.gz")
    print(table(asked.directory), end="")


if __name__ == "__main__":
    main()
