"""Does a judge that rules for hours grow? Memory and open files over many verdicts on the toy op.

    python benchmarks/judge_leaks.py [--verdicts 200]
    python benchmarks/judge_leaks.py --device fake --warm 2700 --verdicts 7500
    python benchmarks/judge_leaks.py --device gpu --packs DIRECTORY    # of the toy op: tests/adversarial/samples/packs.py

With `--device fake` every verdict is a ruling on a record by a judge that holds a device: the GPU path with its worker,
sessions and slots, on host memory. One verdict in twenty ends with a fault, after which the worker is replaced.

With `--device gpu` the records in the directory are ruled on in turns, launched on a GPU and checked; not timed, and without
the sanitizers, whose processes are others each time.

Prints the slope per verdict of what this process holds (objects of Python's, bytes of malloc's), of its resident memory,
open files and threads, and of the latter three of its sandboxes' processes: Theil-Sen (the median of the slopes between
all pairs), with a 95 % interval from the ranks of Kendall's S. A judge without a leak has zero inside of each interval. A
verdict takes one to two seconds, on the fake device about an eighth of one.

Resident memory is a high-water mark: malloc seldom gives back a page that was touched once, and Python's own allocator keeps
an arena of which one block is used. So this process starts itself again with PYTHONMALLOC=malloc, which puts everything with
malloc, and with one arena for all threads, whose free pages are given back before each look: what is resident then is in use. Of its children's that cannot be
done, theirs only ever rises, and what matters is that it levels off. Three things that raise it are no leak. Python collects
cycles of its oldest generation only when a quarter as many objects are new, here every few hundred verdicts: so each look
collects first. It keeps looked-up names. And a list of samples grows with every verdict: so they go into memory that was touched before the first. Tables of
the process that double, such as the one of interned strings, do so ever more rarely: a long run needs a long warm-up.
"""

import argparse
import ctypes
import gc
import itertools
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

SUPPORT = Path(__file__).resolve().parents[1] / "tests/support"
Z = 1.959964  # of a 95 % interval
ALLOCATION = {"PYTHONMALLOC": "malloc", "MALLOC_ARENA_MAX": "1"}
MOST_POINTS = 2000


def theil_sen(values: list[float]) -> tuple[float, float, float]:
    """Slope per step, and the ends of its 95 % interval (Sen 1968; no correction for ties, which widens it)."""
    y = np.asarray(values, float)
    n = len(y)
    first, second = np.triu_indices(n, 1)
    slopes = np.sort((y[second] - y[first]) / (second - first))
    half = Z * np.sqrt(n * (n - 1) * (2 * n + 5) / 18.0)
    low, high = (len(slopes) - half) / 2, (len(slopes) + half) / 2
    bound = lambda index: float(slopes[int(np.clip(index, 0, len(slopes) - 1))])
    return float(np.median(slopes)), bound(np.floor(low)), bound(np.ceil(high))


class _MallocInfo(ctypes.Structure):
    """struct mallinfo2 of glibc 2.33 and newer."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    ]


def held() -> dict[str, int]:
    """Objects that the collector sees, and bytes that malloc has given out and not got back: all of Python's among them."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _MallocInfo
    info = mallinfo()
    return {"objects": len(gc.get_objects()), "malloc_bytes": info.uordblks + info.hblkhd}


def usage(pid: int) -> dict[str, int]:
    """Resident KiB, open files and threads of a process."""
    try:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    except FileNotFoundError:
        status = {}
    if "VmRSS" not in status:  # it has ended since it was listed
        return {"memory_kib": 0, "files": 0, "threads": 0}
    return {
        "memory_kib": int(status["VmRSS"].split()[0]),
        "files": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": int(status["Threads"]),
    }


def children(pid: int) -> list[int]:
    """Every descendant of a process."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *children(child)]
    return found


def sample() -> dict[str, int]:
    """This process's usage, and its descendants' summed."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what is free is nobody's, wherever malloc keeps it
    # CPython keeps up to 4096 attribute names that were looked up, strings made for the purpose among them: it fills for
    # thousands of verdicts, and is no leak.
    sys._clear_type_cache()
    own = usage(os.getpid())
    below = [usage(pid) for pid in children(os.getpid())]
    return held() | own | {f"sandbox_{name}": sum(one[name] for one in below) for name in own} | {"processes": len(below)}


def mappings() -> Counter[str]:
    """Resident KiB of this process by what is mapped: a file, or the kernel's name for it; all that has none is one."""
    found: Counter[str] = Counter()
    name = ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split(maxsplit=5)
        if not first.endswith(":"):
            name = rest[4] if len(rest) == 5 else "[anonymous]"
        elif first == "Rss:":
            found[name] += int(rest[0])
    return found


class Series:
    """Room for so many samples, all of it touched, so that keeping them takes no more memory."""

    def __init__(self, samples: int) -> None:
        gc.collect()
        gc.freeze()  # what is there by now stays: collecting need not look at it again
        names = tuple(sample())
        self._values = {name: np.full(samples, -1.0) for name in names}
        self._taken = 0
        self._mapped = mappings()

    def grown(self) -> dict[str, int]:
        """Resident KiB by which mappings have changed since the beginning."""
        now = mappings()
        return {name: now[name] - self._mapped[name] for name in now | self._mapped if now[name] != self._mapped[name]}

    def take(self) -> None:
        """Keeps one sample more."""
        for name, value in sample().items():
            self._values[name][self._taken] = value
        self._taken += 1

    def values(self) -> dict[str, list[float]]:
        """What was measured -> its samples in order."""
        return {name: values[: self._taken].tolist() for name, values in self._values.items()}


def measure(verdicts: int, warm: int = 5) -> Series:
    """Usage after each of `verdicts` verdicts, after `warm` that do not count (caches fill, libraries load)."""
    sys.path.insert(0, str(SUPPORT))
    from fasttrack_validation.judge.judge import Judge
    from fasttrack_validation.judge.verdict import Status
    from judging import candidate, model_of
    from toy_contract import KERNEL, Toy

    wrong = KERNEL.replace("* tl.load(w + columns)", "* tl.load(w + columns) * 2")
    with tempfile.TemporaryDirectory() as cache, Judge(model_of(Toy()), cache=Path(cache)) as judge:
        for number in range(warm + verdicts):
            text, expected = ((KERNEL, Status.ACCEPTED), (wrong, Status.REJECTED))[number % 2]
            found = judge.screen(candidate(text, "accumulate"))
            if found.status is not expected:
                raise SystemExit(f"verdict {number}: {found.status} ({found.reason}: {found.message})")
            if number == warm - 1:
                series = Series(verdicts)
            elif number >= warm:
                series.take()
    return series


def fake_verdicts() -> Iterator[None]:
    """One ruling on a record after another, on the fake device: accepted, wrong, and now and then a fault."""
    sys.path.insert(0, str(SUPPORT))
    from fake_kernels import TOY
    from fasttrack_validation.judge import judge as judging
    from fasttrack_validation.judge.replay.device import Device
    from fasttrack_validation.judge.replay.executor import codes_for
    from fasttrack_validation.judge.replay.fake import CODE_MARK
    from judging import candidate, model_of
    from toy_contract import KERNEL, Toy

    wrong = TOY.replace("page + values * weights", "page + 2 * values * weights")
    fault = TOY.replace("result[:] = bf16(page)", "call.array(out + (1 << 40), 'u2', 64)")
    with tempfile.TemporaryDirectory() as cache, judging.Judge(model_of(Toy()), cache=Path(cache), device="cpu") as one:
        record = one.record(candidate(KERNEL, "accumulate"))
    with Device("fake") as device, judging.Judge(model_of(Toy()), device=device) as judge:
        for number in itertools.count():
            text, expected = ((TOY, "accepted"), (wrong, "rejected"))[number % 2]
            if number % 20 == 19:
                text = fault

            def codes(found, capability, text=text):
                fake = {"cubin": CODE_MARK + text.encode()}
                return {key: code.model_copy(update=fake) for key, code in codes_for(found, capability).items()}

            judging.codes_for = codes
            found = judge.rule(record)
            if found.status != expected:
                raise SystemExit(f"verdict {number}: {found.status} ({found.reason}: {found.message})")
            yield


def gpu_verdicts(packs: Path) -> Iterator[None]:
    """One ruling on a GPU after another, on the records of a directory in turns; each must go as it went the first time."""
    sys.path.insert(0, str(SUPPORT))
    from fasttrack_validation.judge import pack_file
    from fasttrack_validation.judge.judge import Judge
    from fasttrack_validation.judge.replay import sanitizer
    from judging import model_of
    from toy_contract import Toy

    sanitizer.find = lambda: None
    records = [pack_file.read(path) for path in sorted(packs.glob("*.pack"))]
    first: dict[str, str] = {}
    with Judge(model_of(Toy()), device="gpu", timed=False) as judge:
        for record in itertools.cycle(records):
            found = judge.rule(record)
            if first.setdefault(record.digest(), found.status) != found.status:
                raise SystemExit(f"{found.status} ({found.reason}: {found.message}), was {first[record.digest()]}")
            yield


def measure_device(
    ruled: Iterator[None], verdicts: int, seconds: float = float("inf"), warm: int = 200
) -> Series:
    """As `measure`, with a judge that holds a device; ends after so many seconds at the latest."""
    deadline = time.monotonic() + seconds
    for _ in itertools.islice(ruled, warm):
        pass
    series = Series(verdicts)
    for _ in itertools.islice(ruled, verdicts):
        series.take()
        if time.monotonic() > deadline:
            break
    return series


def main() -> None:
    if not ALLOCATION.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ALLOCATION)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verdicts", type=int, default=200)
    parser.add_argument("--device", choices=("interpreter", "fake", "gpu"), default="interpreter")
    parser.add_argument("--packs", type=Path, help="with --device gpu: records of the toy op")
    parser.add_argument("--warm", type=int, help="verdicts before the first that counts (5, with --device fake 200, gpu 20)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="with a device: stop after so many")
    asked = parser.parse_args()
    if asked.device == "gpu" and asked.packs is None:
        parser.error("--device gpu needs --packs DIRECTORY")
    if asked.device == "fake":
        series = measure_device(fake_verdicts(), asked.verdicts, asked.seconds, asked.warm or 200)
    elif asked.device == "gpu":
        series = measure_device(gpu_verdicts(asked.packs), asked.verdicts, asked.seconds, asked.warm or 20)
    else:
        series = measure(asked.verdicts, asked.warm or 5)
    grown = series.grown()
    found = series.values()
    print(json.dumps({"device": asked.device, "verdicts": len(found["files"]), "mappings_grown_kib": grown}))
    for name, values in found.items():
        # Every pair counts: of a long series, every so many verdicts are enough.
        step = -(-len(values) // MOST_POINTS)
        slope, low, high = (value / step for value in theil_sen(values[::step]))
        leak = "grows" if low > 0 else "no trend" if low <= 0 <= high else "shrinks"
        print(json.dumps({"what": name, "first": values[0], "last": values[-1], "slope": slope, "interval": [low, high],
                          "verdict": leak}))  # fmt: skip


if __name__ == "__main__":
    main()
