"""Verdicts a minute on `kda_decode` at TP8 and one row: our judge, and public evaluators where they are installed.

    python benchmarks/judging_speed.py [--candidates 3] [--seconds 60] [--json FILE]
    python benchmarks/judging_speed.py --record DIRECTORY     # where Triton can be recorded: packs, and nothing else
    python benchmarks/judging_speed.py --packs DIRECTORY      # on a GPU machine, with the same checkout: rules on them

The same kernel in so many configurations, so that each is compiled afresh; all caches are empty. Start-up (sandboxes,
worker, stock path) is timed apart. Our judge begins no verdict after so many seconds: the sanitizers alone may take a
minute. With --packs, recording and compiling took place elsewhere: those seconds are the other machine's, shown beside,
and counted once without and once with them. What is not installed, or cannot run here, is said to be not measured. The
figures are of unlike work: our judge also compiles for a second target, runs unseen layouts and every distribution, brings
a batch of four along to tell rows apart, runs four sanitizers and times against the stock path; the others run three to
five trials on given values and time the reference.
"""

import argparse
import itertools
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch

from fasttrack_validation import contracts
from fasttrack_validation.contracts.trace import files
from fasttrack_validation.contracts.trace.export import OpExport, put, write
from fasttrack_validation.contracts.trace.solution import solution
from fasttrack_validation.judge import pack_file
from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.judge.judge import Judge
from fasttrack_validation.judge.replay.choose import choose
from fasttrack_validation.judge.replay.device import Device
from fasttrack_validation.judge.verdict import Outcome, Verdict

KERNEL = Path(__file__).parent.parent / "models/kimi_k3/kernels/kda_decode.py"
OP, TP, WORKLOAD = "kda_decode", 8, "tp8-b1"


def configurations(count: int) -> list[dict]:
    """Different ones first to last: structure, then tile, then warps."""
    grid = itertools.product((4, 8, 2), (32, 64, 128, 16), ("fused", "split"))
    return [{"structure": s, "block_v": b, "num_warps": w} for w, b, s in itertools.islice(grid, count)]


ELSEWHERE = ("record", "compile")


def rate(count: int, seconds: float) -> str:
    """Verdicts a minute."""
    return f"{count} verdicts in {seconds:.1f} s, {60 * count / seconds:.2f} a minute"


class Clocked(Device):
    """The device, with the seconds that each of its worker's commands took."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: Counter[str] = Counter()

    def call(self, command: str, request: dict, **options) -> dict:
        """As `Device.call`."""
        start = time.perf_counter()
        try:
            return super().call(command, request, **options)
        finally:
            self.seconds[command] += time.perf_counter() - start


def fasttrack(candidates: Sequence[Candidate], packs: Path | None, seconds: float) -> dict[str, object]:
    """Our judge, with what each part took a verdict; no verdict is begun after so many seconds."""
    device, why = choose("auto")
    if device is not None:
        device.close()
        device = Clocked()
    start = time.perf_counter()
    if device is not None:
        _ = device.facts  # starts its worker
    with Judge(contracts.load("kimi_k3"), device=device or "cpu") as judge:
        ready = time.perf_counter()
        verdicts: list[Verdict] = []
        for verdict in _verdicts(judge, candidates, packs):
            verdicts.append(verdict)
            if time.perf_counter() - ready > seconds:
                break
        spent = time.perf_counter() - ready
    if isinstance(device, Device):
        device.close()
    parts = {part: sum(one.seconds.get(part, 0.0) for one in verdicts) / len(verdicts) for part in verdicts[0].seconds}
    elsewhere = sum(one.seconds.get(part, 0.0) for one in verdicts for part in ELSEWHERE) if packs else 0.0
    return {
        "verdicts": len(verdicts), "seconds": spent, "a_minute": 60 * len(verdicts) / spent, "start_up": ready - start,
        "recorded_elsewhere_seconds": elsewhere, "a_minute_with_recording": 60 * len(verdicts) / (spent + elsewhere),
        "executor": verdicts[0].executor, "outcomes": [f"{one.status} {one.reason or ''}".strip() for one in verdicts],
        "checks_not_run": [f"{c.check}: {c.message}" for c in verdicts[0].checks if c.outcome is Outcome.NOT_RUN],
        "parts": parts, "without_a_gpu": why or None,
        "commands": {name: took / len(verdicts) for name, took in device.seconds.most_common()} if device else {},
    }  # fmt: skip


def _verdicts(judge: Judge, candidates: Sequence[Candidate], packs: Path | None) -> Iterator[Verdict]:
    if packs is None:
        yield from (judge.confirm(candidate, [WORKLOAD]) for candidate in candidates)
    else:
        for path in sorted(packs.glob("*.pack")):
            yield judge.rule(pack_file.read(path))


def record(candidates: Sequence[Candidate], packs: Path) -> None:
    """One pack for each candidate, as `Judge.confirm` would rule on it."""
    packs.mkdir(parents=True, exist_ok=True)
    with Judge(contracts.load("kimi_k3"), device="cpu") as judge:
        for number, candidate in enumerate(candidates):
            recorded = judge.record(candidate, [WORKLOAD])
            pack_file.write(recorded, packs / f"{number}.pack")
            print(f"{number}.pack: {recorded.seconds}", flush=True)


def told(found: dict[str, object]) -> str:
    """`fasttrack`'s findings in words."""
    shown = lambda parts: ", ".join(f"{part} {seconds:.2f}" for part, seconds in parts.items()) or "none"  # noqa: E731
    lines = [
        f"{rate(found['verdicts'], found['seconds'])} on {found['executor']} ({', '.join(found['outcomes'])})",
        f"seconds a verdict: {shown(found['parts'])}; start-up, once: {found['start_up']:.1f}",
        f"of these, the device's worker by command: {shown(found['commands'])}",
    ]
    if found["recorded_elsewhere_seconds"]:
        lines.append(f"with recording and compiling, elsewhere: {found['a_minute_with_recording']:.2f} a minute")
    lines += [f"not run: {check}" for check in found["checks_not_run"]]
    return "\n  ".join(lines)


def flashinfer_bench(root: Path) -> str:
    """FlashInfer-Bench's own run over the exported trace set, with its defaults."""
    if find_spec("flashinfer_bench") is None:
        return "not measured: not installed"
    if not torch.cuda.is_available():
        return f"not measured: {version('flashinfer-bench')} is installed, but it needs a CUDA GPU"
    from flashinfer_bench import Benchmark, TraceSet

    traces = TraceSet.from_path(str(root))
    start = time.perf_counter()
    benchmark = Benchmark(traces)
    ready = time.perf_counter()
    found = benchmark.run_all(dump_traces=False)
    end = time.perf_counter()
    benchmark.close()
    statuses = [trace.evaluation.status.value for traces in found.traces.values() for trace in traces]
    if not statuses:
        return "not measured: it gave no evaluation"
    return f"{rate(len(statuses), end - ready)} ({', '.join(statuses)}); start-up, once: {ready - start:.1f} s"


# KernelBench casts all inputs to one type and compares one tensor, so both models cast back (float32 holds every value
# of the op's inputs) and put their results end to end.
_TASK = """
import sys, torch
from safetensors.torch import load_file
sys.path.insert(0, {root!r})
FILES, INPUTS, OUTPUTS = {files!r}, {inputs!r}, {outputs!r}

def get_init_inputs():
    return []

def get_inputs():
    return [load_file(FILES[name][0])[FILES[name][1]].float() for name in INPUTS]

def typed(values):
    return [value.to(getattr(torch, dtype)) for value, dtype in zip(values, INPUTS.values())]

def joined(results):
    return torch.cat([result.float().flatten() for result in results])
"""
_MODEL = """
from reference import run

class Model(torch.nn.Module):
    def forward(self, *values):
        return joined(run(*typed(values)))
"""
_MODEL_NEW = """
from {package}.run import run

class ModelNew(torch.nn.Module):
    def forward(self, *values):
        values = typed(values)
        results = [torch.empty(shape, dtype=getattr(torch, dtype), device=values[0].device) for shape, dtype in OUTPUTS]
        run(*values, *results)
        return joined(results)
"""


def kernelbench_task(root: Path, export: OpExport) -> tuple[str, list[str]]:
    """The exported op as a task of KernelBench: text of the model, and of each solution's."""
    definition = files.read_definition(next((root / "definitions").rglob("*.json")))
    (workload,) = files.read_workloads(next((root / "workloads").rglob("*.jsonl")), definition)
    sizes = definition.sizes(workload.axes)
    put(root / "reference.py", definition.reference)
    head = _TASK.format(
        root=str(root),
        files={name: (str(root / at.path), at.tensor_key) for name, at in workload.inputs.items()},
        inputs={name: tensor.dtype for name, tensor in definition.inputs.items()},
        outputs=[([sizes[axis] for axis in tensor.shape], tensor.dtype) for tensor in definition.outputs.values()],
    )
    models = []
    for number, path in enumerate(sorted((root / "solutions").rglob("*.json"))):
        for source in json.loads(path.read_text())["sources"]:
            put(root / f"kernel{number}" / source["path"], source["content"])
        models.append(head + _MODEL_NEW.format(package=f"kernel{number}"))
    return head + _MODEL, models


def kernelbench(root: Path, export: OpExport) -> str:
    """KernelBench's evaluator on the same op, five trials and a hundred timings each, as its own scripts ask for."""
    if find_spec("kernelbench") is None:
        return "not measured: not installed"
    if not torch.cuda.is_available():
        return "not measured: it is installed, but it needs a CUDA GPU"
    from kernelbench.eval import eval_kernel_against_ref

    model, solutions = kernelbench_task(root, export)
    start = time.perf_counter()
    results = [
        eval_kernel_against_ref(
            model, text, num_correct_trials=5, num_perf_trials=100, measure_performance=True, backend="triton",
            precision=torch.float32, device=torch.device("cuda:0"),
        )
        for text in solutions
    ]  # fmt: skip
    outcomes = ", ".join("no result" if r is None else "correct" if r.correctness else "incorrect" for r in results)
    return f"{rate(len(results), time.perf_counter() - start)} ({outcomes})"


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0, help="begin no verdict of our judge's after so many")
    parser.add_argument("--record", type=Path, help="write packs here and end")
    parser.add_argument("--packs", type=Path, help="rule on these packs instead of recording")
    parser.add_argument("--json", type=Path, help="write what was found here as well")
    asked = parser.parse_args()
    sources = {KERNEL.name: KERNEL.read_text("utf-8")}
    candidates = [
        Candidate(op=OP, entry=KERNEL.name, files=sources, config=one) for one in configurations(asked.candidates)
    ]
    if asked.record:
        return record(candidates, asked.record)
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        os.environ["TRITON_CACHE_DIR"], os.environ["FIB_CACHE_PATH"] = str(root / "triton"), str(root / "bench")
        export = OpExport(contracts.load("kimi_k3").op(OP), TP)
        write(export, root, workloads=(WORKLOAD,))
        for number, candidate in enumerate(candidates):
            kernel = solution(export, f"kernel{number}", candidate.files, candidate.entry, candidate.config)
            put(root / "solutions" / f"{kernel.name}.json", files.to_json(kernel))
        found["flashinfer-bench"] = flashinfer_bench(root)
        print(f"flashinfer-bench: {found['flashinfer-bench']}", flush=True)
        os.environ["TRITON_CACHE_DIR"] = str(root / "triton again")
        found["KernelBench"] = kernelbench(root, export)
        print(f"KernelBench: {found['KernelBench']}", flush=True)
        found["fasttrack"] = fasttrack(candidates, asked.packs, asked.seconds)
        print(f"fasttrack: {told(found['fasttrack'])}", flush=True)
    if asked.json:
        put(asked.json, json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
