"""Runs one cell on two servers: both warmed, then loaded in turns, so that a drift of the machine meets both alike."""

import random
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path

from ..performance.serving_grid import Drafting, Load, ServingCell, ServingGrid
from . import counters, figures, prompts
from .answers import Run
from .records import Asking, Failed, Measured, NotRun, Record, Round, Side, conditions_digest
from .servers import Arm, Server, Servers
from .tools import Asked, Tool, ToolFailed, choose, send

Floor = Callable[[ServingCell], tuple[int, int] | None]


class Runner:
    """The cells of `grid` on `servers`. `folder`: where the file of servers lies, and what it names.

    `rate`: requests a second of an open loop for mixed loads; None leaves them closed. `floor`: a step's bytes and flops.
    `subject`: digest of the sources that the figures are about. `raw`: is handed every load as it was seen, with its round.
    """

    def __init__(
        self, grid: ServingGrid, servers: Servers, folder: Path, *, subject: str, tool: Tool | None = None,
        rate: float | None = None, floor: Floor = lambda cell: None, source: random.Random | None = None,
        raw: Callable[[ServingCell, int, Arm, Run], None] = lambda *_: None,
        say: Callable[[str], None] = lambda line: None,
        today: Callable[[], date] = lambda: datetime.now(UTC).date(),
    ) -> None:  # fmt: skip
        self._grid, self._servers, self._folder, self._tool, self._rate = grid, servers, folder, tool, rate
        self._subject = subject
        self._floor, self._source, self._raw = floor, source or random.SystemRandom(), raw
        self._say, self._today = say, today

    def why_not(self, cell: ServingCell) -> str | None:
        """Why these servers cannot give a figure for a cell; None where they can."""
        there = {one.arm for one in self._servers.at(cell.tp, cell.speculation)}
        if lacking := [arm for arm in Arm if arm not in there]:
            how = "speculation off" if cell.speculation is Drafting.OFF else f"{cell.speculation} speculation"
            return f"no server of TP {cell.tp} with {how} is named for: {', '.join(lacking)}"
        if cell.speculation is Drafting.NATURAL and cell.load is not Load.AGENTIC and self._servers.load.prompts is None:
            return "natural acceptance is that of natural text: name load.prompts"
        return None

    def asking(self, cell: ServingCell) -> Asking:
        """What is asked of both arms in a cell."""
        load = self._servers.load
        decode_only, agentic = cell.load is Load.DECODE_ONLY, cell.load is Load.AGENTIC
        return Asking(
            data=prompts.data_name(load, self._folder, agentic=agentic), osl=load.osl or self._grid.osl,
            requests=cell.concurrency * (1 if decode_only else 2 if agentic else load.requests_each),
            warm_up=cell.concurrency, temperature=load.temperature,
            rate=self._rate if cell.load is Load.MIXED_PREFILL else None, objective=load.objective,
            decode_only=decode_only,
        )  # fmt: skip

    def conditions(self, cell: ServingCell) -> str:
        """The digest that a kept figure of this cell must have to be this one's: servers, versions, tool, and asking."""
        sides = {one.arm: one for one in self._servers.at(cell.tp, cell.speculation)}
        stated = [
            [arm, sides[arm].conditions, sides[arm].model, self._version(sides[arm])] for arm in Arm if arm in sides
        ]
        asking = self.asking(cell)
        tool = choose(self._tool, self._asked(cell, asking, 0, asking.requests))
        return conditions_digest(stated, asking.model_dump(mode="json"), tool, self._servers.load.rounds)

    def run(self, cell: ServingCell) -> Record:
        """One cell. What servers and tools do wrong is its outcome."""
        if why := self.why_not(cell):
            return self._record(cell, NotRun(reason=why))
        try:
            return self._record(cell, self._measured(cell))
        except ToolFailed as error:
            return self._record(cell, Failed(stage="load", reason=str(error)))

    def _measured(self, cell: ServingCell) -> Measured | Failed:
        sides = {one.arm: one for one in self._servers.at(cell.tp, cell.speculation)}
        versions = {}
        for arm, server in sides.items():
            try:
                seen = counters.look(server.url)
            except (OSError, ValueError) as error:
                return Failed(stage="server", reason=f"{arm} at {server.url}: {error}")
            if server.model not in seen.models:
                return Failed(
                    stage="server", reason=f"{arm} at {server.url} serves {', '.join(seen.models)}, not {server.model}"
                )
            versions[arm] = seen.version
        asking = self.asking(cell)
        tool = choose(self._tool, self._asked(cell, asking, 0, asking.requests))
        for arm, server in sides.items():
            self._say(f"{arm}: warming up")
            self._send(Tool.OWN, server, self._asked(cell, asking, self._seed(), asking.warm_up))
        order = (Arm.STOCK, Arm.SPECIALISED)
        found: dict[Arm, list[Round]] = {arm: [] for arm in order}
        for number in range(self._servers.load.rounds):
            seed = self._seed()  # of both arms: they are asked the same, and never what was asked before
            for arm in order if number % 2 == 0 else order[::-1]:
                self._say(f"round {number + 1} of {self._servers.load.rounds}: {arm}")
                run = self._send(tool, sides[arm], self._asked(cell, asking, seed, asking.requests))
                try:
                    figure = figures.of(run, decode_only=asking.decode_only, objective=asking.objective)
                except figures.NoFigure as error:
                    return Failed(stage="load", reason=f"{arm}, round {number + 1}: {error}")
                found[arm].append(Round.of(run, figure))
                self._raw(cell, number, arm, run)

        def side(arm: Arm) -> Side:
            return Side(arm=arm, conditions=sides[arm].conditions, model=sides[arm].model, version=versions[arm],
                        rounds=tuple(found[arm]))  # fmt: skip

        return Measured(stock=side(Arm.STOCK), specialised=side(Arm.SPECIALISED), order=order)

    def _send(self, tool: Tool, server: Server, asked: Asked) -> Run:
        try:
            return send(tool, server, asked)
        except ToolFailed as error:
            raise ToolFailed(f"{server.arm}: {error}") from error

    def _asked(self, cell: ServingCell, asking: Asking, seed: int, count: int) -> Asked:
        return Asked(
            kind=cell.load, concurrency=cell.concurrency, isl=cell.isl, osl=asking.osl, count=count, seed=seed,
            rate=asking.rate, load=self._servers.load, folder=self._folder,
        )  # fmt: skip

    def _seed(self) -> int:
        # What vLLM and other servers take as a seed fits 32 bits; each request adds its number.
        return self._source.randrange(2**30)

    def _version(self, server: Server) -> str | None:
        try:
            return counters.look(server.url).version
        except (OSError, ValueError):
            return None

    def _record(self, cell: ServingCell, outcome: Measured | Failed | NotRun) -> Record:
        measured = isinstance(outcome, Measured)
        return Record(
            cell=cell, hardware=self._servers.hardware, asking=self.asking(cell), subject=self._subject,
            conditions=self.conditions(cell),
            draft_tokens=self._grid.draft_tokens, floor=self._floor(cell) if measured else None,
            taken=self._today().isoformat(), outcome=outcome,
        )  # fmt: skip
