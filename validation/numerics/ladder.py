"""The rungs of the numerics ladder that a model's contract asks for."""

from ..records import Frozen


class Rung(Frozen):
    """One rung: op, teacher-forced, batch sweep, greedy, long context."""

    rung: str
    title: str
    needs: tuple[str, ...]
