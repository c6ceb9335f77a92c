"""Everything that is to be measured of Kimi K3 on one GPU, one command after the other, within the minutes that there are.

    fasttrack record kimi_k3 --table --hardware h200 -o packs            # where Triton can record; no GPU needed
    python benchmarks/renew_evidence.py packs --out renewed --minutes 25
    python benchmarks/renew_evidence.py packs --out renewed --only 'grid-*'
    rm -r models/kimi_k3/evidence/numerics/h200*                # then, where the tree is that is committed:
    for file in renewed/*.tar.gz; do tar xzf $file; done        # (`tar xzf renewed/evidence.tar.gz --directory renewed logs done`
                                                                # to go on elsewhere)

Run it in the tree that the evidence is to be about: results go into its models/kimi_k3. First the judge on what the dispatch
tables name, since its times go into those tables, on which everything after it then rests.

Parts of a group that do not time anything run side by side, whatever is timed runs alone. A part that is done is not run again:
the same command goes on with what is left. Each has a limit of its own; one that is stopped or fails is told, with the end of
its log, and the next begins. After every group, what is there is packed: records of a part into OUT/PART.tar.gz, all else into
OUT/evidence.tar.gz. So a machine that is taken away costs a group at most, and no file is larger than what one part leaves.
"""

import argparse
import contextlib
import fnmatch
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fasttrack_validation.records import digest_files

HERE = Path(__file__).resolve().parent
MODEL = HERE.parent / "models/kimi_k3"
FASTTRACK = (sys.executable, "-m", "fasttrack")
GRACE = 20  # seconds to write down what there is
VERDICT = "verdict.json"
OTHER = "holds a run of another subject"  # what the ladder says of records of other sources
CELLS = (
    ("marks", ("tp8-kda_moe-r1", "tp8-kda_moe-r8", "tp8-kda_moe-r16", "tp8-kda_moe-r64", "tp16-kda_moe-r1", "tp8-kda_moe-r8-v8")),
    ("step", ("tp16-step-r1-c1024",)),
    ("kda", ("tp*-kda_moe-*",)),
    ("mla", ("tp*-mla_moe-r*-c1024", "tp*-mla_moe-r?-c*")),
    ("rest", ("*",)),
)
"""What is measured of the grid, the most telling first. A cell that is kept is not measured again."""
CELLS_SECONDS = 3600


@dataclass(frozen=True)
class Part:
    """One command. `seconds`: the longest that it may take; `done`: exit codes of one that did all that it was asked for.
    `records`: a directory that it fills and goes on with. It is done when its `verdict.json` is there, which is kept beside it; what
    is there of other sources is thrown away."""

    name: str
    command: tuple[str, ...]
    seconds: float
    done: tuple[int, ...] = (0,)
    records: Path | None = None


def groups(packs: Path) -> Iterator[tuple[Part, ...]]:
    """What runs side by side, group after group."""
    yield (Part("confirm", (*FASTTRACK, "confirm", "kimi_k3", "--device", "gpu", "--pack", str(packs), "-o", str(MODEL)), 480),)
    numerics = (*FASTTRACK, "validate", "kimi_k3", "--stage", "numerics", "--device", "cuda", "--jobs", "6")
    nano = ("--tokens", "64", "--steps", "1000000", "--context", "131072", "--context", "1048576")
    layers = ("--layers", "0,1,3", "--tp", "8", "--tokens", "16", "--steps", "1000", "--context", "4096")
    yield (
        _ladder("numerics-nano", numerics, nano, "h200"),
        _ladder("numerics-layers", numerics, layers, "h200-layers"),
        Part("served", (sys.executable, "-m", "pytest", "-q", "-m", "gpu", str(HERE.parent / "tests/fasttrack/serving")), 240),
    )
    for name, patterns in CELLS:
        chosen = (word for pattern in patterns for word in ("--cell", pattern))
        command = (*FASTTRACK, "grid", "run", "kimi_k3", "--hardware", "h200", "--quads", "8", *chosen)
        yield (Part(f"grid-{name}", command, CELLS_SECONDS, (0, 1)),)


def _ladder(name: str, numerics: Sequence[str], settings: Sequence[str], records: str) -> Part:
    folder = MODEL / "evidence/numerics" / records
    # All rungs ran, whatever they say; that of layers is inconclusive where tokens are few.
    return Part(name, (*numerics, *settings, "-o", str(folder)), 1200, (0, 1, 3), folder)


def run(parts: Sequence[Part], logs: Path, ends: float) -> dict[Part, int | None]:
    """Part -> its exit code, or None where it was stopped."""
    running, said, emptied = {}, {}, set()

    def begin(part: Part) -> None:
        if part.records:
            (part.records / VERDICT).unlink(missing_ok=True)
        with (logs / f"{part.name}.log").open("w") as log:
            # A group of its own: a part that is stopped takes its workers along.
            process = subprocess.Popen(part.command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        running[part] = (process, min(time.monotonic() + part.seconds, ends))

    for part in parts:
        begin(part)
    while running:
        time.sleep(0.2)
        for part, (process, limit) in list(running.items()):
            code = process.poll()
            if code is None and time.monotonic() < limit:
                continue
            if code is None:
                _signalled(process, signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE)
            _signalled(process, signal.SIGKILL)  # what it left behind must not run beside what is timed next
            process.wait()
            del running[part]
            if code and part.records and part not in emptied and OTHER in (logs / f"{part.name}.log").read_text(errors="replace"):
                emptied.add(part)
                shutil.rmtree(part.records)
                begin(part)
                continue
            said[part] = code
    return said


def _signalled(process: subprocess.Popen, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def sources() -> str:
    """SHA-256 (hex) of everything that a figure may be about, but for the dispatch tables: the first part writes into them."""
    root, kinds = HERE.parent, (".py", ".toml", ".cu", ".cuh")
    files = (path for name in ("fasttrack", "validation", "models") for path in (root / name).rglob("*") if path.suffix in kinds)
    return digest_files({
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in files if not {"dispatch", "evidence"} & set(path.relative_to(root).parts)
    })  # fmt: skip


def pack_up(out: Path, parts: Sequence[Part]) -> None:
    """OUT/evidence.tar.gz, and a file for the records of each of `parts` that has some."""
    numerics = "models/kimi_k3/evidence/numerics"
    with _packed(out / "evidence.tar.gz") as tar:
        for name in ("dispatch", "evidence"):
            tar.add(MODEL / name, f"models/kimi_k3/{name}", filter=lambda member: None if member.name == numerics else member)
        for name in ("logs", "done"):
            tar.add(out / name, name)
    for part in parts:
        if part.records is None:
            continue
        with _packed(out / f"{part.name}.tar.gz") as tar:
            for path in (part.records, part.records.with_suffix(".json")):
                if path.exists():
                    tar.add(path, f"{numerics}/{path.name}")


@contextlib.contextmanager
def _packed(file: Path) -> Iterator[tarfile.TarFile]:
    """A file that is replaced as a whole."""
    made = file.with_name(f".{file.name}")
    with tarfile.open(made, "w:gz") as tar:
        yield tar
    made.replace(file)


def _is(file: Path, text: str) -> bool:
    return file.exists() and file.read_text() == text


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
    about = sources()
    ends = time.monotonic() + 60 * chosen.minutes
    for group in groups(chosen.packs.resolve()):
        parts = [
            part for part in group
            if not _is(out / "done" / part.name, about)
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
            finished = code in part.done
            if part.records:
                finished = finished and (part.records / VERDICT).exists()
                part.records.with_suffix(".json").unlink(missing_ok=True)  # of records that were there before
            if finished:
                (out / "done" / part.name).write_text(about)
                if part.records:
                    (part.records / VERDICT).replace(part.records.with_suffix(".json"))
            if code != 0:
                print(*(out / "logs" / f"{part.name}.log").read_text(errors="replace").splitlines()[-15:], sep="\n  ")
        pack_up(out, parts)


if __name__ == "__main__":
    main()
