"""The ops of a layer's first half as one launch, on a GPU: held against their contract, then timed.

Imported by the scripts of the launches (`kda_front.py`, `mla_front.py`), each of which says what is its own as a
`Subject`. The contract is that of the part, with oracle, plain path and tolerances as the judge has them. Timed as a
CUDA graph that replays the launch on copies of weights and state several times the L2: medians, in microseconds per
launch, beside the time that the contract's bytes take at the read ceiling of the card. Self-reported figures for
tuning, no evidence.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import torch
from cuda_context import Context
from fasttrack_validation import contracts
from fasttrack_validation.contracts.base import TensorRole
from fasttrack_validation.numerics.calibrate import decide, measure
from fasttrack_validation.tensors import torch_dtype

READ_CEILING = 4.25e12
COPIES = 3
REPLAYS = 30


@dataclass(frozen=True)
class Subject:
    """One launch: its part of the op graph, its kernel's module, and what of it differs from the other's."""

    part: str
    kernel: ModuleType
    stages: tuple[str, ...]
    """What lies between two stamps of the kernel"""
    states: tuple[str, ...]
    """Tensors that a launch changes"""
    most_rows: int
    """Rows of one launch at most; of more, stages are not timed"""
    sized: Callable[[Mapping[str, int], int], dict[str, int]]
    """(axes, rows) -> the axes that follow from another number of rows"""
    drawn: Callable[[object, Mapping[str, int]], torch.Tensor | None]
    """(a tensor's spec, axes) -> its values for timing, or None: of the right scale will do"""
    cases: Callable[[argparse.Namespace], Iterable[tuple[str, Mapping[str, int]]]]
    """What is timed besides TP and rows: a label, and axes"""
    arguments: Callable[[argparse.ArgumentParser], None] = lambda parser: None


def workload_of(subject, op, tp, rows, changed):
    """A declared workload, or one of another row count, with other axes."""
    base = next(w for w in op.workloads() if w.axes["tp"] == tp and w.axes["rows"] >= rows)
    axes = dict(base.axes)
    if rows != axes["rows"]:
        axes["rows"] = rows
        for name in ("attn_res_norm_1_block_stride", "attn_res_norm_2_block_stride", "peer_stride"):
            axes[name] = rows * 7168
    axes |= changed
    return base.model_copy(update={"name": f"tp{tp}-r{rows}", "axes": axes | subject.sized(axes, rows)})


def place(op, workload, inputs, device="cuda"):
    """The part's tensors with the contract's strides; what the kernel writes holds NaN."""
    laid = {}
    for spec in op.tensors(workload):
        value = inputs.get(spec.name)
        dtype = torch_dtype(spec.dtype)
        storage = torch.zeros(max(spec.storage_elements, 1), dtype=dtype, device=device)
        laid[spec.name] = storage.as_strided(spec.shape, spec.strides)
        laid[spec.name].copy_(torch.full(spec.shape, float("nan")) if value is None else value)
    return laid


class Bound:
    """The kernel with everything it needs on the device."""

    def __init__(self, kernel, op, workload, inputs, context, config, device="cuda"):
        self.kernel, self.axes, self.context, self.config = kernel, workload.axes, context, config
        self.laid = place(op, workload, inputs, device)
        static = {spec.name: inputs[spec.name] for spec in op.tensors(workload) if spec.role is TensorRole.STATIC}
        prepared = kernel.prepare(context, SimpleNamespace(**static), self.axes, config)
        made = {name: tensor.to(device) for name, tensor in prepared.items()}
        for name, (shape, dtype) in kernel.scratch(self.axes, config).items():
            made[name] = torch.full(shape, float("nan"), dtype=dtype, device=device)
        for name, (shape, dtype, initial, _) in kernel.persistent(self.axes, config).items():
            made[name] = torch.full(shape, initial, dtype=dtype, device=device)
        self.buffers = SimpleNamespace(**self.laid, **made)

    def copy(self):
        """The same in memory of its own."""
        other = object.__new__(Bound)
        other.kernel, other.axes, other.context, other.config = self.kernel, self.axes, self.context, self.config
        other.laid = {}
        other.buffers = SimpleNamespace()
        for name, tensor in vars(self.buffers).items():
            fresh = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
            setattr(other.buffers, name, fresh.copy_(tensor))
        return other

    def __call__(self):
        self.kernel.launch(self.context, self.buffers, self.axes, self.config)


def check(subject, op, workload, context, config, distribution):
    """Ratios of the candidate's to the plain path's median error by tensor, and the messages of what fails."""
    inputs = op.make_inputs(workload, distribution, torch.seed() % 2**62)
    bound = Bound(subject.kernel, op, workload, inputs, context, config)
    bound()
    torch.cuda.synchronize()
    health = int(bound.buffers.cells[1])
    first = {name: bound.laid[name].clone() for name in op.produced}
    for name in subject.states:
        bound.laid[name].copy_(inputs[name])
    bound()
    torch.cuda.synchronize()
    unequal = [name for name in op.produced if not torch.equal(
        first[name].contiguous().view(torch.uint8), bound.laid[name].contiguous().view(torch.uint8))]  # fmt: skip
    oracle, plain = op.oracle(inputs, workload), op.plain(inputs, workload)
    faults, ratios = [], {}
    for comparison in op.comparisons:
        name = comparison.tensor
        got = first[name].cpu().contiguous()
        owners = [op.row_of(name, (i,) + (0,) * (got.dim() - 1), inputs) for i in range(len(got))]
        ruling = decide(comparison, [measure(comparison, oracle[name], plain[name], got, owners)])
        if ruling.decision != "pass":
            faults.append(ruling.message)
        if ruling.candidate and ruling.plain:
            ratios[name] = round(ruling.candidate.median / max(ruling.plain.median, 1e-30), 4)
    if unequal:
        faults.append(f"not reproducible: {unequal}")
    if health:
        faults.append(f"health word {health}")
    return ratios, faults


def random_inputs(subject, op, workload):
    """Values of the right scale, drawn quickly: for timing alone."""
    given = {}
    for spec in op.tensors(workload):
        if spec.role is TensorRole.OUTPUT:
            continue
        value = subject.drawn(spec, workload.axes)
        if value is None:
            scale = spec.shape[-1] ** -0.5 if spec.role is TensorRole.STATIC and len(spec.shape) > 1 else 0.5
            value = (torch.empty(spec.shape, device="cuda").normal_() * scale).to(torch_dtype(spec.dtype))
        given[spec.name] = value
    return given


def timed(subject, op, workload, context, config, replays=REPLAYS):
    """Median and least microseconds of a launch in a graph over cold copies."""
    inputs = random_inputs(subject, op, workload)
    first = Bound(subject.kernel, op, workload, inputs, context, config)
    calls = [first, *(first.copy() for _ in range(COPIES - 1))]
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(replays + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * start.elapsed_time(end) / len(calls))
    return statistics.median(times[3:]), min(times[3:]), calls


def stages(subject, op, workload, config, options):
    """Microseconds from one stamp to the next, the median over blocks and launches, and the spread of the first."""
    stamps = torch.zeros(160, 16, dtype=torch.int64, device="cuda")
    context = Context(options.blocks, constants={"STAMPS": 1} | options.extra, more=(stamps,), cubins=options.cubins)
    inputs = random_inputs(subject, op, workload)
    first = Bound(subject.kernel, op, workload, inputs, context, config)
    calls = [first, *(first.copy() for _ in range(COPIES - 1))]
    seen = []
    for number in range(4 * COPIES):
        calls[number % COPIES]()
        torch.cuda.synchronize()
        seen.append(stamps[: options.blocks, : len(subject.stages) + 1].clone().cpu())
    kept = torch.stack(seen[COPIES:]).double() / 1e3
    steps = kept.diff(dim=2).median(dim=1).values.median(dim=0).values.tolist()
    ends = (kept - kept[:, :, :1].amin(dim=1, keepdim=True)).amax(dim=1).median(dim=0).values.tolist()
    return {"steps": [round(x, 2) for x in steps], "latest": [round(x, 2) for x in ends]}


def compiled(subject, op, options):
    """Fills the directory of machine code with what the other options need."""
    for extra in ({}, {"STAMPS": 1}):
        context = Context(options.blocks, constants=extra | options.extra, cubins=options.compile, only_compile=True)
        rows_of = sorted({*options.rows, *(int(case.split(":")[1]) for case in options.check)})
        for tp, rows, (_, changed) in itertools.product(options.tp, rows_of, subject.cases(options)):
            workload = workload_of(subject, op, tp, rows, changed)
            configs = options.configs if rows in options.rows[:1] and not extra else options.configs[: options.staged]
            # Meta tensors have shapes and strides, which is all that a launch looks at.
            with torch.device("meta"):
                laid = {
                    spec.name: torch.empty_strided(spec.shape, spec.strides, dtype=torch_dtype(spec.dtype))
                    for spec in op.tensors(workload)
                }
                for config in configs:
                    made = subject.kernel.prepare(context, SimpleNamespace(**laid), workload.axes, config)
                    for kept in (subject.kernel.scratch, subject.kernel.persistent):
                        for name, (shape, dtype, *_) in kept(workload.axes, config).items():
                            made[name] = torch.empty(shape, dtype=dtype)
                    subject.kernel.launch(context, SimpleNamespace(**laid, **made), workload.axes, config)


def main(subject, description):
    """The script of one launch, with its command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", help="write all figures as JSON")
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--tp", type=int, nargs="+", default=[8, 16])
    parser.add_argument(
        "--check", nargs="*", default=["8:1", "8:4", "8:8", "16:1", "16:8"], help="tp:rows[:member:distribution]"
    )
    parser.add_argument("--configs", default=[subject.kernel.DEFAULT], type=json.loads,
                        help="JSON list; the first is checked, and timed at every row count")  # fmt: skip
    parser.add_argument("--staged", type=int, default=1, help="how many of them are timed by stages")
    parser.add_argument("--blocks", type=int, default=132)
    parser.add_argument("--cubins", help="directory of machine code to use")
    parser.add_argument("--compile", help="only fill this directory with machine code (no GPU needed)")
    parser.add_argument("--extra", default="{}", help="more macros, as JSON")
    subject.arguments(parser)
    options = parser.parse_args()
    options.extra = json.loads(options.extra)
    op = contracts.load("kimi_k3").op(subject.part)
    if options.compile:
        compiled(subject, op, options)
        return
    if not torch.cuda.is_available():
        raise SystemExit("needs a CUDA GPU")
    figures = {"device": torch.cuda.get_device_name(), "checks": {}, "times": {}, "stages": {}}

    def keep():
        if options.out:
            with open(options.out, "w") as file:
                json.dump(figures, file, indent=1)

    plain = Context(options.blocks, constants=options.extra, cubins=options.cubins)
    free = Context(options.blocks, constants=options.extra, cubins=options.cubins, cooperative=False)
    cases = list(subject.cases(options))
    for case, (label, changed) in itertools.product(options.check, cases):
        tp, rows, *distribution = case.split(":")
        began = time.time()
        ratios, faults = check(subject, op, workload_of(subject, op, int(tp), int(rows), changed), plain,
                               options.configs[0], ":".join(distribution) or "typical")  # fmt: skip
        figures["checks"][case + label] = {"median error over the plain path's": ratios, "faults": faults}
        ruling = f"FAIL {'; '.join(faults)}" if faults else "pass"
        print(f"check {case}{label}: {ruling} {ratios} ({time.time() - began:.1f} s)", flush=True)
        keep()
    for tp, rows, (label, changed) in itertools.product(options.tp, options.rows, cases):
        workload = workload_of(subject, op, tp, rows, changed)
        name = f"tp{tp} {rows} rows{label}"
        floor = op.cost(workload).bytes / READ_CEILING * 1e6
        for config in options.configs if rows in options.rows[:1] else options.configs[:1]:
            context = plain if config.get("cooperative", True) else free
            try:
                median, least, calls = timed(subject, op, workload, context, config)
            except RuntimeError as error:
                print(f"{name}, {config}: {error}", flush=True)
                continue
            figures["times"][f"{name} {config}"] = {"median_us": median, "least_us": least, "floor_us": floor}
            rate = op.cost(workload).bytes / median / 1e6
            print(
                f"{name}, {config}: {median:.2f} us (least {least:.2f}), floor {floor:.2f}, "
                f"{median / floor:.2f} x, {rate:.2f} TB/s", flush=True
            )  # fmt: skip
            del calls
        for config in options.configs[: options.staged] if rows <= subject.most_rows else ():
            figures["stages"][f"{name} {config}"] = found = stages(subject, op, workload, config, options)
            steps = zip(subject.stages, found["steps"], strict=True)
            print(f"{name}, {config}: " + ", ".join(f"{stage} {step}" for stage, step in steps))
            print(f"   latest stamps {found['latest']}", flush=True)
        keep()
