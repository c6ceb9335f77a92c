"""Carries out one unit on every path and keeps what each token left; goes on where it was stopped."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ...errors import UserError
from ...records import canonical_json
from . import tokens as kept
from .lines import Lines, writing
from .scenario import ORACLES, PADDING, Action, Actions, Kind, Unit
from .tokens import CANDIDATE, ORACLE, End, Header, Step, Token

SNAPSHOT_ACTIONS = 8
"""After so many actions the states of all paths are written down: a stop costs fewer"""


class Seen(Protocol):
    """What a path leaves of a step: see contracts/kimi_k3/numerics/paths.py."""

    logits: Tensor
    streams: Tensor
    chosen: Mapping[int, Tensor]
    scores: Mapping[int, Tensor]


class Contestant(Protocol):
    """A path over whole requests."""

    def begin(self, requests: int, max_tokens: int, width: int) -> None: ...
    def prefill(self, batch: Any) -> Seen: ...
    def decode(self, batch: Any) -> Seen: ...
    def commit(self, batch: Any, accepted: Any) -> None: ...
    def release(self, request: int) -> None: ...
    def committed(self, request: int) -> dict[str, Tensor]: ...
    def null_pages(self) -> tuple[str, ...]: ...
    def save(self, file: Path) -> None: ...
    def load(self, file: Path) -> None: ...


class Journal(Lines):
    """The lines of a unit: one an action, repeated without a change after a stop."""

    def __init__(self, file: Path, header: Header) -> None:
        super().__init__(file, header.canonical_json())
        self.count = 0
        """Actions that this run stands behind"""

    def record(self, record: Step | End) -> None:
        """Appends, or holds against the line that is there: UserError where it differs."""
        line = record.canonical_json()
        if self.count == len(self.lines):
            self.append(line)
        elif self.lines[self.count] != line:
            raise UserError(
                f"{self.file}: line {self.count + 2} came out differently this time",
                "a path is not deterministic here, or another version of it ran before: start over with --fresh",
            )
        self.count += 1


class UnitRun:
    """One unit: `paths` by name, the oracle and the candidate among them; `batch` makes a contract's batch."""

    def __init__(
        self, unit: Unit, paths: Mapping[str, Contestant], batch: Callable[[Action], Any], directory: Path, header: Header,
        say: Callable[[int], None] = lambda actions: None,
    ) -> None:  # fmt: skip
        self.unit, self.paths, self._batch, self._say = unit, paths, batch, say
        self._file = directory / f"{unit.key}.jsonl"
        self._states = directory / f"{unit.key}.states"
        self.journal = Journal(self._file, header)
        self._lengths = [0] * unit.requests
        self._compared = {name: path for name, path in paths.items() if name != ORACLE}

    def __call__(self, actions: Actions) -> Path:
        """Runs to the end; the file with the compressed records."""
        finished = self._file.with_suffix(".jsonl.gz")
        for path in self.paths.values():
            path.begin(self.unit.requests, self.unit.max_tokens, self.unit.width)
        with self.journal:
            self._run(actions)
        kept.compress(self._file, finished)
        self._file.unlink(missing_ok=True)
        shutil.rmtree(self._states, ignore_errors=True)
        return finished

    def _run(self, actions: Actions) -> None:
        resumed = self._resume()
        number, answer = 0, None
        while True:
            try:
                action = actions.send(answer)
            except StopIteration:
                break
            if number < resumed:
                step = Step.model_validate_json(self.journal.lines[number])
                self._count(action)
                answer = tuple(token.top1 for token in step.tokens)
                self.journal.count += 1
            else:
                step, answer = self._act(number, action)
                self.journal.record(step)
                self._count(action)
                if (number + 1) % SNAPSHOT_ACTIONS == 0:
                    self._snapshot(number + 1)
            number += 1
            self._say(number)
        self.journal.record(self._end())

    def _act(self, number: int, action: Action) -> tuple[Step, tuple[int, ...]]:
        if action.kind is Kind.RELEASE:
            for request in action.requests:
                for path in self.paths.values():
                    path.release(request)
            return Step(action=number, kind=action.kind, rows=0, padding=0, tokens=()), ()
        batch = self._batch(action)
        seen = {}
        for name, path in self.paths.items():
            seen[name] = path.prefill(batch) if action.kind is Kind.PREFILL else path.decode(batch)
            if action.kind is Kind.DECODE:
                path.commit(batch, action.accepted)
        tokens, row = [], 0
        for request, count in zip(action.requests, action.counts, strict=True):
            for place in range(count):
                if request != PADDING and action.targets[row] is not None:
                    tokens.append(self._token(action, seen, request, self._lengths[request] + place, row))
                row += 1
        padding = sum(count for request, count in zip(action.requests, action.counts) if request == PADDING)
        step = Step(action=number, kind=action.kind, rows=row, padding=padding, tokens=tuple(tokens))
        return step, tuple(token.top1 for token in tokens)

    def _token(self, action: Action, seen: Mapping[str, Seen], request: int, position: int, row: int) -> Token:
        exact = seen[ORACLE]
        experts = {
            name: tuple(
                layer for layer, ids in seen[name].chosen.items() if not torch.equal(ids[row].long(), exact.chosen[layer][row].long())
            )
            for name in self._compared
        }  # fmt: skip
        top, target = int(exact.logits[row].argmax()), action.targets[row]
        token = Token(
            request=request, position=position, token=action.tokens[row], target=top if target == ORACLES else target, top1=top,
            ran=kept.NOT_JUDGED, logits={}, streams={}, experts=experts, router={},
        )  # fmt: skip
        return self._judged(token, seen, row) if action.judged else token

    def _judged(self, token: Token, seen: Mapping[str, Seen], row: int) -> Token:
        exact = seen[ORACLE]
        logits = {ORACLE: kept.encode(exact.logits[row].float().numpy())}
        streams = {}
        edges = {layer: _edge(scores[row], exact.chosen[layer].shape[-1]) for layer, scores in exact.scores.items()}
        margins = {layer: float(exact.scores[layer][row][list(edge)].diff().neg()) for layer, edge in edges.items()}
        router = {ORACLE: tuple(kept.short(margin) for margin in margins.values())}
        for name in self._compared:
            own = seen[name]
            bits = own.logits[row].to(torch.bfloat16).contiguous().view(torch.int16).numpy()
            logits[name] = kept.encode(bits)
            errors = _relative(own.streams[:, row], exact.streams[:, row])
            streams[name] = tuple(kept.short(error) for error in errors)
            router[name] = tuple(
                kept.short(abs(float(own.scores[layer][row][list(edge)].double().diff().neg()) - margins[layer]))
                for layer, edge in edges.items()
            )
        ran = getattr(seen.get(CANDIDATE), "ran", "plain")
        return token.model_copy(update={"ran": ran, "logits": logits, "streams": streams, "router": router})

    def _count(self, action: Action) -> None:
        """Moves the lengths of requests on."""
        if action.kind is Kind.RELEASE:
            for request in action.requests:
                self._lengths[request] = 0
            return
        more = action.counts if action.kind is Kind.PREFILL else action.accepted
        for request, count in zip(action.requests, more, strict=True):
            if request != PADDING:
                self._lengths[request] += count

    def _end(self) -> End:
        exact = {request: self.paths[ORACLE].committed(request) for request in range(self.unit.requests)}
        states: dict[str, dict[str, float]] = {}
        rows: dict[str, dict[str, int]] = {}
        for name, path in self._compared.items():
            states[name], rows[name] = {}, {}
            for request, wanted in exact.items():
                for pool, tensor in path.committed(request).items():
                    error = float(_relative(tensor.flatten()[None], wanted[pool].flatten()[None])[0])
                    states[name][f"{request} {pool}"] = kept.short(error)
                    if pool.endswith(".cache"):
                        off = [n for n, error in enumerate(_relative(tensor, wanted[pool])) if not error < 0.5]
                        rows[name][f"{request} {pool}"] = off[0] if off else -1
        touched = {name: path.null_pages() for name, path in self._compared.items()}
        return End(states=states, rows=rows, touched=touched)

    def _snapshot(self, actions: int) -> None:
        fresh = self._states.with_suffix(".new")
        shutil.rmtree(fresh, ignore_errors=True)
        with writing(fresh):
            fresh.mkdir(parents=True)
            for name, path in self.paths.items():
                path.save(fresh / f"{name}.safetensors")
            (fresh / "actions.json").write_text(canonical_json({"actions": actions}))
        shutil.rmtree(self._states, ignore_errors=True)
        os.replace(fresh, self._states)

    def _resume(self) -> int:
        """Actions that need not run again: all paths stand behind them."""
        marker = self._states / "actions.json"
        if not marker.exists():
            return 0
        actions = json.loads(marker.read_text())["actions"]
        if actions > len(self.journal.lines):
            return 0
        for name, path in self.paths.items():
            path.load(self._states / f"{name}.safetensors")
        return actions


def _edge(scores: Tensor, k: int) -> tuple[int, int]:
    """The last expert that a row of scores chooses, and the first one that it leaves."""
    order = scores.sort(descending=True, stable=True).indices
    return int(order[k - 1]), int(order[k])


def _relative(got: Tensor, exact: Tensor) -> list[float]:
    """|got - exact| / |exact| along the last axis; infinity where `got` is not finite."""
    got, exact = got.double(), exact.double()
    error = (got - exact).norm(dim=-1) / exact.norm(dim=-1).clamp(min=2.0**-104)
    return torch.where(error.isfinite(), error, torch.inf).tolist()
