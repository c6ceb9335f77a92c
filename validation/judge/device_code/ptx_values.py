"""What a register of PTX may hold: intervals beside what they count from. Pure.

Where the code does not bound a number, it is taken for an index, which leads upwards from the address that it is added
to, as in any array; subtracted from an address, it may lead anywhere.
"""

import math
from typing import NamedTuple

ANYWHERE = "?"
"""The variable of an address that points into shared memory, and the code does not say where."""


class Value(NamedTuple):
    """`base` + warp x `per_warp` + a number from `low` to `high`.

    `base`: a variable in shared memory, or None, where it is no address of shared memory; warp: the number of the
    warp in its block.
    """

    base: str | None
    low: float
    high: float
    per_warp: int = 0

    @property
    def constant(self) -> int | None:
        """The number that this is, if it is only one."""
        return int(self.low) if self.base is None and self.low == self.high and not self.per_warp else None

    def of_any_warp(self, warps: int) -> "Value":
        """The same without regard to which warp it is."""
        most = self.per_warp * (warps - 1)
        return Value(self.base, self.low + min(most, 0), self.high + max(most, 0))


INDEX = Value(None, 0, math.inf)
ANY = Value(None, -math.inf, math.inf)
SOMEWHERE = Value(ANYWHERE, -math.inf, math.inf)


def number(value: int) -> Value:
    """One number."""
    return Value(None, value, value)


def added(one: Value, other: Value) -> Value:
    """one + other."""
    if one.base and other.base:
        return SOMEWHERE
    return Value(one.base or other.base, one.low + other.low, one.high + other.high, one.per_warp + other.per_warp)


def subtracted(one: Value, other: Value) -> Value:
    """one - other. Of two numbers that both vary, or one that is not bounded, it is an index."""
    per_warp = one.per_warp - other.per_warp
    if other.base:
        if one.base != other.base or one.base == ANYWHERE:
            return ANY
        return Value(None, one.low - other.high, one.high - other.low, per_warp)
    if one.base is None and (other.high == math.inf or one.constant is None and other.constant is None):
        return Value(None, max(one.low - other.high, 0), max(one.high - other.low, 0), per_warp)
    return Value(one.base, one.low - other.high, one.high - other.low, per_warp)


def multiplied(one: Value, other: Value) -> Value:
    """one x other; what each warp adds is kept only beside a constant."""
    if one.base or other.base:
        return ANY
    ends = [x * y if x and y else 0 for x in (one.low, one.high) for y in (other.low, other.high)]
    per_warp = one.per_warp * (other.constant or 0) + other.per_warp * (one.constant or 0)
    return Value(None, min(ends), max(ends), per_warp)


def multiplied_and_added(one: Value, other: Value, more: Value) -> Value:
    """one x other + more, where a product that has no least value is less a multiple: i - i / n * n."""
    product = multiplied(one, other)
    if product.low == -math.inf and more.base is None:
        return Value(None, 0, max(more.high, 0))
    return added(product, more)


def shifted_left(one: Value, by: Value) -> Value:
    """one << by."""
    if one.base or not 0 <= by.low <= by.high < 64:
        return INDEX
    return multiplied(one, Value(None, 2**by.low, 2**by.high))


def shifted_right(one: Value, by: Value, bits: int = 64) -> Value:
    """one >> by, of so many bits."""
    if one.base or one.low < 0 or by.constant is None or not 0 <= by.low < 64:
        return INDEX
    most = min(one.high, 2**32 - 1) if bits <= 32 else one.high
    return Value(None, one.low // 2**by.constant, most // 2**by.constant if most < math.inf else most)


def anded(one: Value, other: Value) -> Value:
    """one & other; of an address and a negative number: rounded down."""
    for value, mask in ((one, other), (other, one)):
        if value.base and mask.constant is not None and mask.low < 0:
            return Value(value.base, value.low + mask.low + 1, value.high)
    bounds = [value.high for value in (one, other) if value.base is None and value.low >= 0]
    return Value(None, 0, min(bounds)) if bounds else INDEX


def ored(one: Value, other: Value) -> Value:
    """one | other, or one ^ other."""
    if one.base or other.base:
        address, bits = (one, other) if one.base else (other, one)
        if bits.base or bits.low < 0:
            return SOMEWHERE
        return Value(address.base, address.low - bits.high, address.high + bits.high)
    if one.low < 0 or other.low < 0:
        return INDEX
    most = max(one.high, other.high)
    bits = 2 ** int(most).bit_length() - 1 if most < math.inf else most
    return Value(None, 0, min(bits, one.high + other.high))


def inverted(one: Value) -> Value:
    """~one."""
    return ANY if one.base else Value(None, -one.high - 1, -one.low - 1)


def negated(one: Value) -> Value:
    """-one."""
    return ANY if one.base else Value(None, -one.high, -one.low)


def remainder(one: Value, by: Value) -> Value:
    """one % by."""
    if one.base or by.base or by.low <= 0:
        return INDEX
    return Value(None, 0 if one.low >= 0 else 1 - by.high, min(by.high - 1, max(one.high, 0)))


def quotient(one: Value, by: Value) -> Value:
    """one / by."""
    if one.base or one.low < 0 or by.base or by.low <= 0:
        return INDEX
    return Value(None, 0, one.high // by.low if one.high < math.inf else one.high)


def least(one: Value, other: Value) -> Value:
    """min(one, other)."""
    return Value(one.base or other.base, min(one.low, other.low), min(one.high, other.high))


def greatest(one: Value, other: Value) -> Value:
    """max(one, other)."""
    return Value(one.base or other.base, max(one.low, other.low), max(one.high, other.high))


def joined(one: Value, other: Value) -> Value:
    """Either, where both have the same `per_warp`. Beside an address, a number is a null pointer."""
    if one.base != other.base:
        if None in (one.base, other.base):
            return one if other.base is None else other
        return SOMEWHERE
    return Value(one.base, min(one.low, other.low), max(one.high, other.high), one.per_warp)
