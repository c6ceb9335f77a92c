"""The numerics stage in process: runs what is not there yet, keeps all of it, and judges what is kept."""

import shutil
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ...durable import held
from ...errors import UserError
from .bench import Bench, Stopped
from .cards import CPU, CUDA
from .pieces import LONG_PIECE, OPS, Job, Say, plan_material
from .plan import works
from .scenario import RungName
from .verdict import LONG, MANIFEST, OP, VERDICT, StageVerdict, Subject, judge, subject_of, write


class Stage:
    """One run in a directory: its pieces side by side, each bench a process of its own."""

    def __init__(self, job: Job, *, jobs: int = 1) -> None:
        self.job, self._jobs = job, jobs
        self._stop = threading.Event()

    def run(self, say: Say = lambda piece, done, of: None) -> StageVerdict:
        """Everything that is not there yet; then the verdict, which is written beside the records."""
        out = self.job.out
        out.mkdir(parents=True, exist_ok=True)
        with alone(out):
            return self._run(say)

    def _run(self, say: Say) -> StageVerdict:
        out = self.job.out
        _claim(out, self.job.subject)
        _tidy(out)
        lanes = [(benches, deque(pieces)) for benches, pieces in self._lanes() if pieces]
        failures: list[Exception] = []
        with ThreadPoolExecutor(sum(benches for benches, _ in lanes) or 1) as pool:
            futures = [
                pool.submit(self._work, pieces, say, failures) for benches, pieces in lanes for _ in range(benches)
            ]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                # Processes end, wherever they are: what is written down is gone on with.
                self._stop.set()
                raise
        if failures:
            raise failures[0]
        verdict = judge(out)
        write(out / VERDICT, verdict.canonical_json() + "\n")
        return verdict

    def _lanes(self) -> list[tuple[int, list[str]]]:
        """(processes, pieces that they take in turn) of what is not kept yet."""
        settings, out = self.job.subject.settings, self.job.out
        units = [work.unit.key for work in works(settings, plan_material())]
        units = [key for key in units if not (out / f"{key}.jsonl.gz").exists()]
        others = []
        long = settings.candidate != "specialised" or settings.device == CUDA
        if RungName.LONG_CONTEXT in settings.rungs and long and not (out / LONG).exists():
            others.append(LONG_PIECE)
        if RungName.OP in settings.rungs and not (out / OP).exists():
            others.append(OPS)
        if self.job.device == CPU:
            return [(min(self._jobs, len(others + units)), others + units)]
        # A GPU holds the weights of all paths once. Ops and what is long bring their own.
        return [(1, units), *((1, [other]) for other in others)]

    def _work(self, pieces: deque[str], say: Say, failures: list[Exception]) -> None:
        """Takes pieces until there are none. What fails does not take with it what runs beside it."""
        with Bench(self.job) as bench:
            while pieces and not self._stop.is_set():
                piece = _next(pieces)
                try:
                    if piece is not None:
                        bench.run(piece, say, self._stop.is_set)
                except Stopped:
                    return
                except Exception as error:
                    failures.append(error)
                    bench.restart()


def _next(pieces: deque[str]) -> str | None:
    try:
        return pieces.popleft()
    except IndexError:  # another bench took the last one
        return None


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Holds a run's directory. UserError where another process does."""
    with ExitStack() as stack:
        try:
            stack.enter_context(held(out))
        except BlockingIOError as error:
            raise UserError(f"another process runs the stage in {out}", "wait for it, or give another --out") from error
        yield


def _tidy(out: Path) -> None:
    """Removes what pieces were gone on with whose records are whole: a stop came in between."""
    for finished in out.glob("*.jsonl.gz"):
        finished.with_suffix("").unlink(missing_ok=True)
        shutil.rmtree(out / finished.name.replace(".jsonl.gz", ".states"), ignore_errors=True)


_SOURCES = {
    "harness": "harness (the sources of what runs and judges)", "candidate": "candidate (the model directory's sources)",
}  # fmt: skip


def _claim(out: Path, subject: Subject) -> None:
    """Marks the directory as this subject's. UserError where it is another one's."""
    file = out / MANIFEST
    if file.exists():
        if (other := subject_of(out)) != subject:
            differing = [name for name, value in subject if getattr(other, name) != value]
            said = ", ".join(_SOURCES.get(name, name) for name in differing)
            said += " differ"
            changed = [
                f"{name} is {getattr(other.settings, name)}, not {value}"
                for name, value in subject.settings if getattr(other.settings, name) != value
            ]  # fmt: skip
            if changed:
                said += f": {', '.join(changed)}"
            how = "give another --out, or --fresh to begin anew"
            raise UserError(f"{out} holds a run of another subject ({said})", how)
        return
    write(file, subject.canonical_json() + "\n")
