"""Small ELF files, written by hand after the System V gABI: what a cubin's section headers look like."""

import struct


def elf(sections: dict[str, int], tail: bytes = b"") -> bytes:
    """A 64-bit file with sections of these names and sizes in memory, and no contents."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in (*sections, ".shstrtab"))
    places, at = {}, 1
    for name in (*sections, ".shstrtab"):
        places[name] = at
        at += len(name) + 1
    headers = bytes(64)
    for name, size in sections.items():
        headers += struct.pack("<IIQQQQIIQQ", places[name], 8, 0, 0, 64, size, 0, 0, 4, 0)  # SHT_NOBITS
    headers += struct.pack("<IIQQQQIIQQ", places[".shstrtab"], 3, 0, 0, 64, len(names), 0, 0, 1, 0)
    count = len(sections) + 2
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 64 + len(names), 0, 64, 0, 0, 64, count, count - 1)
    return head + names + headers + tail
