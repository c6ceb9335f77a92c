"""A second small op, with what the first lacks: a reduction, an epsilon, and a difference of nearly equal numbers.

    out[row] = (x[row] - mean) * rsqrt(variance + 1e-5)        float32, 64 wide
"""

import torch

from fasttrack_validation.contracts.base import Comparison, Cost, OpContract, TensorRole, TensorSpec, Workload
from fasttrack_validation.tensors import DType

WIDTH, EPS = 64, 1e-5

KERNEL = '''
import torch
import triton
import triton.language as tl


@triton.jit
def normalise(x, out, x_stride, WIDTH: tl.constexpr, EPS: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, WIDTH)
    value = tl.load(x + row * x_stride + columns)
    mean = tl.sum(value) / WIDTH
    centred = value - mean
    variance = tl.sum(centred * centred) / WIDTH
    tl.store(out + row * WIDTH + columns, centred * tl.rsqrt(variance + EPS))


def launch(ctx, buffers, axes, config):
    normalise[(axes["rows"],)](buffers.x, buffers.out, buffers.x.stride(0), WIDTH=64, EPS=1e-5)
'''


class Norm(OpContract):
    """The contract of `normalise`. Rows 1 and 4 are declared."""

    model, op = "toy", "normalise"

    def workloads(self, *, held_out: bool = False) -> tuple[Workload, ...]:
        return tuple(self._workload(f"tp8_rows{rows}", rows, 64, held_out) for rows in ((3, 7) if held_out else (1, 4)))

    def vary(self, workload: Workload, seed: int) -> Workload:
        rows = 1 if workload.axes["rows"] == 1 else 2 + seed % 3
        return self._workload(f"{workload.name}_unseen", rows, 72 + 8 * (seed % 5), True)

    def _workload(self, name: str, rows: int, stride: int, held_out: bool) -> Workload:
        return Workload(name=name, axes={"tp": 8, "rows": rows, "x_stride": stride}, held_out=held_out)

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        rows, stride = workload.axes["rows"], workload.axes["x_stride"]
        return (
            TensorSpec(name="x", dtype=DType.F32, role=TensorRole.INPUT, shape=(rows, WIDTH), strides=(stride, 1)),
            TensorSpec(name="out", dtype=DType.F32, role=TensorRole.OUTPUT, shape=(rows, WIDTH), strides=(WIDTH, 1)),
        )

    @property
    def distributions(self):
        return {"typical": "unit normal", "small": "so small that epsilon counts", "offset": "a mean 1000 times the spread"}

    def make_inputs(self, workload: Workload, distribution: str, seed: int) -> dict[str, torch.Tensor]:
        g = torch.Generator().manual_seed(seed)
        x = torch.randn(workload.axes["rows"], WIDTH, generator=g)
        # In eighths, so that the mean is exact in any order of summation: otherwise the luck of the plain path decides.
        offset = (8 * x).round() / 8 + 1000.0
        return {"x": {"typical": x, "small": x * 1e-3, "offset": offset}[distribution]}

    def oracle(self, inputs, workload: Workload) -> dict[str, torch.Tensor]:
        return {"out": self._run(inputs["x"].double())}

    def plain(self, inputs, workload: Workload) -> dict[str, torch.Tensor]:
        return {"out": self._run(inputs["x"])}

    def _run(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(1, keepdim=True)
        return centred * (centred.square().mean(1, keepdim=True) + EPS).rsqrt()

    def stock(self, device: str):
        raise AssertionError("the toy op has no stock path")

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        return (Comparison(tensor="out", kind="calibrated", floor=1e-6),)

    @property
    def hypotheses(self):
        return {}

    def row_of(self, tensor: str, index: tuple[int, ...], inputs) -> int | None:
        return index[0]

    def perturb_row(self, inputs, workload: Workload, row: int, seed: int) -> dict[str, torch.Tensor]:
        changed = inputs["x"].clone()
        changed[row] = torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed))
        return {"x": changed}

    def cost(self, workload: Workload) -> Cost:
        rows = workload.axes["rows"]
        return Cost(bytes_read=rows * WIDTH * 4, bytes_written=rows * WIDTH * 4, flops=6 * rows * WIDTH)
