"""Every state that an exchange can reach, each looked at once."""

from collections import deque
from dataclasses import dataclass

from .protocol import Faults, Plan, Protocol, State, WrongValue, finished, moves, start

MOST = 2_000_000


@dataclass(frozen=True)
class Violation:
    """What went wrong, and a shortest way there. `kind`: wrong_value, or stuck (nothing can happen, not all are through)."""

    kind: str
    message: str
    trace: tuple[str, ...]


@dataclass(frozen=True)
class Explored:
    """How many states there were, how many of them an end, and the first violation."""

    states: int
    ends: int
    violation: Violation | None


def explore(protocol: Protocol, plan: Plan, faults: Faults = Faults()) -> Explored:
    """Breadth first over all orders in which ranks act and stores arrive, until there is nothing new or something wrong.

    Raises MemoryError beyond MOST states: an exploration that was cut off shows nothing.
    """
    first = start(plan)
    came: dict[State, tuple[State, str] | None] = {first: None}
    todo, ends = deque([first]), 0
    while todo:
        state = todo.popleft()
        stuck = True
        try:
            for what, after in moves(protocol, plan, faults, state):
                stuck = False
                if after not in came:
                    came[after] = (state, what)
                    todo.append(after)
        except WrongValue as error:
            return Explored(len(came), ends, Violation("wrong_value", str(error), _trace(came, state)))
        if stuck:
            ends += 1
            if not finished(plan, state):
                waiting = [i for i, rank in enumerate(state.ranks) if rank.number < plan.total and not rank.dead]
                message = f"ranks {waiting} wait for ever"
                return Explored(len(came), ends, Violation("stuck", message, _trace(came, state)))
        if len(came) > MOST:
            raise MemoryError(f"more than {MOST} states: explore fewer ranks, rows or steps")
    return Explored(len(came), ends, None)


def _trace(came: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    steps = []
    while (step := came[state]) is not None:
        state, what = step
        steps.append(what)
    return tuple(reversed(steps))
