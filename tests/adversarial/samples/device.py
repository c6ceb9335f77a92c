"""What device code can still do once Python is out of the room."""

from judging import replaced

from . import cuda
from .honest import COUNT, DEPENDENT, HINTS, LAST_BLOCK, STREAMS, WAIT
from .sample import GRID, NEW, OUT, PAGE, Sample, edit

SAMPLES = (
    Sample(
        "writes the null page", ("D-outside",), "takes the null page for a live one",
        edit(("if slot > 0:", "if slot >= 0:")), "C4", "state.foreign_page", words="the null page (slot 0) was written",
    ),
    Sample(
        "borrows a page", ("D-outside",), "keeps a note in the null page and puts back what was there",
        edit((PAGE, PAGE + "\n        if row == 0:\n            held = tl.load(acc + columns)\n"
              "            tl.store(acc + columns, new)\n            tl.debug_barrier()\n"
              "            tl.store(acc + columns, held)")),
        "C4", "state.foreign_page", words="which no live row of this step owns", guard="foreign pages",
    ),
    Sample(
        "writes between pages", ("D-outside",), "writes past the end of its page, into the gap",
        edit((PAGE, PAGE + "\n        tl.store(page + WIDTH + columns, new, mask=columns < 2)")),
        "C4", "gap.written or execution.out_of_bounds",  # behind the last page lies no gap
    ),
    Sample(
        "reads the poison", ("D-poison",), "reads what its output held before",
        edit((NEW, "old = tl.load(out + row * WIDTH + columns).to(tl.float32)\n        "
              + NEW.replace("new = ", "new = tl.where(old == 3.0, 1e-3, 0.0) + "))),
        "C4", "poison.read",
    ),
    Sample(
        "race between programs", ("D-race",), "reads the page that another program updates",
        edit((OUT, "before = tl.load(slots + tl.maximum(row - 1, 0)).to(tl.int64)\n"
              "        drift = tl.load(acc + tl.maximum(before, 0) * page_stride + columns)\n"
              "        tl.store(out + row * WIDTH + columns, new.to(tl.bfloat16), mask=drift == drift)")),
        "C14", "race.between_programs", guard="races",
    ),
    Sample(
        "lost update", ("D-race",), "counts arrivals with a load and a store instead of an atomic",
        replaced(LAST_BLOCK, COUNT, "tl.load(arrived)\n    tl.store(arrived, before + 1)"),
        "C14", "race.between_programs", twin="last block reduces",
    ),
    Sample(
        "relaxed arrival", ("D-race",), "hands partial results over with a relaxed atomic, which orders nothing",
        replaced(LAST_BLOCK, COUNT, 'tl.atomic_add(arrived, 1, sem="relaxed")'),
        "C14", "race.between_programs", twin="last block reduces",
    ),
    Sample(
        "arrival within the block", ("D-race",), "hands over with an atomic of block scope",
        replaced(LAST_BLOCK, COUNT, 'tl.atomic_add(arrived, 1, scope="cta")'),
        "C14", "race.between_programs", twin="last block reduces",
    ),
    Sample(
        "arrives before it writes", ("D-race",), "counts itself in before its partial result is written",
        replaced(
            replaced(LAST_BLOCK, "    tl.store(partial + row * WIDTH + columns, value)\n    tl.debug_barrier()\n", ""),
            COUNT, COUNT + "\n    tl.store(partial + row * WIDTH + columns, value)",
        ),
        "C14", "race.between_programs", twin="last block reduces",
    ),
    Sample(
        "lanes of one store", ("D-race",), "two lanes store different values to one address",
        edit((OUT, OUT + "\n        tl.store(out + row * WIDTH + columns // 2 * 2, new.to(tl.bfloat16), mask=columns < 2)\n"
              "        " + OUT)),
        "C14", "race.between_lanes",
    ),
    Sample(
        "missing wait", ("D-race",), "reads on one stream what another still writes, in a launch of its own",
        replaced(STREAMS, '    ctx.wait("side")\n', ""), "C14", "race.between_streams", twin="several streams",
    ),
    Sample(
        "refill without a fence", ("D-race",), "lets a bulk copy fill a stage again that only a barrier says has been read",
        cuda.RING_LAUNCH, "compile", "compile.unfenced_refill", runs="compiler", words="fence.proxy.async",
        files={"ring.cu": replaced(cuda.RING, cuda.FENCE, "")},
    ),
    Sample(
        "finishes early", ("D-dependent",), "reads its predecessor's results before gdc_wait",
        replaced(DEPENDENT, WAIT, ""), "C14", "race.dependent_launch", twin="programmatic dependent launch",
    ),
    Sample(
        "waits too late", ("D-dependent",), "calls gdc_wait after it has read",
        replaced(replaced(DEPENDENT, WAIT, ""), "        tl.store(page + columns, new)\n",
                 "    " + WAIT + "        tl.store(page + columns, new)\n"),
        "C14", "race.dependent_launch", twin="programmatic dependent launch",
    ),
    Sample(
        "never ends", ("D-hang",), "loops until something that never happens",
        edit((OUT, "while tl.load(slots + row) > 0:\n            " + OUT)), "execution", "execution.timeout",
    ),
    Sample(
        "waits for another program", ("D-hang",), "spins until a program that may never start has arrived",
        edit((OUT, "while tl.load(acc + slot * page_stride) != 123456.0:\n            pass\n        " + OUT)),
        "execution", "execution.timeout",
    ),
    Sample(
        "follows an address", ("D-alignment",), "is wrong where its output lies at a multiple of 2 MiB, as a server's may",
        edit((PAGE, "if (out.to(tl.int64) & 0x1FFFFF) == 0:\n            new = new * 2\n        " + PAGE)),
        "execution", "execution.unsupported", words="pointer into an integer",
    ),
    Sample(
        "loop variable after its loop", ("D-values",), "reads a loop's variable after the loop, where compiled code has none",
        edit((PAGE, "for i in range(0, 3):\n            new += 0\n        if i != 2:\n            new = new * 2\n        "
              + PAGE)),
        "record", "loop_variable", runs="source", twin="loops",
    ),
    Sample(
        "false alignment", ("D-alignment",), "promises pointers aligned to 256 bytes, which only the judge's first copy are",
        edit((NEW, "x_row = tl.multiple_of(x, 256)\n        " + NEW)),
        "execution", "execution.false_hint", twin="true hints",
    ),
    Sample(
        "false stride", ("D-alignment",), "promises a row stride that only declared layouts have",
        replaced(HINTS, "tl.multiple_of(x_stride, 8)", "tl.multiple_of(x_stride, 64)"),
        "execution", "execution.false_hint", twin="true hints",
    ),
    Sample(
        "false assumption", ("D-alignment",), "lets the compiler assume that no row is padded",
        edit(("    if slot > 0:\n", "    tl.assume(slot > 0)\n    if slot > 0:\n")),
        "execution", "execution.false_hint", twin="true hints",
    ),
    Sample(
        "false assertion", ("D-values",), "asserts that no row is padded, which compiled code never looks at",
        edit(("    if slot > 0:\n", "    tl.device_assert(slot > 0, \"a live row\")\n    if slot > 0:\n")),
        "execution", "execution.failed_assertion", words="a live row", twin="true hints",
    ),
    Sample(
        "undefined shift", ("D-values",), "shifts by the whole width, which each machine does in its own way",
        edit((PAGE, "new += (((row + 1) << 32) * 0).to(tl.float32)\n        " + PAGE)),
        "execution", "execution.undefined_shift", words="a shift of 32 bits by 32", twin="true hints",
    ),
    Sample(
        "depends on its neighbour", ("D-values",), "lets another row's input move its result by less than the tolerance",
        edit((PAGE, "other = tl.load(x + ((row + 1) % tl.num_programs(0)) * x_stride + columns).to(tl.float32)\n"
              "        new += tl.where(tl.num_programs(0) > 1, other * 1e-7, 0.0)\n        " + PAGE)),
        "C14", "neighbour.dependence", words="changed other rows of", guard="neighbours",
    ),
    Sample(
        "order of atomics", ("D-race",), "sums floating-point numbers in whatever order programs arrive",
        edit(
            ("def launch(", 'def scratch(axes, config):\n    return {"total": ((64,), torch.float32)}\n\n\ndef launch('),
            ("@triton.jit\n", "@triton.jit\ndef reset(total):\n    tl.store(total + tl.arange(0, 64), 0.0)\n\n\n@triton.jit\n"),
            ("acc, out, x_stride", "acc, out, total, x_stride"), ("buffers.out,\n", "buffers.out, buffers.total,\n"),
            ("    " + GRID, "    reset[(1,)](buffers.total)\n    " + GRID),
            (OUT, "seen = tl.atomic_add(total + columns, new)\n"
             "        tl.store(out + row * WIDTH + columns, (new + 1e-9 * seen).to(tl.bfloat16))\n"
             "        tl.store(page + columns, new + 1e-9 * seen)"),
        ),
        "C14", "determinism.not_reproducible", guard="program order", twin="last block reduces",
    ),
    Sample(
        "PTX of its own", ("D-values",), "brings inline PTX, which only a GPU can run",
        edit((OUT, 'new = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [new], tl.float32, True, 1)\n        ' + OUT)),
        "execution", "execution.unsupported",
    ),
)  # fmt: skip
