"""Oracle, plain path and known mistakes of `mla_verify`: row by row `mla_core`'s, and what can go wrong between rows."""

from ..drawing import Mistakes
from ..mla_core import maths as single
from .inputs import DISTRIBUTIONS

__all__ = ["DISTRIBUTIONS", "MISTAKES", "Oracle", "plain", "with_bf16_probabilities"]

Oracle, plain, with_bf16_probabilities = single.Oracle, single.plain, single.with_bf16_probabilities

MISTAKES = Mistakes()


class _Seeing(Oracle):
    """An oracle whose rows see other cached rows: `length` of them, of the table that `table` names."""

    def first(self, row: int) -> int:
        """The first row of the row's request."""
        return row - row % self.axes["tokens"]

    def length(self, row: int) -> int:
        """Cached rows that a row sees."""
        return int(self.inputs["lengths"][row])

    def table(self, row: int) -> int:
        """The row whose table is read."""
        return row

    def history(self, row: int):
        cache = self.inputs["cache"]
        size, length = cache.shape[1], max(0, self.length(row))
        # Entries that mean nothing: whatever page they lead to.
        pages = self.inputs["page_table"][self.table(row), : -(-length // size)].long() % len(cache)
        return cache[pages].flatten(0, 1)[:length].double()


@MISTAKES("every token sees all tokens of its request: no mask among them")
class _(_Seeing):
    def length(self, row):
        first = self.first(row)
        return int(self.inputs["lengths"][first : first + self.axes["tokens"]].max())


@MISTAKES("every token sees the one behind it as well: the mask is off by one")
class _(_Seeing):
    def length(self, row):
        own, first = super().length(row), self.first(row)
        return min(own + 1, int(self.inputs["lengths"][first : first + self.axes["tokens"]].max()))


@MISTAKES("no token but the first sees its own cached row: the mask is off by one")
class _(_Seeing):
    def length(self, row):
        own = super().length(row)
        return own if row == self.first(row) else max(1, own - 1)


@MISTAKES("every token sees as much as the first one of its request")
class _(_Seeing):
    def length(self, row):
        return super().length(self.first(row))


@MISTAKES("tokens of a request see what they would in the opposite order")
class _(_Seeing):
    def length(self, row):
        first = self.first(row)
        live = int((self.inputs["lengths"][first : first + self.axes["tokens"]] > 0).sum())
        return super().length(first + max(0, live - 1 - (row - first)))


@MISTAKES("the request's number is taken for a row's: another request's table is read")
class _(_Seeing):
    def table(self, row):
        return row // self.axes["tokens"]


@MISTAKES("every request reads the table of the one before it")
class _(_Seeing):
    def table(self, row):
        return self.first(row) - self.axes["tokens"]


@MISTAKES("rows are taken token by token over all requests, not request by request")
class _(_Seeing):
    def _turned(self, row):
        requests = self.axes["rows"] // self.axes["tokens"]
        return row % requests * self.axes["tokens"] + row // requests

    def table(self, row):
        return self._turned(row)

    def length(self, row):
        return max(1, super().length(self._turned(row)))


@MISTAKES("padding rows see what a token of their place would: lengths are counted on from the request's first")
class _(_Seeing):
    def length(self, row):
        first = self.first(row)
        return super().length(first) + row - first

    def live(self, row):
        return self.length(row) > 0

    def query(self, row):
        return super().query(row).nan_to_num()


@MISTAKES("pages behind the one that a request's first token writes are left out")
class _(_Seeing):
    def length(self, row):
        size = self.axes["page_size"]
        return min(super().length(row), -(-super().length(self.first(row)) // size) * size)


# And whatever can be wrong with a row alone.
MISTAKES.update(single.MISTAKES)
