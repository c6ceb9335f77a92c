"""F. Numerics, tolerances, weak tasks."""

from .sample import NEW, OUT, PAGE, SLOT, Sample, edit

_MEAN, _VARIANCE = "mean = tl.sum(value) / WIDTH", "variance = tl.sum(centred * centred) / WIDTH"

SAMPLES = (
    Sample(
        "constant inside the tolerance", ("X-69",), "returns zeros",
        edit((OUT, "tl.store(out + row * WIDTH + columns, tl.zeros((WIDTH,), tl.bfloat16))")),
        "numerics", "numerics.median", words="out",
    ),
    Sample(
        "downcast to bf16", ("X-73",), "rounds the state to bf16 before it adds",
        edit((NEW, NEW.replace("tl.load(page + columns)", "tl.load(page + columns).to(tl.bfloat16).to(tl.float32)"))),
        "numerics", "numerics.median", words="acc: the median of the relative error",
    ),
    Sample(
        "downcast to fp16", ("X-73",), "multiplies in fp16",
        edit((NEW, NEW.replace("* tl.load(w + columns)", "* tl.load(w + columns).to(tl.float16).to(tl.float32)"))),
        "numerics", "numerics.median", words="acc",
    ),
    Sample(
        "downcast to tf32", ("X-73", "X-74"), "sums with tensor cores, whose inputs are rounded to tf32",
        edit((_MEAN, "tile = tl.broadcast_to(value[None, :], (16, WIDTH))\n"
              "    sums = tl.dot(tile, tl.full((WIDTH, 16), 1.0, tl.float32))\n"
              "    mean = tl.max(tl.max(sums, axis=1), axis=0) / WIDTH"), op="normalise"),
        "numerics", "numerics.median", op="normalise", twin="normalise",
    ),
    Sample(
        "skips the hard part", ("X-75", "X-72"), "takes the mean of squares minus the square of the mean",
        edit((_VARIANCE, "variance = tl.sum(value * value) / WIDTH - mean * mean"), op="normalise"),
        "C11", "numerics.median", words="values offset", op="normalise", twin="normalise",
    ),
    Sample(
        "another epsilon", ("X-75",), "uses 1e-6 where the task says 1e-5",
        edit(("EPS=1e-5", "EPS=1e-6"), op="normalise"),
        "numerics", "numerics.median", words="out", op="normalise", twin="normalise",
    ),
    Sample(
        "epsilon in the wrong place", ("X-75",), "adds epsilon to the root instead of the variance",
        edit(("tl.rsqrt(variance + EPS)", "(1.0 / (tl.sqrt(variance) + EPS))"), op="normalise"),
        None, "numerics.median", op="normalise", twin="normalise",
    ),
    Sample(
        "hard-coded stride", ("X-78",), "takes the declared row stride for every layout",
        edit(("buffers.x.stride(0), buffers.acc", "64, buffers.acc")),
        None, "numerics.*", words="unseen", guard="unseen layouts",
    ),
    Sample(
        "dense pages", ("X-78",), "takes pages for dense",
        edit(("buffers.x.stride(0), buffers.acc.stride(0)", "buffers.x.stride(0), 64")),
        # The draw decides whether the first wrong page ends up between pages or in another request's.
        "C4", "gap.written or state.foreign_page", words="dense page stride",
    ),
    Sample(
        "hard-coded grid", ("X-78", "X-84"), "launches four programs whatever the batch",
        edit(('accumulate[(axes["rows"],)](', "accumulate[(4,)](")),
        "C4", "execution.out_of_bounds", words="past the end of",
    ),
    Sample(
        "not a number", ("X-83",), "returns NaN and counts on NaN being equal to NaN",
        edit((OUT, 'tl.store(out + row * WIDTH + columns, (new * float("nan")).to(tl.bfloat16))')),
        "C9", "numerics.not_finite", guard="finite outputs",
    ),
    Sample(
        "tail row skipped", ("X-84",), "leaves the last row out",
        edit(('accumulate[(axes["rows"],)](', 'accumulate[(max(1, axes["rows"] - 1),)](')),
        "C4", "poison.left", words="the last row of",
    ),
    Sample(
        "odd batches only in halves", ("X-84",), "works in pairs of rows and forgets the odd one",
        edit(('accumulate[(axes["rows"],)](', 'accumulate[(max(1, axes["rows"] // 2 * 2),)](')),
        "C4", "poison.left", words="the last row of",
    ),
    Sample(
        "32-bit offsets", ("X-85",), "multiplies page number and stride in 32 bits",
        edit((SLOT, "slot = tl.load(slots + row)")),
        "C4", "execution.out_of_bounds", words="need 64 bits", far=True, twin="plain, page offsets of 64 bits",
    ),
    Sample(
        "right for typical values", ("X-77",), "clamps what it adds to the range that tests like",
        edit((PAGE, "new = tl.minimum(tl.maximum(new, -60.0), 60.0)\n        " + PAGE)),
        "C11", "numerics.median", guard="distributions", words="values large",
    ),
)  # fmt: skip
