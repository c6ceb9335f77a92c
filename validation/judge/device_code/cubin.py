"""What a cubin's section headers say of memory that outlives a launch. Pure; ELF as in the System V gABI, 64 bits."""

import struct

_HEADER = struct.Struct("<16s2HI3QI6H")
_SECTION = struct.Struct("<2I4Q2I2Q")
# __device__ variables of a module: without and with an initial value. __constant__ ones lie in .nv.constant3, and
# kernels cannot write them.
_GLOBALS = (".nv.global", ".nv.global.init")


def writable_globals(cubin: bytes) -> int:
    """Bytes of global variables, in memory that kernels can write. Raises ValueError for anything but a 64-bit ELF."""
    return sum(size for name, size in _sections(cubin) if name.startswith(_GLOBALS))


def _sections(cubin: bytes) -> list[tuple[str, int]]:
    """(name, size in memory) of every section."""
    if len(cubin) < _HEADER.size or cubin[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no ELF of 64 bits")
    _, _, _, _, _, _, place, _, _, _, _, entry_size, count, names = _HEADER.unpack_from(cubin)
    if entry_size != _SECTION.size or names >= count or place + count * entry_size > len(cubin):
        raise ValueError("its section headers do not fit")
    headers = [_SECTION.unpack_from(cubin, place + number * entry_size) for number in range(count)]
    _, _, _, _, start, length, *_ = headers[names]
    texts = cubin[start : start + length]
    if len(texts) != length:
        raise ValueError("its section names do not fit")
    found = []
    for name, _, _, _, _, size, *_ in headers:
        end = texts.find(b"\0", name)
        if end < 0:
            raise ValueError("a section has no name")
        found.append((texts[name:end].decode("ascii", errors="replace"), size))
    return found
