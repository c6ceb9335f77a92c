"""The proposer whose candidates come from outside: a coding agent that drives the lane through the tools."""

import threading
from collections.abc import Sequence

from fasttrack_validation.errors import UserError

from . import bench as benches
from .bench import Workbench
from .protocol import Done, Evaluation, Proposal
from .tools import ToolProblem, parse


class External:
    """Stands between the lane's thread, which waits for candidates, and the server's, which waits for verdicts.

    One candidate is under way at a time; a second call of `evaluate` waits for its turn. It keeps nothing that a resumed
    run would miss: what was judged is in the history.
    """

    name = "external"

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._turn = threading.Lock()
        self._bench: Workbench | None = None
        self._history: Sequence[Evaluation] = ()
        self._next: Proposal | Done | None = None
        self._ready = False
        self._over: str | None = None

    # The lane's side.

    def open(self, bench: Workbench) -> None:
        """Takes the workbench of the run; tools can be called once the lane asks for a candidate."""
        self._bench = bench

    def propose(self, history: Sequence[Evaluation]) -> Proposal | Done:
        """Waits for the next candidate, or for the agent to say that it is done."""
        with self._change:
            self._history = self._bench.history = history
            self._ready = True
            self._change.notify_all()
            # In slices: a signal only reaches the main thread between them.
            while self._next is None:
                self._change.wait(0.2)
            found, self._next = self._next, None
            return found

    def close(self, outcome: str) -> None:
        """The run is over; whoever still waits is told `outcome`."""
        with self._change:
            self._over = outcome
            self._change.notify_all()

    # The agent's side.

    def call(self, name: str, arguments: dict[str, object]) -> tuple[str, bool]:
        """The text that a call comes to, and whether it could be followed. Blocks while a candidate is judged."""
        with self._change:
            while not self._ready and self._over is None:
                self._change.wait(0.2)
            if self._over is not None:
                return f"the run is over: {self._over}", False
        try:
            tool = parse(name, arguments)
            result = self._bench.call(tool)
            if result.proposal is None and result.finish is None:
                return result.text, True
            with self._turn:
                if result.proposal is not None:
                    return self._judged(result.proposal), True
                return self._finished(result.finish), True
        except (ToolProblem, UserError) as problem:
            return f"not done: {problem}", False

    def leave(self) -> None:
        """The agent has gone: the run goes on with what it has."""
        with self._change:
            if self._next is None and self._over is None:
                self._next = Done("the agent has left")
                self._change.notify_all()

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return self._over is not None

    def _judged(self, proposal: Proposal) -> str:
        with self._change:
            before = len(self._history)
            self._next = proposal
            self._change.notify_all()
            while len(self._history) == before and self._over is None:
                self._change.wait(0.2)
            ended = f"\nThe run is over: {self._over}" if self._over is not None else ""
            if len(self._history) == before:
                return ended.strip()
            last = self._history[-1]
            return f"{benches.ruling(last.verdict)}\n{benches.attempt_line(before, last)}{ended}"

    def _finished(self, reason: str) -> str:
        with self._change:
            self._next = Done(f"the agent ends the search: {reason}")
            self._change.notify_all()
            while self._over is None:
                self._change.wait(0.2)
            return self._over
