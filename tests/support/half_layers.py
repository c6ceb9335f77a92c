"""Launches for a part of a layer under test, its first half or its mixture: recorded, compiled, run on a CPU or a GPU against their contract."""

import importlib.util
import multiprocessing
import shutil
import subprocess
from collections.abc import Collection, Mapping
from functools import partial
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from types import ModuleType, SimpleNamespace

import cuda_on_cpu
import pytest
import torch
import triton
from fasttrack_validation import contracts
from fasttrack_validation.contracts.base import OpContract, TensorRole, Workload
from fasttrack_validation.judge.device_code import sass
from fasttrack_validation.judge.pack import KernelPack
from fasttrack_validation.numerics.calibrate import decide, measure
from fasttrack_validation.tensors import torch_dtype

ROOT = files("fasttrack_models.kimi_k3")
SEED = 20_261_201
"""Of inputs: of one draw in some hundreds an honest launch errs by more than the plain path's own error lets it"""
HARDWARE = {"name": "H200", "capability": 90, "multiprocessors": 132, "max_shared": 232448}

needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="a CPU runs CUDA C++ through g++")


class HalfLayer:
    """One of them: `part` of the op graph, its kernel's module and sources; `config` in place of its defaults."""

    def __init__(self, part: str, name: str, **config: int) -> None:
        self.part, self.entry = part, f"kernels/{name}.py"
        self.kernel: ModuleType = import_module(f"fasttrack_models.kimi_k3.kernels.{name}")
        self.config = getattr(self.kernel, "DEFAULT", {}) | config
        folders = (ROOT / "kernels", ROOT / "kernels" / "cuda")
        paths = [path for folder in folders for path in folder.iterdir() if path.name.endswith((".cu", ".cuh"))]
        paths += [ROOT / self.entry, ROOT / "kernels/half_layer.py"]
        self.sources: dict[str, str] = {str(path.relative_to(ROOT)): path.read_text() for path in paths}

    @property
    def cuda_sources(self) -> dict[str, str]:
        """Those that a compiler of CUDA C++ reads."""
        return {file: text for file, text in self.sources.items() if not file.endswith(".py")}

    def contract(self) -> OpContract:
        """The contract of the part."""
        return contracts.load("kimi_k3").op(self.part)

    def recorded(self, op: OpContract, at: Workload, directory: Path) -> KernelPack:
        """The pack that the judge's recorder makes, in a process of its own."""
        tensors = [spec.model_dump(mode="json") for spec in op.tensors(at)]
        candidate = {"op": self.part, "entry": self.entry, "files": self.sources, "config": self.config}
        payload = {
            "candidate": candidate, "workloads": [{"name": at.name, "axes": at.axes, "tensors": tensors}],
            "hardware": HARDWARE,
        }  # fmt: skip
        ours, theirs = multiprocessing.get_context("fork").Pipe()
        child = multiprocessing.get_context("fork").Process(target=_record, args=(theirs, payload, directory))
        child.start()
        answer, _ = ours.recv()
        child.join()
        assert "rejected" not in answer, answer
        return KernelPack.model_validate(answer["packs"][0])

    def on_cpu(self, directory: Path, blocks: int, edit: tuple[str, str, str] | None = None, backwards: bool = False):
        """What `launch` is given as `ctx`: launches on CPU tensors as if on `blocks` multiprocessors.

        `edit`: (file, text that it has once, text in its place).
        """
        texts = dict(self.sources)
        if edit:
            file, old, new = edit
            assert texts[file].count(old) == 1
            texts[file] = texts[file].replace(old, new)
        return _OnCpu(texts, directory, blocks, backwards)

    def run(
        self, op: OpContract, at: Workload, inputs: Mapping[str, torch.Tensor], context, device: str
    ) -> tuple[dict[str, torch.Tensor], SimpleNamespace]:
        """Everything that the launch produces, on the CPU, and its buffers."""
        made = {}
        for spec in op.tensors(at):
            storage = torch.zeros(spec.storage_elements, dtype=torch_dtype(spec.dtype), device=device)
            made[spec.name] = storage.as_strided(spec.shape, spec.strides)
            made[spec.name].copy_(inputs.get(spec.name, torch.tensor(float("nan"))))
        static = {spec.name: inputs[spec.name] for spec in op.tensors(at) if spec.role is TensorRole.STATIC}
        prepared = self.kernel.prepare(context, SimpleNamespace(**static), at.axes, self.config)
        for name, tensor in prepared.items():
            made[name] = tensor.to(device)
        for name, (shape, dtype) in self.kernel.scratch(at.axes, self.config).items():
            made[name] = torch.full(shape, float("nan") if dtype.is_floating_point else -1, dtype=dtype, device=device)
        # Behind the persistent one lie words that the kernel has to leave alone.
        ((name, ((size,), dtype, initial, _)),) = self.kernel.persistent(at.axes, self.config).items()
        cells = torch.full((size + 4096,), initial, dtype=dtype, device=device)
        made[name] = cells[:size]
        buffers = SimpleNamespace(**made)
        if isinstance(context, _OnCpu):
            given = {spec.name for spec in op.tensors(at) if spec.role is not TensorRole.STATIC} & inputs.keys()
            kept = static.keys() | prepared.keys()
            context.predecessor = _Predecessor({name: made[name] for name in made.keys() - kept}, given)
        self.kernel.launch(context, buffers, at.axes, self.config)
        assert (cells[size:] == initial).all()
        return {name: made[name].cpu().contiguous() for name in op.produced}, buffers

    def waits_on_cpu(self, op: OpContract, at: Workload, inputs, directory: Path, blocks: int) -> dict[str, torch.Tensor]:
        """What a programmatic launch makes beside a kernel in front that has given nothing yet, none of whose memory it may change."""
        context = self.on_cpu(directory, blocks)
        early, _ = self.run(op, at, inputs, context, "cpu")
        assert context.predecessor.changed == set()
        return early

    def agrees_on_gpu(self, op: OpContract, name: str, states: Collection[str]) -> None:
        """The contract's comparison; the same bits from the same state again; and a planted fault that must not pass.

        `states`: tensors that the launch changes. Skips where there is no GPU.
        """
        context = launching_context()
        at = workload(op, name)
        inputs = op.make_inputs(at, "typical", SEED)
        first, buffers = self.run(op, at, inputs, context, "cuda")
        for state in states:
            getattr(buffers, state).copy_(inputs[state])
        self.kernel.launch(context, buffers, at.axes, self.config)
        torch.cuda.synchronize()
        assert int(buffers.cells[1]) == 0, "a block gave up waiting"
        exam = at, inputs, op.oracle(inputs, at), op.plain(inputs, at)
        assert wrong(op, exam, first) == set()
        for tensor, got in first.items():
            assert equal_bits(got, getattr(buffers, tensor).cpu()), tensor
        changed, _ = self.run(op, at, inputs | {"peers": inputs["peers"].roll(1, 2)}, context, "cuda")
        faults = wrong(op, exam, changed)
        assert "o_proj_residual_stream" in faults and not {"partial", *states} & faults


class _Predecessor:
    """The launch in front of a programmatic one, before it ends: what it gives is not there yet, and nothing may change under it.

    `tensors`: all but weights, which no launch writes. `changed`: names of those that the later launch wrote too early.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], given: Collection[str]) -> None:
        self._tensors, self._given, self.changed = tensors, given, set()

    def begin(self) -> None:
        self._kept = {name: self._tensors[name].clone() for name in self._given}
        for name in self._given:
            # No NaN, which the tensors that are to be written hold.
            tensor = self._tensors[name]
            tensor.fill_(-7.5 if tensor.is_floating_point() else 0)
        self._before = {name: tensor.clone() for name, tensor in self._tensors.items()}

    def end(self) -> None:
        for name, tensor in self._tensors.items():
            if not equal_bits(tensor, self._before[name]):
                self.changed.add(name)
            if name in self._given:
                tensor.copy_(self._kept[name])


class _OnCpu:
    def __init__(self, texts, directory, blocks, backwards):
        self.hardware = SimpleNamespace(multiprocessors=blocks)
        self._texts, self._directory, self._backwards = texts, directory, backwards

    def cuda(self, file, function, *, threads, constants, cooperative, pdl=False):
        run = cuda_on_cpu.compiled(self._texts, file, constants, threads, self._directory)

        def launch(grid, *arguments, shared_bytes):
            if pdl:
                self.predecessor.begin()
            run(
                *arguments, blocks=grid[0], shared_bytes=shared_bytes, backwards=self._backwards,
                end_predecessor=self.predecessor.end if pdl else None,
            )  # fmt: skip

        class Launch:
            def __getitem__(self, grid):
                return partial(launch, grid)

        return Launch()


MEMORY = frozenset({"LDG", "STG", "ATOM", "ATOMG", "RED", "REDG", "LD", "ST", "CCTL"})
"""Machine instructions that read, write or fetch global memory, bulk copies apart"""


def listed(code, directory: Path) -> list[str]:
    """Mnemonics of the machine code of a compiled kernel, in order."""
    (directory / "k.cubin").write_bytes(code.cubin)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    text = subprocess.run([tool, "-sass", directory / "k.cubin"], check=True, capture_output=True, text=True).stdout
    return [name.partition(".")[0] for _, name in sass._INSTRUCTION.findall(text)]


def _record(pipe, payload, directory):
    from fasttrack_validation.judge.recorder import job

    pipe.send(job.run(payload, (), directory))


def workload(op: OpContract, name: str, **axes: int) -> Workload:
    """A declared workload, with other axes."""
    found = next(w for w in op.workloads() if w.name == name)
    return Workload(name=name, axes=found.axes | axes)


def with_rows(op: OpContract, rows: int, **axes: int) -> Workload:
    """So many rows at TP 16."""
    strides = dict.fromkeys(
        ("attn_res_norm_1_block_stride", "attn_res_norm_2_block_stride", "peer_stride"), rows * 7168
    )
    return workload(op, "tp16-b16", rows=rows, **strides, **axes)


def wrong(op: OpContract, exam, made: Mapping[str, torch.Tensor]) -> set[str]:
    """The tensors that the contract does not take. `exam`: workload, inputs, oracle, plain path."""
    _, inputs, oracle, plain = exam
    found = set()
    for comparison in op.comparisons:
        name = comparison.tensor
        owners = [op.row_of(name, (i,) + (0,) * (made[name].dim() - 1), inputs) for i in range(len(made[name]))]
        measured = measure(comparison, oracle[name], plain[name], made[name], owners)
        if decide(comparison, [measured]).decision != "pass":
            found.add(name)
    return found


def equal_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are the same bit for bit, NaN included."""
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def launching_context():
    """What `launch` is given as `ctx` on a GPU; skips where there is none."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    path = Path(__file__).parents[2] / "benchmarks/cuda_context.py"
    spec = importlib.util.spec_from_file_location("cuda_context", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Context(torch.cuda.get_device_properties(0).multi_processor_count)
