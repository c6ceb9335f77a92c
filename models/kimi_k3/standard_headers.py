"""Headers that CUDA sources take for granted and a compiler without a host does not have, by name.

The same that candidates are judged with (a test says). `cuda.h` is the driver's host interface; a kernel needs one type.
"""

_INTEGERS = "".join(
    f"typedef {sign}{name} {prefix}int{bits}_t;\n"
    for sign, prefix in (("signed ", ""), ("unsigned ", "u"))
    for bits, name in ((8, "char"), (16, "short"), (32, "int"), (64, "long long"))
)
_STDINT = f"#pragma once\n{_INTEGERS}typedef int64_t intptr_t;\ntypedef uint64_t uintptr_t;\n"
_STDDEF = "#pragma once\ntypedef decltype(sizeof(0)) size_t;\ntypedef long ptrdiff_t;\n"
_TENSOR_MAP = (
    "#pragma once\ntypedef struct alignas(64) CUtensorMap_st { unsigned long long opaque[16]; } CUtensorMap;\n"
)

# Functions of mathematics, printf and assert are built in.
STANDARD_HEADERS = {
    "stdint.h": _STDINT, "cstdint": _STDINT, "stddef.h": _STDDEF, "cstddef": _STDDEF, "cuda.h": _TENSOR_MAP,
    "cudaTypedefs.h": _TENSOR_MAP,
    **dict.fromkeys(
        ("stdlib.h", "cstdlib", "math.h", "cmath", "assert.h", "cassert", "stdio.h", "cstdio"), "#pragma once\n"
    ),
}  # fmt: skip
