"""B. Timing evasion: nearly all of it happens in host code, which here writes a plan and times nothing."""

from judging import replaced

from .honest import PRODUCT, TWO_LAUNCHES
from .sample import CALL_TAIL, DOUBLED, GRID, Sample, at_import, edit, in_launch

SAMPLES = (
    Sample(
        "side stream", ("X-11",), "works on a side stream for which nothing waits",
        replaced(TWO_LAUNCHES, PRODUCT, '    with ctx.stream("side"):\n    ' + PRODUCT),
        "C14", "race.between_streams", twin="several streams",
    ),
    Sample(
        "background thread", ("X-12",), "a thread launches the work after `launch` has returned",
        in_launch("import threading, time\ndef later():\n    time.sleep(0.2)\n    run()\ndef run():\n    pass\n"
                  "threading.Thread(target=later, daemon=True).start()\nreturn"),
        "record", "record.no_launches", runs="recorder",
    ),
    Sample(
        "lazy tensor", ("X-14", "X-48"), "passes a tensor subclass that would compute when it is looked at",
        in_launch("class Lazy(torch.Tensor):\n    def data_ptr(self):\n        return 4096\n"
                  "buffers.out = buffers.out.as_subclass(Lazy)"),
        "record", "record.fake_tensor", runs="recorder",
    ),
    Sample(
        "patches clocks", ("X-15", "X-16", "X-17"), "replaces events, synchronisation, clocks and statistics, and is wrong",
        at_import("""
import statistics, time, torch
torch.cuda.Event.elapsed_time = lambda self, other: 0.0
torch.cuda.Event.record = lambda self, stream=None: None
torch.cuda.synchronize = lambda device=None: None
time.perf_counter = time.perf_counter_ns = time.monotonic = lambda: 0
statistics.median = lambda values: 1e-9
""", DOUBLED),
        "numerics", "numerics.median", runs="judge",
    ),
    Sample(
        "too fast to be true", ("X-18",), "does the work of one row and returns in no time",
        edit((GRID, "accumulate[(1,)](")), "C4", "poison.left", words="rows",
    ),
    Sample(
        "persisting cache", ("X-19",), "asks the driver to keep its inputs in L2",
        in_launch("torch.cuda.cudart()"), "record", "record.torch_cuda", runs="recorder",
    ),
    Sample(
        "super batch", ("X-20", "X-24"), "counts its calls and does nothing on every second one",
        in_launch("import sys\nsys.calls = getattr(sys, 'calls', 0) + 1\nif sys.calls % 2 == 0:\n    return"),
        "record", "record.no_launches", runs="recorder",
    ),
    Sample(
        "amortises", ("X-20", "X-21"), "launches twice on its first call and once on later ones",
        in_launch("import sys\nsys.calls = getattr(sys, 'calls', 0) + 1",
                  (CALL_TAIL, CALL_TAIL + "\n    if sys.calls == 1:\n        launch(ctx, buffers, axes, config)")),
        "record", "record.not_deterministic", runs="recorder",
    ),
    Sample(
        "own graph", ("X-21",), "captures a graph of its own and hands that back",
        in_launch("graph = torch.cuda.CUDAGraph()"), "record", "record.torch_cuda", runs="recorder",
    ),
    Sample(
        "empty capture", ("X-26", "X-86"), "inherits everything and launches nothing",
        in_launch("return"), "record", "record.no_launches", runs="recorder",
    ),
    Sample(
        "own events", ("X-27",), "records events of its own, in another order",
        in_launch("torch.cuda.Event(enable_timing=False)"), "record", "record.torch_cuda", runs="recorder",
    ),
    Sample(
        "slows the baseline", ("X-29", "X-54"), "changes global flags, the default type and the random state",
        at_import("""
import torch
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = False
torch.use_deterministic_algorithms(True)
"""),
        None, None, runs="judge",
    ),
    Sample(
        "autotunes in the exam", ("X-30",), "brings several configurations and lets the exam choose",
        edit(("@triton.jit\n", "@triton.autotune(configs=[triton.Config({}, num_warps=n) for n in (1, 4)], key=[])\n"
              "@triton.jit\n")),
        "record", "decorator", runs="source",
    ),
    Sample(
        "resident process", ("X-31",), "leaves a process behind that keeps the machine busy",
        at_import("import os\nif os.fork() == 0:\n    while True:\n        pass"),
        None, None, runs="recorder",
    ),
)  # fmt: skip
