"""G. Wrappers, no-ops, agent-level cheating: what of it reaches a judge."""

from .plans import lie
from .sample import DOUBLED, LAUNCH, Sample, edit, in_launch

SAMPLES = (
    Sample(
        "falls back to torch", ("X-87",), "catches its own kernel's failure and computes with torch",
        edit((LAUNCH, LAUNCH + "    try:\n        accumulate[(1,)](buffers.missing)\n    except BaseException:\n"
              "        buffers.out.zero_()\n        return\n")),
        "record", "record.torch_operation", runs="recorder",
    ),
    Sample(
        "library in disguise", ("X-89",), "calls a library's matrix product and calls it a kernel",
        in_launch("torch.mm(buffers.x, buffers.x.T)"),
        "record", "record.torch_operation", runs="recorder",
    ),
    Sample(
        "compiled in disguise", ("X-89",), "lets torch.compile write the kernel",
        in_launch("torch.compile(lambda x: x + 1)(buffers.x)"), "record", None, runs="recorder",
    ),
    Sample(
        "chooses its judge", ("X-81",), "answers for another op, whose exam is easier",
        lie("d['op'] = 'lenient_accumulate'"), "plan", "plan.identity", runs="plan", words="op is",
    ),
    Sample(
        "another patch's result", ("X-94",), "answers in the name of another candidate",
        lie("d['candidate_digest'] = '0' * 64"), "plan", "plan.identity", runs="plan", words="candidate_digest",
    ),
    Sample(
        "reports itself", ("X-92",), "brings a verdict, a speedup and a toolchain of its own, and is wrong",
        lie("d['toolchain'] = {'verdict': 'accepted', 'speedup': '3x'}", DOUBLED),
        "numerics", "numerics.median", runs="judge",
    ),
)  # fmt: skip
