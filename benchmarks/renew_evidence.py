"""Everything that is to be measured of Kimi K3 on one GPU, one command after the other, within the minutes that there are.

    fasttrack record kimi_k3 --table --hardware h200 -o packs            # where Triton can record; no GPU needed
    python benchmarks/renew_evidence.py packs --out renewed --minutes 25
    python benchmarks/renew_evidence.py packs --out renewed --only 'grid-*'

Run it in the tree that the evidence is to be about: results go into its models/kimi_k3. First the judge on what the dispatch
tables name, since its times go into those tables, on which everything after it then rests.

Parts of a group that do not time anything run side by side, whatever is timed runs alone. A part that is done is not run again:
the same command goes on with what is left. Each has a limit of its own; one that is stopped or fails is told, with the end of
its log, and the next begins. After every part, what is there is packed into OUT/evidence.tar.gz, so that a machine that is
taken away costs one part at most.
"""

import argparse
import fnmatch
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODEL = HERE.parent / "models/kimi_k3"
FASTTRACK = (sys.executable, "-m", "fasttrack")
GRACE = 20  # seconds to write down what there is
KDA_CELLS = ("tp8-kda_moe-r{rows}", (1, 8, 16, 2, 4, 32, 64)), ("tp16-kda_moe-r{rows}", (1, 8, 2, 4, 16, 32, 64))


@dataclass(frozen=True)
class Part:
    """One command. `seconds`: the longest that it may take; `done`: exit codes of one that did all that it was asked for."""

    name: str
    command: tuple[str, ...]
    seconds: float
    done: tuple[int, ...] = (0,)


def groups(packs: Path) -> Iterator[tuple[Part, ...]]:
    """What runs side by side, group after group."""
    yield (Part("confirm", (*FASTTRACK, "confirm", "kimi_k3", "--device", "gpu", "--pack", str(packs), "-o", str(MODEL)), 480),)
    numerics = (*FASTTRACK, "validate", "kimi_k3", "--stage", "numerics", "--device", "cuda", "--jobs", "6")
    nano = ("--tokens", "64", "--steps", "1000000", "--context", "131072")
    layers = ("--layers", "0,1,3", "--tp", "8", "--tokens", "16", "--steps", "1000", "--context", "4096")
    yield (
        Part("numerics-nano", (*numerics, *nano, "-o", str(MODEL / "evidence/numerics/h200")), 400),
        Part("numerics-layers", (*numerics, *layers, "-o", str(MODEL / "evidence/numerics/h200-layers")), 400, (0, 3)),
        Part("served", (sys.executable, "-m", "pytest", "-q", "-m", "gpu", str(HERE.parent / "tests/fasttrack/serving")), 240),
    )
    yield from ((_cell(pattern.format(rows=rows)),) for pattern, every in KDA_CELLS for rows in every)
    for cell in ("tp8-mla_moe-r1-c*", "tp16-mla_moe-r1-c1024", "tp16-step-*", "tp8-mla_moe-r8-c*", "tp8-kda_moe-r*-v8"):
        yield (_cell(cell),)


def _cell(pattern: str) -> Part:
    command = (*FASTTRACK, "grid", "run", "kimi_k3", "--hardware", "h200", "--quads", "8", "--cell", pattern)
    return Part(f"grid-{pattern.replace('*', 'all')}", command, 60 if "*" not in pattern else 150)


def run(parts: Sequence[Part], logs: Path, ends: float) -> dict[Part, int | None]:
    """Part -> its exit code, or None where it was stopped."""
    running = {}
    for part in parts:
        log = (logs / f"{part.name}.log").open("w")
        # A group of its own: a part that is stopped takes its workers along.
        process = subprocess.Popen(part.command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        running[part] = (process, min(time.monotonic() + part.seconds, ends))
    said = {}
    while running:
        time.sleep(0.2)
        for part, (process, limit) in list(running.items()):
            code = process.poll()
            if code is None and time.monotonic() < limit:
                continue
            if code is None:
                os.killpg(process.pid, signal.SIGINT)
                try:
                    process.wait(GRACE)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            said[part] = code
            del running[part]
    return said


def pack_up(out: Path) -> None:
    """OUT/evidence.tar.gz with all that is there, replaced as a whole."""
    made = out / ".evidence.tar.gz"
    with tarfile.open(made, "w:gz") as tar:
        for name in ("dispatch", "evidence"):
            tar.add(MODEL / name, f"models/kimi_k3/{name}")
        for name in ("logs", "done"):
            tar.add(out / name, name)
    made.replace(out / "evidence.tar.gz")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packs", type=Path, help="what `fasttrack record --table` wrote")
    parser.add_argument("--out", type=Path, required=True, help="where logs and the packed file go")
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--only", action="append", metavar="PART", help="these alone, * and ? allowed; may be repeated")
    parser.add_argument("--list", action="store_true", help="name the parts and run none")
    chosen = parser.parse_args()
    out = chosen.out.resolve()
    for name in ("logs", "done"):
        (out / name).mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + 60 * chosen.minutes
    for group in groups(chosen.packs.resolve()):
        parts = [
            part for part in group
            if not (out / "done" / part.name).exists()
            and (not chosen.only or any(fnmatch.fnmatch(part.name, pattern) for pattern in chosen.only))
        ]  # fmt: skip
        if chosen.list:
            print(*(part.name for part in parts), sep="\n")
            continue
        if not parts:
            continue
        if time.monotonic() > ends:
            print(f"no time left for {', '.join(part.name for part in parts)}")
            continue
        began = time.monotonic()
        for part, code in run(parts, out / "logs", ends).items():
            what = "stopped at its limit" if code is None else f"exit {code}"
            print(f"{part.name}: {what}, {time.monotonic() - began:.1f} s", flush=True)
            if code in part.done:
                (out / "done" / part.name).touch()
            else:
                print(*(out / "logs" / f"{part.name}.log").read_text(errors="replace").splitlines()[-15:], sep="\n  ")
        pack_up(out)


if __name__ == "__main__":
    main()
