"""Which bytes of shared memory an address in PTX may name. Pure; the order of instructions counts within a block
alone.
"""

import math
import re
from collections import defaultdict
from dataclasses import dataclass

from . import ptx_values as values
from .ptx_code import Code, Instruction, parts
from .ptx_registers import WORD, Registers, integer, rounded_to
from .ptx_values import ANY, ANYWHERE, INDEX, SOMEWHERE, Value

_VARIABLE = re.compile(r"(?<![\w.])\.shared\s+(?:\.align\s+\d+\s+)?\.\w+\s+([\w$]+)")
_COPIES = frozenset(("mov", "cvt", "cvta", "mapa", "shfl"))
_LINEAR = frozenset(("mul", "mad", "shl"))
_WARP = 32
_OPPOSITE = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt",
             "lo": "ge", "hs": "lt", "hi": "le", "ls": "gt"}  # fmt: skip
# How often a bound may grow by itself; then it goes to the next constant that something is compared with, at last to
# infinity.
_STEPS, _LEAPS = 3, 32


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes [first, end) of a variable in shared memory, `per_warp` further on for each of the block's warps."""

    variable: str
    first: float
    end: float
    per_warp: int = 0
    warps: int = 1

    def meets(self, other: "Place", elsewhere: bool) -> bool:
        """Whether both may hold one byte; named by one thread, or, `elsewhere`, by any two."""
        if ANYWHERE in (self.variable, other.variable):
            return True
        if self.variable != other.variable:
            return False
        one, two = self, other
        if one.per_warp != two.per_warp:
            one, two = one._of_any_warp(), two._of_any_warp()
        elif elsewhere and one.per_warp:
            if max(one.end, two.end) - min(one.first, two.first) <= abs(one.per_warp):
                return False  # each warp's own
            one, two = one._of_any_warp(), two._of_any_warp()
        return one.first < two.end and two.first < one.end

    def _of_any_warp(self) -> "Place":
        most = self.per_warp * (self.warps - 1)
        return Place(self.variable, self.first + min(most, 0), self.end + max(most, 0))


class Places:
    """The places that addresses in one module name."""

    def __init__(self, ptx: str, code: Code) -> None:
        self._code = code
        self._registers = Registers(code)
        self._variables = set(_VARIABLE.findall(ptx))
        self._warps = -(-code.threads // _WARP)
        self._is_flat = "%tid.y" not in ptx and "%tid.z" not in ptx
        self._known: dict[tuple[int, str], Value] = {}

    def named(self, at: Instruction, address: str, size: float, *, generic: bool = False) -> Place | None:
        """The place of `size` bytes at the address that an instruction has in brackets.

        None where it is `generic` and no conversion from an address of shared memory is part of it.
        """
        value = self.value(at, address)
        if value.base in (None, ANYWHERE):
            return None if generic and value.base is None else Place(ANYWHERE, 0, math.inf)
        first = value.low if value.per_warp else max(value.low, 0)
        return Place(value.base, first, value.high + size, value.per_warp, self._warps)

    def value(self, at: Instruction, text: str) -> Value:
        """What an operand may be: registers, variables and numbers with plus signs between them."""
        found = values.number(0)
        for part in re.split(r"\s*\+\s*", text.strip()):
            if self._settled(at.function, part) is None:
                self._settle(at.function, part)
            found = values.added(found, self._settled(at.function, part) or ANY)
        return found

    def _settled(self, function: int, text: str) -> Value | None:
        """What is known of a number, variable or register; None of a register that nothing is known of yet."""
        constant = integer(text)
        if constant is not None:
            return values.number(constant)
        if text in self._variables:
            return Value(text, 0, 0)
        if text in ("%tid.x", "%tid.y", "%tid.z"):
            return Value(None, 0, self._code.threads - 1)
        if text == "%laneid":
            return Value(None, 0, _WARP - 1)
        return self._known.get((function, text)) if self._registers.set_by(function, text) else INDEX

    def _settle(self, function: int, wanted: str) -> None:
        """Finds what a register and all that it is computed from may be, over every instruction that sets them."""
        order, stack, seen, limits = [], [wanted], {wanted}, set()
        while stack:
            name = stack.pop()
            order.append(name)
            for one in self._registers.set_by(function, name):
                for word in WORD.findall(one.operands):
                    if word not in seen and self._settled(function, word) is None:
                        seen.add(word)
                        stack.append(word)
                if one.name.startswith("setp"):
                    constants = [number for text in parts(one.operands) if (number := integer(text)) is not None]
                    limits.update(number + more for number in constants for more in (-1, 0, 1))
        order.reverse()
        grown, changed = defaultdict(int), True
        while changed:
            changed = False
            for name in order:
                before = after = self._known.get((function, name))
                settings = self._registers.set_by(function, name)
                for one in settings:
                    made = self._made(one, name)
                    after = self._joined(after, made) if made else after
                if after != before and before and len(settings) > 1:  # what only follows others stops where they do
                    grown[name] += 1
                    after = _widened(before, after, limits, grown[name])
                if after != before:
                    self._known[function, name] = after
                    changed = True

    def _made(self, one: Instruction, name: str) -> Value | None:
        """What an instruction may set `name` to; None while it is not known what that depends on."""
        base, operands = one.name.partition(".")[0], parts(one.operands)
        if base == "call":
            return SOMEWHERE
        if base == "ld":
            # A kernel is never given an address of shared memory; a function may be, and may give one back.
            passed = ".param" in one.name and not self._code.is_of_kernel(one)
            return SOMEWHERE if passed else INDEX
        if base in _COPIES:
            return self._copied(one, name, operands)
        if base == "selp" and len(operands) == 4:
            return self._chosen(one)
        if base == "add" and len(operands) == 3:
            return self._added(one, operands)
        given = [self._settled(one.function, text) for text in operands[1:]]
        if None in given:
            return None
        if base == "sub" and len(given) == 2:
            return self._subtracted(one, *operands[1:])
        if base == "shr" and len(given) == 2:
            return self._shifted_right(one, *operands[1:])
        rule = _RULES.get((base, len(given)))
        if rule is None or ".hi" in one.name:
            return INDEX
        return rule(*(given if base in _LINEAR else map(self._of_any_warp, given)))

    def _of_any_warp(self, value: Value) -> Value:
        return value.of_any_warp(self._warps) if value.per_warp else value

    def _joined(self, one: Value | None, other: Value) -> Value:
        if one is None or one == other:
            return other
        if one.per_warp != other.per_warp and one.base == other.base:
            one, other = self._of_any_warp(one), self._of_any_warp(other)
        return values.joined(one, other)

    def _copied(self, one: Instruction, name: str, operands: list[str]) -> Value | None:
        source = operands[1] if len(operands) > 1 else ""
        if source.startswith("{"):
            source = parts(source[1:-1])[0]  # two halves of a wider register: an address has nothing in the upper one
        elif operands[0].startswith("{") and parts(operands[0][1:-1])[0] != name:
            return INDEX
        setting = self._registers.last(one, source)
        value = self._made(setting, source) if setting else self._settled(one.function, source)
        if one.name.startswith("cvta.") and ".shared" in one.name and value and value.base is None:
            return SOMEWHERE
        return value

    def _added(self, one: Instruction, operands: list[str]) -> Value | None:
        """A sum; one summand may be a choice by what the other one is, as in n + (n < most ? 1 : 0)."""
        for text, other in (operands[1:], operands[:0:-1]):
            choice = self._registers.last(one, text)
            if choice and choice.name.startswith("selp.") and not self._registers.last(one, other, since=choice):
                return self._chosen(choice, other)
        given = [self._settled(one.function, text) for text in operands[1:]]
        return None if None in given else values.added(*given)

    def _subtracted(self, one: Instruction, number: str, multiple: str) -> Value:
        """A difference; compilers make n % m of n and the multiple of m below it."""
        setting = self._registers.last(one, multiple)
        divisor = rounded_to(self._registers, setting, number) if setting else None
        if divisor:
            return Value(None, 0, divisor - 1)
        return values.subtracted(*(self._settled(one.function, text) for text in (number, multiple)))

    def _shifted_right(self, one: Instruction, number: str, by: str) -> Value:
        """A quotient by a power of 2: of a thread's number by the size of a warp, the number of its warp."""
        threads = self._registers.set_by(one.function, number)
        of_a_thread = bool(threads) and all(parts(setting.operands)[1:] == ["%tid.x"] for setting in threads)
        if self._is_flat and integer(by) == 5 and of_a_thread:
            return Value(None, 0, 0, per_warp=1)
        given = (self._of_any_warp(self._settled(one.function, text)) for text in (number, by))
        return values.shifted_right(*given, bits=32 if one.name.endswith(("32", "16")) else 64)

    def _chosen(self, choice: Instruction, added: str = "0") -> Value | None:
        """What a choice (selp) between two operands brings, with another operand added to either."""
        operands, found = parts(choice.operands), None
        for text, holds in ((operands[1], True), (operands[2], False)):
            sides = [self._where(choice, side, operands[3], holds) for side in (text, added)]
            if None not in sides:
                found = self._joined(found, values.added(*sides))
        return found

    def _where(self, one: Instruction, text: str, condition: str, holds: bool) -> Value | None:
        """What an operand may be where a condition holds, or does not; None if it is not known yet, or never is."""
        value, test = self._settled(one.function, text), self._registers.last(one, condition)
        if not value or not test or not test.name.startswith("setp.") or self._registers.last(one, text, since=test):
            return value
        operands = parts(test.operands)
        limit = integer(operands[2]) if len(operands) == 3 and operands[1] == text else None
        if limit is None or value.base or value.per_warp:
            return value
        relation = test.name.split(".")[1]
        relation = relation if holds else _OPPOSITE.get(relation, "")
        low, high = value.low, value.high
        if relation in ("lt", "lo", "le", "ls", "eq"):
            high = min(high, limit - (relation in ("lt", "lo")))
        if relation in ("gt", "hi", "ge", "hs", "eq"):
            low = max(low, limit + (relation in ("gt", "hi")))
        if relation == "ne":
            low, high = low + (low == limit), high - (high == limit)
        return Value(None, low, high) if low <= high else None


def _widened(before: Value, after: Value, limits: set[int], times: int) -> Value:
    """A value that grew for the n-th time: by itself at first, then up to a limit, at last without."""
    base, low, high, per_warp = after
    if high > before.high and times > _STEPS:
        beyond = [limit for limit in limits if limit >= high] if base is None and times < _LEAPS else []
        high = min(beyond, default=math.inf)
    if low < before.low and times > _STEPS:
        low = 0 if base is None and before.low >= 0 else -math.inf  # an index that counts down ends at nothing
    return Value(base, low, high, per_warp)


_RULES = {
    ("and", 2): values.anded,
    ("or", 2): values.ored,
    ("xor", 2): values.ored,
    ("not", 1): values.inverted,
    ("neg", 1): values.negated,
    ("min", 2): values.least,
    ("max", 2): values.greatest,
    ("rem", 2): values.remainder,
    ("div", 2): values.quotient,
    ("mul", 2): values.multiplied,
    ("mad", 3): values.multiplied_and_added,
    ("shl", 2): values.shifted_left,
}
"""(mnemonic, number of operands that are read) -> what comes of them."""
