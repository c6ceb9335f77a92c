"""Which instructions of PTX set a register. Pure."""

import re
from collections import defaultdict

from .ptx_code import Code, Instruction, parts

WORD = re.compile(r"[%$A-Za-z_][\w$.@]*")
"""Registers, variables and labels in operands."""
NUMBER = re.compile(r"-?(?:0x[0-9a-fA-F]{1,16}|\d{1,20})U?\Z")
"""An integer constant."""
# Instructions whose first operand is a result. Others have none, or none that addresses are computed from.
_COMPUTES = frozenset(
    "abs add addc and atom bfe bfi brev call clz cvt cvta div dp4a elect fma fns getctarank ld ldmatrix ldu lop3 mad "
    "mad24 mapa max min mov movmatrix mul mul24 neg not or popc prmt redux rem sad selp set setp shf shfl shl shr sub "
    "subc szext vote xor".split()
)


def integer(text: str) -> int | None:
    """The value of an integer constant; None for other operands."""
    return int(text.rstrip("U"), 0) if NUMBER.match(text) else None


class Registers:
    """For each register of a function, what sets it, in the order of the text."""

    def __init__(self, code: Code) -> None:
        self._block = code.block
        self._set: dict[tuple[int, str], list[Instruction]] = defaultdict(list)
        for one in code.instructions:
            if one.name.partition(".")[0] in _COMPUTES:
                for name in WORD.findall(parts(one.operands)[0]):
                    self._set[one.function, name].append(one)

    def set_by(self, function: int, name: str) -> list[Instruction]:
        """Everything that sets a register of a function; nothing for other operands."""
        return self._set.get((function, name), [])

    def last(self, one: Instruction, name: str, since: Instruction | None = None) -> Instruction | None:
        """What set a register last before an instruction, and after `since`; None where its block does not tell."""
        first = since.number if since else -1
        found = None
        for setting in self.set_by(one.function, name):
            if first < setting.number < one.number and self._block[setting.number] == self._block[one.number]:
                found = setting
        return found


def rounded_to(registers: Registers, one: Instruction, name: str) -> int | None:
    """m, where an instruction gives a register's n rounded down to a multiple of m; None for others."""
    base, operands = one.name.partition(".")[0], parts(one.operands)
    factor = integer(operands[2]) if len(operands) == 3 else None
    if factor is None:
        return None
    if base == "and" and factor < 0 and factor & -factor == -factor:
        return -factor if _is_near(registers, one, operands[1], name, -factor) else None
    if base == "shl" and 0 <= factor < 64:
        factor = 2**factor
    elif base != "mul" or ".hi" in one.name:
        return None
    return factor if _divided_by(registers, one, operands[1], name) == factor else None


def _is_near(registers: Registers, one: Instruction, near: str, name: str, power: int) -> bool:
    """Whether a register holds n, or n with its sign added as so many bits that rounding goes towards zero."""
    if near == name:
        return True
    adding = registers.last(one, near)
    summands = parts(adding.operands)[1:] if adding and adding.name.startswith("add.") else []
    others = [text for text in summands if text != name]
    if len(summands) != 2 or len(others) != 1:
        return False
    sign = registers.last(adding, others[0])
    shift = integer(parts(sign.operands)[-1]) if sign and sign.name.startswith("shr.u") else None
    return shift is not None and 2 ** (int(sign.name[-2:]) - shift) <= power


def _divided_by(registers: Registers, one: Instruction, quotient: str, name: str) -> int | None:
    """d, where a register was set to n / d: by a division, or by a product with 2 ** (bits + s) / d and a shift."""
    shift, carry = 0, False
    while (one := registers.last(one, quotient)) is not None:
        base, operands = one.name.partition(".")[0], parts(one.operands)[1:]
        if base in ("mov", "cvt") and len(operands) == 1:
            quotient = operands[0]
            continue
        if len(operands) != 2:
            return None
        if base == "add":  # the sign of n, which rounds a negative quotient towards zero; or n itself, as a carry
            signs = [text for text in operands if _is_sign(registers.last(one, text))]
            carry = carry or name in operands
            quotient = next((text for text in operands if text not in (*signs, name)), name)
            continue
        constant = integer(operands[1])
        if constant is None:
            return None
        if base == "shr":
            shift, quotient = shift + constant, operands[0]
            continue
        if operands[0] != name:
            return None
        if base == "mul" and (".hi" in one.name or ".wide.u32" in one.name):
            bits = 64 if one.name.endswith("64") else 32
            constant += 2**bits if constant < 0 and (carry or ".u" in one.name) else 0
            return _inverse(constant, shift if ".wide" in one.name else bits + shift)
        return constant if base == "div" and not shift else None
    return None


def _inverse(constant: int, shift: int) -> int | None:
    """d, where x * constant >> shift is x / d for every x of 32 or 64 bits (Granlund and Montgomery, 1994)."""
    if constant <= 0:
        return None
    divisor = round(2**shift / constant)
    return divisor if 0 <= divisor * constant - 2**shift <= 2 ** (max(shift - 30, 1)) else None


def _is_sign(one: Instruction | None) -> bool:
    """Whether an instruction gives the uppermost bit of a register."""
    return one is not None and one.name.startswith("shr.u") and parts(one.operands)[2:] in (["31"], ["63"])
