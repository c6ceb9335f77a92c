"""Verdicts a minute on `kda_decode` at TP8 and one row: our judge, and public evaluators where they are installed.

    python benchmarks/judging_speed.py [CANDIDATES]

The same kernel in CANDIDATES (3) configurations, so that each is compiled afresh; all caches are empty. Start-up (the
judge's sandboxes) is timed apart. What is not installed, or cannot run here, is said to be not measured. The figures
are of unlike work: our judge also compiles for a second target, runs unseen layouts and every distribution, and brings
a batch of four along to tell rows apart; the others run three to five trials on given values.
"""

import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch

from fasttrack_validation import contracts
from fasttrack_validation.contracts.trace import files
from fasttrack_validation.contracts.trace.export import OpExport, put, write
from fasttrack_validation.contracts.trace.solution import solution
from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.judge.judge import Judge

KERNEL = Path(__file__).parent.parent / "models/kimi_k3/kernels/kda_decode.py"
OP, TP, WORKLOAD = "kda_decode", 8, "tp8-b1"


def configurations(count: int) -> list[dict]:
    """Different ones first to last: structure, then tile, then warps."""
    grid = itertools.product((4, 8, 2), (32, 64, 128, 16), ("fused", "split"))
    return [{"structure": s, "block_v": b, "num_warps": w} for w, b, s in itertools.islice(grid, count)]


def rate(count: int, seconds: float) -> str:
    """Verdicts a minute."""
    return f"{count} verdicts in {seconds:.1f} s, {60 * count / seconds:.2f} a minute"


def fasttrack(candidates: Sequence[Candidate]) -> str:
    """Our judge, with what each part took a verdict."""
    start = time.perf_counter()
    with Judge(contracts.load("kimi_k3")) as judge:
        ready = time.perf_counter()
        verdicts = [judge.confirm(candidate, [WORKLOAD]) for candidate in candidates]
        end = time.perf_counter()
    parts = {part: sum(verdict.seconds.get(part, 0.0) for verdict in verdicts) for part in verdicts[0].seconds}
    shown = ", ".join(f"{part} {seconds / len(verdicts):.2f}" for part, seconds in parts.items())
    outcomes = ", ".join(verdict.status for verdict in verdicts)
    return (
        f"{rate(len(verdicts), end - ready)} on {verdicts[0].executor} ({outcomes})\n"
        f"  seconds a verdict: {shown}; start-up, once: {ready - start:.1f}"
    )


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
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    text = KERNEL.read_text("utf-8")
    sources = {KERNEL.name: text}
    candidates = [Candidate(op=OP, entry=KERNEL.name, files=sources, config=one) for one in configurations(count)]
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        os.environ["TRITON_CACHE_DIR"], os.environ["FIB_CACHE_PATH"] = str(root / "triton"), str(root / "bench")
        export = OpExport(contracts.load("kimi_k3").op(OP), TP)
        write(export, root, workloads=(WORKLOAD,))
        for number, candidate in enumerate(candidates):
            kernel = solution(export, f"kernel{number}", candidate.files, candidate.entry, candidate.config)
            put(root / "solutions" / f"{kernel.name}.json", files.to_json(kernel))
        print(f"fasttrack: {fasttrack(candidates)}", flush=True)
        print(f"flashinfer-bench: {flashinfer_bench(root)}", flush=True)
        os.environ["TRITON_CACHE_DIR"] = str(root / "triton again")
        print(f"KernelBench: {kernelbench(root, export)}", flush=True)


if __name__ == "__main__":
    main()
