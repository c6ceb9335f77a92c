"""Reads what NVIDIA's tools print: ptxas -v, cuobjdump -res-usage, SASS and PTX. Pure; garbage gives empty answers.

What the texts do not say: `LOCAL` of -res-usage is 0 even when a kernel spills (STACK and the LDL/STL instructions
tell); the dynamic part of shared memory is in none of them; on sm_100 and newer the mnemonic of a tcgen05 product
(UTCHMMA, UTCQMMA) does not tell its operand types, PTX and the instruction descriptor do.
"""

import math
import re
from collections import Counter
from dataclasses import dataclass

_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,8})\*/\s+(?:@!?U?P[T0-9]\w*\s+)?([A-Z][A-Za-z0-9_.:]*)", re.MULTILINE)
_LISTED = re.compile(_INSTRUCTION.pattern + r"([^;]*);", re.MULTILINE)
_REGISTER = re.compile(r"\bR\d+\b")
_INSTRUCTION_BYTES = 16
# HMMA, IMMA, DMMA, QMMA, ...; HGMMA, QGMMA, ... (warp groups); UTCHMMA, UTCQMMA, UTCOMMA, ... (tcgen05)
_MATRIX = re.compile(r"(?:UTC)?[A-Z]G?MMA")
_CONVERSION = re.compile(r"F2F|F2FP|F2I|F2IP|I2F|I2FP|I2I|I2IP|FRND")
_PTXAS_NUMBERS = {
    "registers": re.compile(r"Used (\d+) registers"),
    "stack_bytes": re.compile(r"(\d+) bytes stack frame"),
    "spill_store_bytes": re.compile(r"(\d+) bytes spill stores"),
    "spill_load_bytes": re.compile(r"(\d+) bytes spill loads"),
    "static_shared_bytes": re.compile(r"(\d+) bytes smem"),
}
_FUNCTION = re.compile(r"^\s*Function (\S+?):\s*$\s*(.*)$", re.MULTILINE)
_RESOURCE = re.compile(r"\b([A-Z]+):(\d{1,18})\b")
_THREADS = re.compile(r"^\s*\.reqntid\s+(\d{1,9})(?:\s*,\s*(\d{1,9}))?(?:\s*,\s*(\d{1,9}))?", re.MULTILINE)
_ENTRY = re.compile(r"^\s*\.visible\s+\.entry\s+(\w+)\s*\(([^)]*)\)([^{]*)\{", re.MULTILINE)
_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+(?:\.ptr\s+(?:\.\w+\s+)*(?:\d+\s+)?)?\w+(\[\d+\])?")
_DIRECTIVE = re.compile(r"\.(maxntid|reqntid|reqnctapercluster)\s+(\d{1,9}(?:\s*,\s*\d{1,9}){0,2})")
_COMPILING = re.compile(r"^.*Compiling entry function '([^']*)'", re.MULTILINE)
_TCGEN05 = re.compile(r"\btcgen05\.mma(?:\.\w+(?:::\w+)*)*?\.kind::(\w+)(?:\.[\w:]+)*\s+([^;]*);")
_CONSTANT = re.compile(r"^mov\.[bsu]32\s+(%\w+),\s*(-?\d{1,12}|0x[0-9a-fA-F]{1,8})$")
_ASSIGNED = re.compile(r"^[a-z][\w.:]*\s+(?:\{([^}]*)\}|(%\w+(?:\|%\w+)?))")

# PTX ISA, "Instruction descriptor": D in bits 4-5, A in 7-9, B in 10-12.
_ACCUMULATORS = {0: "F16", 1: "F32", 2: "S32"}
_OPERANDS = {
    "f16": {0: "F16", 1: "BF16"},
    "tf32": {2: "TF32"},
    "f8f6f4": {0: "E4M3", 1: "E5M2", 3: "E2M3", 4: "E3M2", 5: "E2M1"},
    "i8": {0: "U8", 1: "S8"},
}


@dataclass(frozen=True)
class PtxasReport:
    """The figures of one entry function in the output of `ptxas -v`; bytes per thread, shared bytes per block."""

    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    static_shared_bytes: int


def ptxas_report(log: str) -> PtxasReport | None:
    """What `ptxas -v` says about the kernel; None when the log names no registers.

    Triton's modules have one entry; the figures of device functions that were not inlined are added to it.
    """
    found = {name: [int(n) for n in pattern.findall(log)] for name, pattern in _PTXAS_NUMBERS.items()}
    if not found["registers"]:
        return None
    registers = max(found.pop("registers"))
    return PtxasReport(registers=registers, **{name: sum(numbers) for name, numbers in found.items()})


@dataclass(frozen=True)
class Entry:
    """One kernel as PTX declares it; types as in `u64`, `f32`, `b8[128]`, bounds None where there are none."""

    parameters: tuple[str, ...]
    required_threads: int | None
    max_threads: int | None
    cluster: int | None


def entries(ptx: str) -> dict[str, Entry]:
    """The visible entry functions of a PTX module."""
    found = {}
    for name, parameters, directives in _ENTRY.findall(ptx):
        bounds = {word: _product(sizes) for word, sizes in _DIRECTIVE.findall(directives)}
        types = tuple(kind + count for kind, count in _PARAMETER.findall(parameters))
        sizes = (bounds.get("reqntid"), bounds.get("maxntid"), bounds.get("reqnctapercluster"))
        found[name] = Entry(types, *sizes)
    return found


def entry_ptx(ptx: str, name: str) -> str:
    """A PTX module without the entry functions other than `name`."""
    starts = [(match.start(), match[1]) for match in _ENTRY.finditer(ptx)]
    if len(starts) < 2:
        return ptx
    ends = [start for start, _ in starts[1:]] + [len(ptx)]
    kept = [ptx[start:end] for (start, entry), end in zip(starts, ends, strict=True) if entry == name]
    return ptx[: starts[0][0]] + "".join(kept)


def entry_log(log: str, name: str) -> str:
    """What `ptxas -v` says of one entry function and of the functions that it calls."""
    starts = [(match.start(), match[1]) for match in _COMPILING.finditer(log)]
    ends = [start for start, _ in starts[1:]] + [len(log)]
    return "".join(log[start:end] for (start, entry), end in zip(starts, ends, strict=True) if entry == name)


def resource_usage(text: str) -> dict[str, dict[str, int]]:
    """Function -> {REG, STACK, SHARED, ...} from `cuobjdump -res-usage`. SHARED includes what the system reserves."""
    return {name: {key: int(n) for key, n in _RESOURCE.findall(line)} for name, line in _FUNCTION.findall(text)}


def instructions(sass: str) -> Counter[str]:
    """Full mnemonic (with modifiers, such as HGMMA.64x64x16.F32.BF16) -> how often it stands in the listing."""
    return Counter(mnemonic.rstrip(".") for _, mnemonic in _INSTRUCTION.findall(sass))


def code_bytes(sass: str) -> int:
    """Bytes of machine code, the padding at the end of each function included."""
    return _INSTRUCTION_BYTES * sum(1 for _ in _INSTRUCTION.finditer(sass))


def local_accesses(counts: Counter[str]) -> tuple[int, int]:
    """Loads from and stores to local memory (LDL, STL): spills, and arrays that did not fit into registers."""
    return _count(counts, "LDL"), _count(counts, "STL")


def barriers(counts: Counter[str]) -> int:
    """Block-wide barrier instructions (BAR): each makes all warps of a block wait for the last one."""
    return _count(counts, "BAR")


def uneven_sums(sass: str) -> int:
    """Fused multiply-adds whose addend is what a butterfly exchange just brought.

    x y + shfl(x y) rounds a lane's own product once and its neighbour's twice, so the lanes of a sum end with different
    last bits. Triton has all of them store their sum to one place in shared memory (since 3.8): which one stays is a race.
    """
    found, brought = 0, set()
    for _, mnemonic, operands in _LISTED.findall(sass):
        registers = _REGISTER.findall(operands)
        if mnemonic == "FFMA" and registers and len(parts := operands.split(",")) == 4:
            found += any(register in brought for register in _REGISTER.findall(parts[3]))
        if registers:
            written = registers[0]
            brought.discard(written)
            if mnemonic.startswith("SHFL.BFLY"):
                brought.add(written)
    return found


def conversions(counts: Counter[str]) -> dict[str, int]:
    """Conversion instructions by full mnemonic: F2FP.BF16.F32.PACK_AB, F2F.F64.F32, I2FP.F32.S32, ..."""
    return {name: counts[name] for name in sorted(counts) if _CONVERSION.fullmatch(_base(name))}


def matrix_types(counts: Counter[str], ptx: str) -> tuple[str, ...]:
    """The kinds of matrix instruction, sorted.

    Warp and warp-group products by their SASS mnemonic, where no operand type means fp16 (HMMA.16816.F32). tcgen05
    products as `tcgen05.<kind>.<accumulator>.<A>.<B>` from PTX; `unknown` where the descriptor is no constant.
    """
    names = {name for name in counts if _MATRIX.fullmatch(_base(name))}
    tensor_memory = {name for name in names if name.startswith("UTC")}
    if not tensor_memory:
        return tuple(sorted(names))
    types = tcgen05_types(ptx) or tuple(f"{name}.unknown" for name in tensor_memory)
    return tuple(sorted((names - tensor_memory).union(types)))


def tcgen05_types(ptx: str) -> tuple[str, ...]:
    """The tcgen05 products of a PTX module, as in `matrix_types`; sorted, each once."""
    constants = _constants(ptx)
    types = set()
    for kind, operands in _TCGEN05.findall(ptx):
        parts = _split(operands)
        descriptors = _values(parts[3], constants) if len(parts) > 3 else None
        for descriptor in descriptors or (None,):
            types.add(f"tcgen05.{kind}.{_decode(kind, descriptor)}")
    return tuple(sorted(types))


def required_threads(ptx: str) -> int | None:
    """Threads of a block as PTX demands them (.reqntid); None when it does not."""
    found = _THREADS.search(ptx)
    if found is None:
        return None
    x, y, z = (int(size or 1) for size in found.groups())
    return x * y * z


def _product(sizes: str) -> int:
    return math.prod(int(size) for size in sizes.split(","))


def _base(mnemonic: str) -> str:
    return mnemonic.partition(".")[0]


def _count(counts: Counter[str], base: str) -> int:
    return sum(number for name, number in counts.items() if _base(name) == base)


def _decode(kind: str, descriptor: int | None) -> str:
    if descriptor is None:
        return "unknown"
    if kind.startswith("mx"):
        # Block-scaled products always accumulate in fp32; the fp4-only kinds have one operand type.
        known = {1: "E2M1"} if "f4" in kind and "f8" not in kind else _OPERANDS["f8f6f4"]
        accumulator = "F32"
    else:
        known = _OPERANDS.get(kind, {})
        accumulator = _ACCUMULATORS.get(descriptor >> 4 & 3)
    types = (accumulator, known.get(descriptor >> 7 & 7), known.get(descriptor >> 10 & 7))
    return ".".join(types) if all(types) else "unknown"


def _constants(ptx: str) -> dict[str, set[int] | None]:
    """Register -> the constants that are moved into it; None when anything else is ever assigned to it."""
    values: dict[str, set[int] | None] = {}
    for statement in re.split(r"[;\n]", ptx):
        statement = re.sub(r"^@!?%\w+\s+", "", statement.strip())
        constant = _CONSTANT.match(statement)
        if constant:
            known = values.setdefault(constant[1], set())
            if known is not None:
                known.add(int(constant[2], 0) & 0xFFFFFFFF)
        elif assigned := _ASSIGNED.match(statement):
            for register in re.findall(r"%\w+", assigned[1] or assigned[2]):
                values[register] = None
    return values


def _values(operand: str, constants: dict[str, set[int] | None]) -> set[int] | None:
    if re.fullmatch(r"\d{1,12}|0x[0-9a-fA-F]{1,8}", operand):
        return {int(operand, 0)}
    return constants.get(operand)


def _split(operands: str) -> list[str]:
    """Operands at the commas outside of brackets and braces."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(operands):
        depth += (character in "[{") - (character in "]}")
        if character == "," and depth == 0:
            parts.append(operands[start:position].strip())
            start = position + 1
    return [*parts, operands[start:].strip()]
