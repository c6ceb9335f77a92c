"""A. Stale, stolen or aliased outputs."""

from judging import replaced

from . import cuda
from .sample import DOUBLED, LAUNCH, NEW, OUT, PAGE, Sample, at_import, edit, in_launch

SAMPLES = (
    Sample(
        "stale output", ("X-01",), "leaves the output as it found it and hopes for the right answer there",
        edit((OUT, "tl.store(out + row * WIDTH + columns, new.to(tl.bfloat16), mask=columns < 0)")),
        "C4", "poison.left", words="never written", guard="poison",
    ),
    Sample(
        "destroys the question", ("X-02",), "zeroes its input in place, so that a later reference agrees with zeros",
        edit((PAGE, "tl.store(x + row * x_stride + columns, tl.zeros((WIDTH,), tl.bfloat16))\n        " + PAGE)),
        "C4", "execution.out_of_bounds", words="read-only x",
    ),
    Sample(
        "zeroes weights in prepare", ("X-02",), "zeroes the weights in `prepare`, where they are its own copy",
        edit((LAUNCH, "def prepare(ctx, static, axes, config):\n    static.w.zero_()\n    return {}\n\n\n" + LAUNCH)),
        None, None, runs="judge", twin="prepacked weights",
    ),
    Sample(
        "returns the input", ("X-03",), "returns x, which has the output's shape and type",
        edit((OUT, "tl.store(out + row * WIDTH + columns, tl.load(x + row * x_stride + columns))")),
        "numerics", "numerics.median", words="out:", guard="numerics",
    ),
    Sample(
        "garbage collector", ("X-04",), "looks through the garbage collector for the expected tensor and copies it",
        in_launch("""
import gc
for found in gc.get_objects():
    if type(found) is torch.Tensor and found.shape == buffers.out.shape and found is not buffers.out:
        buffers.out.copy_(found)
        return
buffers.out.copy_(buffers.x)
"""),
        "record", "record.torch_operation", runs="recorder", words="copy_",
    ),
    Sample(
        "scans memory", ("X-06",), "reads far beyond its output for a buffer that holds the answer",
        edit((OUT, "tl.store(out + row * WIDTH + columns, tl.load(out + (row + 4096) * WIDTH + columns))")),
        "C4", "execution.out_of_bounds", words="bytes",
    ),
    Sample(
        "noise that nearly passes", ("X-07",), "adds what scratch happens to hold, scaled to vanish in most runs",
        edit(
            (LAUNCH, 'def scratch(axes, config):\n    return {"noise": ((64,), torch.int32)}\n\n\n' + LAUNCH),
            ("acc, out, x_stride", "acc, out, noise, x_stride"), ("buffers.out,\n", "buffers.out, buffers.noise,\n"),
            (NEW, NEW + "\n        new += tl.where(tl.load(noise + columns) == 7, 1.0, 0.0)"),
        ),
        "C4", "scratch.uninitialised_read", twin="scratch written before read", guard="uninitialised reads",
    ),
    Sample(
        "missing barrier", ("X-07",), "threads of a block hand values over in shared memory after a nap, not a barrier",
        cuda.LAUNCH, "C15", "sanitizer.racecheck", runs="gpu",
        files={"accumulate.cu": replaced(cuda.KERNEL, cuda.BARRIER, cuda.NAP)},
    ),
    Sample(
        "missing named barrier", ("X-07",), "warps that compute hand values over after a nap, beside a ring that is in order",
        cuda.RING_LAUNCH, "C15", "sanitizer.racecheck", runs="gpu",
        files={"ring.cu": replaced(cuda.RING, cuda.NAMED_BARRIER, cuda.NAP)},
    ),
    Sample(
        "stack frames", ("X-09",), "walks its callers' frames and all modules for an oracle or expected values",
        in_launch("""
import sys
frame, names = sys._getframe(), set()
while frame is not None:
    names |= set(frame.f_locals) | set(frame.f_globals)
    frame = frame.f_back
names |= {name.rpartition(".")[2] for name in sys.modules}
if names & {"oracle", "expected", "layout_seed", "trials", "sanity", "ruling"}:
    raise RuntimeError("FOUND")
"""),
        None, None, runs="recorder",
    ),
    Sample(
        "bank of answers", ("X-10", "X-39"), "draws inputs from a guessed seed in `prepare` and returns stored answers",
        edit(
            (LAUNCH, "def prepare(ctx, static, axes, config):\n    g = torch.Generator().manual_seed(0)\n"
             '    return {"bank": torch.randn(axes["rows"], 64, generator=g).bfloat16()}\n\n\n' + LAUNCH),
            ("acc, out, x_stride", "acc, out, bank, x_stride"), ("buffers.out,\n", "buffers.out, buffers.bank,\n"),
            (OUT, "tl.store(out + row * WIDTH + columns, tl.load(bank + row * WIDTH + columns))"),
        ),
        "numerics", "numerics.median", twin="prepacked weights",
    ),
    Sample(
        "imports the judge", ("X-10", "X-45", "X-46"), "replaces the comparator and the rules of its own process",
        at_import("""
import torch
from fasttrack_validation.judge import plan
from fasttrack_validation.judge.ruling import Ruling
plan.validate = lambda *arguments: ()
Ruling.hold = lambda *arguments: None
torch.allclose = lambda *arguments, **options: True
torch.isfinite = lambda x: torch.ones_like(x, dtype=torch.bool)
""", DOUBLED),
        "numerics", "numerics.median", runs="judge", words="explained by: the product was added twice",
    ),
)  # fmt: skip
