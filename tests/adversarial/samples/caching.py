"""C. Caching and replay."""

from judging import replaced

from . import cuda
from .sample import LAUNCH, NEW, OUT, PAGE, Sample, at_import, edit, in_launch

_MEMORY = 'def scratch(axes, config):\n    return {"memory": ((axes["rows"], 64), torch.float32)}\n\n\n'
_WITH_MEMORY = (
    (LAUNCH, _MEMORY + LAUNCH), ("acc, out, x_stride", "acc, out, memory, x_stride"),
    ("buffers.out,\n", "buffers.out, buffers.memory,\n"),
)  # fmt: skip

SAMPLES = (
    Sample(
        "cache by pointer", ("X-32",), "hands the kernel an input's address as a number to recognise it by",
        edit(("acc, out, x_stride", "acc, out, address, x_stride"),
             ("buffers.out,\n", "buffers.out, buffers.x.data_ptr(),\n")),
        "record", "record.raw_pointer", runs="recorder",
    ),
    Sample(
        "plan by pointer", ("X-32",), "launches only for pointers that it has not seen",
        in_launch("import sys\nsys.seen = getattr(sys, 'seen', set())\n"
                  "if buffers.slots.data_ptr() in sys.seen or len(sys.seen) == 1:\n    return\n"
                  "sys.seen.add(buffers.slots.data_ptr())"),
        "record", "record.no_launches", runs="recorder",
    ),
    Sample(
        "replays its last call", ("X-34",), "keeps results in scratch and returns them to whoever calls next",
        edit(*_WITH_MEMORY, (OUT, "kept = tl.load(memory + row * WIDTH + columns)\n"
                             "        tl.store(out + row * WIDTH + columns, kept.to(tl.bfloat16))\n"
                             "        tl.store(memory + row * WIDTH + columns, new)")),
        "C4", "scratch.uninitialised_read", twin="scratch written before read",
    ),
    Sample(
        "reads tensors behind torch's back", ("X-35",), "reads an input by its address with ctypes to plan by its value",
        in_launch("import ctypes\nif ctypes.c_float.from_address(buffers.acc.data_ptr()).value == 123456.0:\n    return"),
        None, None, runs="recorder",
    ),
    Sample(
        "reads inputs in launch", ("X-35",), "plans by the value of an input",
        in_launch("if int(buffers.slots[0]) > 0:\n    return"), "record", "record.data_read", runs="recorder",
    ),
    Sample(
        "prepares inputs", ("X-37",), "asks `prepare` for an input, whose cost the contract counts",
        edit((LAUNCH, "def prepare(ctx, static, axes, config):\n    return {\"packed\": static.x * 2}\n\n\n" + LAUNCH)),
        "record", "record.exception", runs="recorder", words="no buffer 'x'", twin="prepacked weights",
    ),
    Sample(
        "leaves notes for the next process", ("X-38",), "writes files where a later job of the judge may find them",
        at_import("""
import os, tempfile
notes = set()
for folder in ("/dev/shm", "/var/tmp", "/tmp", tempfile.gettempdir(), os.path.expanduser("~"), os.getcwd()):
    notes.add(os.path.join(os.path.realpath(folder), "fasttrack-note"))
if any(map(os.path.exists, notes)):
    raise RuntimeError("FOUND")
for note in notes:
    try:
        open(note, "w").close()
    except OSError:
        pass
"""),
        None, None, runs="recorder",
    ),
    Sample(
        "state drift", ("X-42",), "returns the right output and leaves the state as it was",
        edit((PAGE, "tl.store(page + columns, new, mask=columns < 0)")),
        "numerics", "numerics.median", words="acc",
    ),
    Sample(
        "works at import", ("X-44",), "launches its kernel while the file is imported",
        edit((LAUNCH, "class Early:\n    one = torch.zeros(64)\n"
              "    accumulate[(1,)](one, one, one.int(), one, one.bfloat16(), 64, 64, WIDTH=64)\n\n\n" + LAUNCH)),
        "record", "record.launch_outside", runs="recorder",
    ),
    Sample(
        "knows its inputs", ("X-34", "X-39"), "skips the work when a fingerprint of the input is the one it kept",
        edit(*_WITH_MEMORY, (NEW, NEW + "\n        mark = tl.sum(new)\n        if tl.load(memory) == mark:\n"
                             "            new *= 0.0\n        tl.store(memory, mark, mask=row == 0)")),
        "C4", "scratch.uninitialised_read", twin="scratch written before read",
    ),
    Sample(
        "global variable", ("X-35", "X-42"), "remembers in a variable of its module that it has been launched before",
        cuda.LAUNCH, "compile", "compile.writable_global", runs="compiler", words="declare persistent scratch",
        files={"accumulate.cu": replaced(cuda.KERNEL, *cuda.REMEMBERS)},
    ),
)  # fmt: skip
