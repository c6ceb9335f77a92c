"""How long a cell of the grid takes with other configurations or other sources: all states side by side on one GPU, replays in turn.

    python benchmarks/configurations.py --cell tp8-kda_moe-r1 --state pdl:kda_front.pdl=true,moe_half.pdl=true \\
        --state "pdl, nothing early:kda_front.pdl=true,moe_half.pdl=true,moe_half.early=0" [--copies 4] [--turns 20] [--json FILE]
    python benchmarks/configurations.py --cell tp8-mla_moe-r1-c1024 --tree before=/somewhere/models/kimi_k3

The first state is the tree as it stands. `--state NAME:TABLE.KEY=VALUE,...` changes keys of the configurations in dispatch/TABLE.toml,
values written as in TOML; `--tree NAME=DIRECTORY` is another model directory. Each state has a process of its own with the same few copies
of the cell, so weights are cold; inputs are put back before each replay. Printed: medians of a call in microseconds, against the first
state's in the same turns (below one is faster), and whether every output that is no state had the first state's bits.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from fasttrack import dispatch
from fasttrack_validation import contracts
from fasttrack_validation.contracts.grid import CellSpec
from fasttrack_validation.performance.arm import Arm, ArmFailed

MODEL, AS_IT_STANDS = "kimi_k3", "as it stands"
ROOT = Path(__file__).resolve().parents[1] / "models" / MODEL


def changes(text: str) -> tuple[str, dict[str, dict[str, object]]]:
    """(name, table -> keys and values) of NAME:TABLE.KEY=VALUE,... Raises SystemExit for anything else."""
    name, _, rest = text.partition(":")
    found: dict[str, dict[str, object]] = {}
    for part in rest.split(","):
        place, _, value = part.partition("=")
        table, _, key = place.strip().partition(".")
        try:
            found.setdefault(table, {})[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            raise SystemExit(f"--state {text}: {part!r} is no TABLE.KEY=VALUE with a value as in TOML") from None
        if not (name and table and key):
            raise SystemExit(f"--state {text}: write NAME:TABLE.KEY=VALUE,...")
    return name, found


def changed(source: Path, to: Path, of: Mapping[str, Mapping[str, object]]) -> Path:
    """A copy of the model directory `source`, without its evidence, in which configurations of dispatch tables are others."""
    shutil.copytree(source, to, ignore=shutil.ignore_patterns("evidence", "__pycache__"))
    for table, values in of.items():
        file = to / "dispatch" / f"{table}.toml"
        if not file.is_file():
            raise SystemExit(f"there is no dispatch/{table}.toml")
        known = "".join(path.read_text("utf-8") for path in (to / "kernels").glob("*.py"))
        if odd := [key for key in values if f'"{key}"' not in known]:
            raise SystemExit(f"no kernel reads {odd[0]!r} of a configuration")
        entries = dispatch.parse(file.read_text("utf-8"), file).entry
        entries = tuple(entry.model_copy(update={"config": {**entry.config, **values}}) for entry in entries)
        file.write_text(dispatch.render(dispatch.Table(entry=entries)), "utf-8")
    return to


def new(name: str, known: Mapping[str, object]) -> None:
    """Raises SystemExit for the name of another state."""
    if name in known:
        raise SystemExit(f"two states are called {name!r}")


def laid_out(arms: Mapping[str, Arm], spec: CellSpec, hardware: str, copies: int) -> dict[str, Arm]:
    """The states that the cell could be laid out with; of others the reason is printed. Raises ArmFailed for the first."""

    def lay_out(name: str) -> ArmFailed | None:
        try:
            arms[name].lay_out(spec, hardware, range(1, copies + 1))
        except ArmFailed as failed:
            return failed
        return None

    # At the same time: most of it is compiling, and each state has a process.
    with ThreadPoolExecutor(len(arms)) as pool:
        failures = dict(zip(arms, pool.map(lay_out, arms), strict=True))
    first = next(iter(arms))
    if failures[first]:
        raise failures[first]
    for name, failed in failures.items():
        if failed:
            print(f"  not laid out: {name}: {str(failed).strip().splitlines()[-1]}", flush=True)
            arms[name].restart()
    return {name: arm for name, arm in arms.items() if not failures[name]}


def timed(arms: Mapping[str, Arm], turns: int) -> dict[str, dict[str, object]]:
    """State -> median of a call, ratio to the first state's of the same turn, and whether all outputs were the first one's."""
    microseconds: dict[str, list[float]] = {name: [] for name in arms}
    same = dict.fromkeys(arms, True)
    for turn in range(turns + 2):
        digests: dict[str, tuple[str, ...]] = {}
        for name, arm in arms.items():
            arm.refresh(turn)
            reading = arm.replay()
            digests[name] = arm.digests()
            # The first turns warm up.
            if turn > 1:
                microseconds[name].append(reading.event_ns * 1e-3 / arm.slots)
        first = next(iter(digests.values()))
        same = {name: same[name] and digests[name] == first for name in arms}
    base = next(iter(microseconds.values()))
    return {
        name: {
            "microseconds": round(statistics.median(own), 2),
            "ratio": round(statistics.median(one / other for one, other in zip(own, base, strict=True)), 4),
            "same_bits": same[name],
        }
        for name, own in microseconds.items()
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cell", action="append", required=True)
    parser.add_argument("--state", action="append", default=[], metavar="NAME:TABLE.KEY=VALUE,...")
    parser.add_argument("--tree", action="append", default=[], metavar="NAME=DIRECTORY")
    parser.add_argument("--hardware", default="h200")
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    if min(asked.copies, asked.turns) < 1:
        raise SystemExit("--copies and --turns: one at least")
    cells = {spec.key: spec for spec in contracts.load(MODEL).grid.cells(asked.hardware)}
    if unknown := [key for key in asked.cell if key not in cells]:
        raise SystemExit(f"there is no cell {unknown[0]}: `fasttrack grid plan {MODEL} --hardware {asked.hardware}` lists them")
    found: dict[str, dict[str, dict[str, object]]] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        directories = {AS_IT_STANDS: ROOT}
        for number, text in enumerate(asked.state):
            name, of = changes(text)
            new(name, directories)
            directories[name] = changed(ROOT, Path(folder) / str(number), of)
        for text in asked.tree:
            name, _, place = text.partition("=")
            new(name, directories)
            directories[name] = Path(place)
        arms = {
            name: stack.enter_context(Arm("specialised", MODEL, directory)) for name, directory in directories.items()
        }
        for key in asked.cell:
            print(key, flush=True)
            laid = laid_out(arms, cells[key], asked.hardware, asked.copies)
            found[key] = timed(laid, asked.turns)
            for arm in laid.values():
                arm.free()
            for name, of in found[key].items():
                bits = "" if of["same_bits"] else "  OTHER BITS"
                print(f"  {of['microseconds']:9.2f}  {of['ratio']:.3f}  {name}{bits}", flush=True)
            if asked.json:
                asked.json.write_text(json.dumps(found, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
