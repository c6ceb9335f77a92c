"""Choices that are the same on every machine and in every Python: a stream of SHA-256 digests over a key."""

from collections.abc import Sequence
from hashlib import sha256
from typing import TypeVar

T = TypeVar("T")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


class Draw:
    """Draws that depend on `key` alone."""

    def __init__(self, *key: str | int) -> None:
        self._key = "\0".join(map(str, key)).encode()
        self._count = 0

    def below(self, end: int) -> int:
        """A number from 0 to `end` - 1."""
        self._count += 1
        return int.from_bytes(sha256(self._key + b"\0" + str(self._count).encode()).digest()) % end

    def one_of(self, values: Sequence[T]) -> T:
        """One of `values`."""
        return values[self.below(len(values))]

    def shuffled(self, values: Sequence[T]) -> list[T]:
        """`values` in a random order."""
        rest = list(values)
        return [rest.pop(self.below(len(rest))) for _ in values]

    def letters(self, count: int) -> str:
        """`count` ASCII letters and digits."""
        return "".join(self.one_of(_LETTERS) for _ in range(count))
