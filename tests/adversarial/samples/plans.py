"""Plans that lie. The recorder's process belongs to the candidate, so it can write into its answer what it likes."""

from judging import replaced

from .honest import PREFETCH, TWO_LAUNCHES
from .sample import Sample, at_import


def lie(statement: str, *edits: tuple[str, str]) -> str:
    """The honest kernel whose import makes every recorded plan `d` (a dict) pass through `statement`."""
    return at_import(f"""
from fasttrack_validation.judge.pack import KernelPack
def forged(self, true=KernelPack.model_dump, **options):
    d = true(self, **options)
    first = d["launches"][0]
    {statement}
    return d
KernelPack.model_dump = forged
""", *edits)  # fmt: skip


def _lie(name: str, mechanism: str, statement: str, reason: str, words: str = "") -> Sample:
    return Sample(
        f"plan: {name}", ("P-lie",), mechanism, lie(statement), "plan", reason, runs="plan", words=words,
        guard="plan rules" if reason == "plan.unused_kernel" else None,  # no later stage would notice
    )  # fmt: skip


SAMPLES = (
    _lie("offset", "points outside of a buffer", "first['arguments']['out']['offset'] = 1 << 40", "plan.offset"),
    _lie("buffer", "names a buffer that there is not", "first['arguments']['out']['buffer'] = 'expected'",
         "plan.unknown_buffer"),
    _lie("grid", "has a grid of no programs", "first['grid'] = [0, 1, 1]", "plan.grid"),
    _lie("launch bomb", "launches for ever", "d['launches'] = d['launches'] * 5000", "plan.launch_count"),
    _lie("unused kernel", "carries a kernel that is never launched",
         "d['kernels']['spare'] = next(iter(d['kernels'].values()))", "plan.unused_kernel"),
    _lie("kernel", "launches a kernel that there is not", "first['kernel'] = 'other'", "plan.unknown_kernel"),
    _lie("function", "names a function that the sources have not",
         "next(iter(d['kernels'].values()))['function'] = 'launch'", "plan.unknown_function"),
    _lie("option", "compiles with an option that is not allowed",
         "next(iter(d['kernels'].values()))['options']['ir_override'] = 'x'", "plan.option"),
    _lie("argument", "passes a scalar where the kernel takes a pointer",
         "first['arguments']['out'] = {'kind': 'scalar', 'type': 'i64', 'value': 0}", "plan.argument_type"),
    _lie("reinterpretation", "reads fp32 state as bf16",
         "first['arguments']['acc']['dtype'] = 'bf16'; "
         "next(iter(d['kernels'].values()))['signature']['acc'] = '*bf16'", "plan.reinterpretation"),
    _lie("wait", "waits for a stream on which nothing was launched", "first['waits'] = ['later']", "plan.wait"),
    _lie("scratch", "declares more scratch than fits",
         "d['scratch']['huge'] = {'shape': [1 << 40], 'dtype': 'u8'}", "plan.scratch_size"),
    Sample(
        "plan: not a plan", ("P-lie",), "answers with something else", lie("d = {'accepted': True}"),
        "record", "record.answer", runs="recorder",
    ),
    Sample(
        "prefetch that writes", ("P-role",), "calls its work a prefetch, which costs nothing",
        replaced(PREFETCH, "tl.load(w + tl.arange(0, WIDTH))", "tl.store(w + tl.arange(0, WIDTH), 0.0)"),
        "C4", "execution.out_of_bounds", twin="prefetch", words="read-only w",
    ),
    Sample(
        "prefetch that fills scratch", ("P-role",), "hides a step of the work in a prefetch",
        replaced(TWO_LAUNCHES, "    product[(", "    with ctx.prefetch():\n        product[("),
        "C4", "prefetch.writes", twin="prefetch", words="a prefetch launch writes",
    ),
    Sample(
        "prepare that fails on real weights", ("P-prepare",), "behaves in `prepare` once real weights are there",
        at_import("pass", ("def launch", "def prepare(ctx, static, axes, config):\n"
                           "    if bool((static.w != 0).any()):\n        raise RuntimeError('not today')\n"
                           "    return {'twice': static.w * 2}\n\n\ndef launch")),
        "execution", "execution.error", runs="recorder", words="not today", twin="prepacked weights",
    ),
    Sample(
        "prepare of another shape on real weights", ("P-prepare",), "returns other buffers than it declared",
        at_import("pass", ("def launch", "def prepare(ctx, static, axes, config):\n"
                           "    return {'twice': static.w.repeat(2) if bool((static.w != 0).any()) else static.w}\n\n\n"
                           "def launch")),
        "execution", "execution.error", runs="recorder", words="bytes on real weights", twin="prepacked weights",
    ),
)  # fmt: skip
