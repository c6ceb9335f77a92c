"""Whether PTX that streams weights through shared memory orders what it has read before the copy that comes next there.

A bulk copy writes through the async proxy. A barrier orders a thread's own reads before what others do behind it, but not
before writes of another proxy: that takes `fence.proxy.async` (PTX ISA, "Async proxy"). What was read in front of a barrier
of the block is not counted: lists that a block makes for itself, never a place of its ring.
"""

import re

_READ = re.compile(r"\bld\.shared\.v4\b|\bldmatrix\.")
_FENCE = re.compile(r"\bfence\.proxy\.async\b|\bbar(?:rier)?\.sync\b")
_COPY = re.compile(r"\bcp\.async\.bulk\.shared\b")
_FREED = re.compile(r"\bmbarrier\.arrive\.shared\b")


def unordered(ptx: str, *, freed_by_arrival: bool) -> list[int]:
    """Lines of PTX that hand a place over, by an arrival at its barrier or by the next copy itself, with reads 16 bytes wide
    in front of them, in the order of the text, and no fence since."""
    handed, reads, found = _FREED if freed_by_arrival else _COPY, False, []
    for number, line in enumerate(ptx.splitlines(), 1):
        if _READ.search(line):
            reads = True
        elif _FENCE.search(line):
            reads = False
        elif reads and handed.search(line):
            found.append(number)
    return found
