"""A small op with everything that the judge looks at: static, input, paged state, null rows, a rounded output.

    acc[slot] += x * w        float32, pages wider than dense
    out        = bf16(acc)    zero for a null row

Judging one candidate on it takes about a second, so the judge's own tests do not need a real model's op.
"""

from collections.abc import Callable, Mapping

import torch

from fasttrack_validation.contracts.base import Comparison, Cost, Far, OpContract, TensorRole, TensorSpec, Workload
from fasttrack_validation.tensors import DType

WIDTH = 64

KERNEL = '''
import triton
import triton.language as tl
import torch


@triton.jit
def accumulate(x, w, slots, acc, out, x_stride, page_stride, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, WIDTH)
    slot = tl.load(slots + row).to(tl.int64)
    if slot > 0:
        page = acc + slot * page_stride
        new = tl.load(page + columns) + tl.load(x + row * x_stride + columns).to(tl.float32) * tl.load(w + columns)
        tl.store(page + columns, new)
        tl.store(out + row * WIDTH + columns, new.to(tl.bfloat16))
    else:
        tl.store(out + row * WIDTH + columns, tl.zeros((WIDTH,), tl.bfloat16))


def launch(ctx, buffers, axes, config):
    accumulate[(axes["rows"],)](
        buffers.x, buffers.w, buffers.slots, buffers.acc, buffers.out,
        buffers.x.stride(0), buffers.acc.stride(0), WIDTH=64,
    )
'''


class Toy(OpContract):
    """The contract of the toy op. `rows` 1 and 4 are declared; layouts vary within the bucket."""

    model, op = "toy", "accumulate"

    def workloads(self, *, held_out: bool = False) -> tuple[Workload, ...]:
        rows = (3, 7) if held_out else (1, 4)
        return tuple(self._workload(f"tp8_rows{r}", r, r + 3, 96, 64, held_out) for r in rows)

    def vary(self, workload: Workload, seed: int) -> Workload:
        generator = torch.Generator().manual_seed(seed)
        draw = lambda low, high: int(torch.randint(low, high, (1,), generator=generator))  # noqa: E731
        rows = 1 if workload.axes["rows"] == 1 else draw(2, 5)
        return self._workload(
            f"{workload.name}_unseen", rows, rows + draw(1, 6), 64 + 16 * draw(1, 5), 64 + 8 * draw(1, 5), True
        )

    def _workload(self, name: str, rows: int, slots: int, page: int, stride: int, held_out: bool) -> Workload:
        axes = {"tp": 8, "rows": rows, "slots": slots, "page_stride": page, "x_stride": stride}
        return Workload(name=name, axes=axes, held_out=held_out)

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        a = workload.axes
        make = lambda name, dtype, role, shape, strides: TensorSpec(  # noqa: E731
            name=name, dtype=dtype, role=role, shape=shape, strides=strides
        )
        return (
            make("w", DType.F32, TensorRole.STATIC, (WIDTH,), (1,)),
            make("x", DType.BF16, TensorRole.INPUT, (a["rows"], WIDTH), (a["x_stride"], 1)),
            make("slots", DType.I32, TensorRole.INPUT, (a["rows"],), (1,)),
            make("acc", DType.F32, TensorRole.STATE, (a["slots"], WIDTH), (a["page_stride"], 1)),
            make("out", DType.BF16, TensorRole.OUTPUT, (a["rows"], WIDTH), (WIDTH, 1)),
        )

    @property
    def distributions(self) -> Mapping[str, str]:
        return {"typical": "unit normal", "padded": "null rows between live ones", "large": "values near 2**60"}

    def make_inputs(self, workload: Workload, distribution: str, seed: int) -> dict[str, torch.Tensor]:
        g = torch.Generator().manual_seed(seed)
        rows, slots = workload.axes["rows"], workload.axes["slots"]
        scale = 2.0**60 if distribution == "large" else 1.0
        chosen = torch.randperm(slots - 1, generator=g)[:rows].int() + 1
        if distribution == "padded":
            # The null page, then a padding mark, alternately: a draw at random would miss one of them now and then.
            chosen[::2] = -(torch.arange(len(chosen[::2]), dtype=torch.int32) % 2)
        return {
            "w": torch.randn(WIDTH, generator=g),
            "x": (torch.randn(rows, WIDTH, generator=g) * scale).bfloat16(),
            "slots": chosen,
            "acc": torch.randn(slots, WIDTH, generator=g) * scale,
        }

    def oracle(self, inputs, workload: Workload) -> dict[str, torch.Tensor]:
        return self._run(inputs, torch.float64)

    def plain(self, inputs, workload: Workload) -> dict[str, torch.Tensor]:
        result = self._run(inputs, torch.float32)
        return {"acc": result["acc"], "out": result["out"].bfloat16()}

    def _run(self, inputs, dtype, factor: float = 1.0) -> dict[str, torch.Tensor]:
        acc = inputs["acc"].to(dtype, copy=True)
        out = torch.zeros(inputs["x"].shape, dtype=dtype)
        for row, slot in enumerate(inputs["slots"].tolist()):
            if slot > 0:
                acc[slot] += factor * inputs["x"][row].to(dtype) * inputs["w"].to(dtype)
                out[row] = acc[slot]
        return {"acc": acc, "out": out}

    def stock(self, device: str) -> Callable:
        raise AssertionError("the toy op has no stock path")

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        return (
            Comparison(tensor="acc", kind="calibrated", floor=1e-6),
            Comparison(tensor="out", kind="calibrated", floor=1e-6),
        )

    @property
    def hypotheses(self) -> Mapping[str, Callable]:
        return {"the product was added twice": lambda inputs, workload: self._run(inputs, torch.float64, 2.0)}

    def row_of(self, tensor: str, index: tuple[int, ...], inputs) -> int | None:
        if tensor == "out":
            return index[0]
        rows = (inputs["slots"] == index[0]).nonzero().flatten().tolist()
        return rows[0] if index[0] > 0 and rows else None

    def perturb_row(self, inputs, workload: Workload, row: int, seed: int) -> dict[str, torch.Tensor]:
        g = torch.Generator().manual_seed(seed)
        changed = {name: value.clone() for name, value in inputs.items()}
        changed["x"][row] = torch.randn(WIDTH, generator=g).bfloat16()
        slot = int(inputs["slots"][row])
        if slot > 0:
            changed["acc"][slot] = torch.randn(WIDTH, generator=g)
        return changed

    def cost(self, workload: Workload) -> Cost:
        rows = workload.axes["rows"]
        return Cost(bytes_read=rows * WIDTH * 6 + WIDTH * 4, bytes_written=rows * WIDTH * 6, flops=2 * rows * WIDTH)


class FarToy(Toy):
    """The toy op with a pool that is larger than 2**31 elements, as the judge has it without its memory."""

    def far(self, workload: Workload) -> Far:
        shift = 2**31 // workload.axes["page_stride"] + 1
        axes = workload.axes | {"slots": workload.axes["slots"] + shift}
        far = workload.model_copy(update={"name": f"{workload.name}-far", "axes": axes})
        return Far(workload=far, shift=shift, pages="slots", pools=("acc",))
