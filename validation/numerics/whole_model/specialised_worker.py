"""The specialised path's own process: kernels on its card, what they leave to the stock path run plainly beside them.

It never holds the oracle. Without a GPU it is started with TRITON_INTERPRET=1.
"""

import os
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...contracts.base import OpContract, Workload
from ...contracts.kimi_k3.architecture import Architecture
from ...contracts.kimi_k3.numerics import kernel_sizes, long_state, op_exams
from ...contracts.kimi_k3.numerics.paths import Seen, TorchPath
from ...contracts.kimi_k3.numerics.weights import WeightsOf, paths_of
from ...contracts.kimi_k3.step.state import PADDING, Batch
from ...performance.arm import packed
from ...performance.directory import load
from . import cards, long_steps
from .orphans import end_with
from .simulated_ranks import Group, launch_op, resize
from .specialised import received


def main(descriptor: int, role: str, model: str, directory: str) -> None:
    """Answers commands on a connection until it closes: ("ok", value) or ("error", text) for each."""
    end_with(os.getppid())
    torch.set_num_threads(1)
    worker, pipe = Worker(Path(directory)), Connection(descriptor)
    while True:
        try:
            command, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(("ok", getattr(worker, f"do_{command}")(**arguments)))
        except Exception as error:  # the caller decides what it means, so it gets the whole story
            pipe.send(("error", f"{error}\n{traceback.format_exc()}"))


class Worker:
    """A path: the plain path's state, which the decoders are bound to."""

    def __init__(self, directory: Path) -> None:
        self.factory, self.directory = load(directory)

    def do_open(self, weights: dict[str, Any], tp: int, device: str) -> None:
        """Names the weights of every rank, which are loaded when requests begin."""
        self.paths, self.tp, self._plain = paths_of(WeightsOf.model_validate(weights), device), tp, None
        self.card = cards.of(device, self.factory, self.directory)
        prepared = self.directory.kernel("executor.py").Prepared
        self._prepared = [prepared() for _ in range(tp)]

    @property
    def plain(self) -> TorchPath:
        """The plain path, whose state the decoders are bound to."""
        if self._plain is None:
            self._plain = self.paths.stock(self.tp)
        return self._plain

    def do_begin(self, requests: int, max_tokens: int, width: int, buckets: list[int]) -> None:
        """Empty caches; prepares every bucket on them, and of verify steps of up to `width` tokens those that fit."""
        of = self.paths.architecture
        self.plain.begin(requests, max_tokens, width)
        names = {"conv": "conv_state", "recurrent": "recurrent_state", "rows": "cache"}
        caches = [
            {layer: {names[name]: pool for name, pool in vars(cache).items()} for layer, cache in rank.items()}
            for rank in self.plain.state.ranks
        ]
        self.group = Group(
            self.factory, self.directory, self.paths.shards(self.tp), caches, card=self.card,
            pages=self.plain.state.pages.shape[1], buckets=buckets, sizes=kernel_sizes.sizes(of),
            constants=kernel_sizes.constants(of), configurations=self._configurations(of, self.tp),
            width=width, prepared=self._prepared,
        )  # fmt: skip
        self._in_place = False

    def _configurations(self, of: Architecture, tp: int) -> Mapping[str, Mapping[str, Any]] | None:
        """None at the published widths on a GPU: dispatch tables are about them."""
        if self.card.device == cards.CUDA and of.hidden_size == Architecture.from_config().hidden_size:
            return None
        return kernel_sizes.configurations(of, tp)

    def do_prefill(self, **batch: Any) -> dict[str, Any]:
        """By the plain path, as an engine's decode path leaves it to the stock one."""
        return _sent(self.plain.prefill(_batch(batch)), "stock")

    def do_decode(self, **batch: Any) -> dict[str, Any]:
        """By the kernels where the plan says so."""
        batch, state = _batch(batch), self.plain.state
        plan = self.group.plan(batch.counts)
        here, several = self.group.runs_here(plan), max(batch.counts) > 1
        self._in_place = here and not several
        if not here:
            return _sent(self.plain.decode(batch), "stock")
        weights, device = self.paths.shards(self.tp), self.card.device
        counts = torch.tensor(batch.counts, device=device)
        lengths = [
            (before + 1 + t) * (request != PADDING)
            for before, request, count in zip(state.lengths_of(batch), batch.requests, batch.counts, strict=True)
            for t in range(count)
        ]  # fmt: skip
        slots = state.slots_of(batch).int()
        left = self.group.step(
            plan, weights[0].embedding[batch.tokens.to(device)], slots if several else slots[:, 0],
            state.pages_of(batch).int().repeat_interleave(counts, 0),
            torch.tensor(lengths, dtype=torch.int32, device=device),
        )  # fmt: skip
        if several:
            state.offer(batch)
        scores = {
            layer: logits.sigmoid() + weights[0].layers[layer].mlp.correction_bias
            for layer, logits in left.logits_of_routers.items()
        }
        top = self.paths.architecture.moe.top_k
        chosen = {layer: _chosen(values, top) for layer, values in scores.items()} | left.chosen
        return _sent(Seen(left.logits, left.streams, chosen, scores), "specialised")

    def do_commit(self, accepted: list[int], **batch: Any) -> None:
        """A step of one token has moved the committed state itself; of several tokens there are candidates."""
        batch = _batch(batch)
        if not self._in_place:
            self.plain.commit(batch, accepted)
            return
        for request, kept in zip(batch.requests, accepted, strict=True):
            if request != PADDING:
                if kept != 1:
                    raise ValueError(f"request {request}: a step in place cannot be taken back ({kept} accepted)")
                self.plain.state.lengths[request] += 1

    def do_release(self, request: int) -> None:
        """As TorchPath."""
        self.plain.release(request)

    def do_committed(self, request: int) -> dict[str, Any]:
        """As TorchPath."""
        return {name: packed(tensor) for name, tensor in self.plain.committed(request).items()}

    def do_null_pages(self) -> tuple[str, ...]:
        """As TorchPath."""
        return self.plain.null_pages()

    def do_save(self, file: str) -> None:
        """As TorchPath."""
        self.plain.save(Path(file))

    def do_load(self, file: str) -> None:
        """As TorchPath."""
        self.plain.load(Path(file))

    def do_op(self, op: str, at: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
        """What one op's kernel makes of one exam's inputs: "name" -> every tensor that it writes."""
        return self._op(self.paths.architecture, op, at, inputs)

    def do_true_op(self, op: str, at: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
        """The same at the published widths, whatever this process ran before."""
        return self._op(Architecture.from_config(), op, at, inputs)

    def _op(self, of: Architecture, op: str, at: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
        contract, workload = op_exams.contracts(of)[op], Workload.model_validate(at)
        given = {name: received(tensor).to(self.card.device) for name, tensor in inputs.items()}
        tensors = op_exams.laid(contract, workload, given)
        self._bound(of, contract, workload, tensors)()
        return {name: packed(tensors[name]) for name in contract.produced}

    def _bound(self, of: Architecture, contract: OpContract, workload: Workload, tensors: Mapping[str, Tensor]):
        """The launch of an op's kernel, with the configuration of the dispatch table where that is about these widths."""
        resize(self.directory, kernel_sizes.constants(of))
        tp, rows = workload.axes["tp"], workload.axes["rows"]
        configurations = self._configurations(of, tp)
        if configurations is None:
            # What a head does, it does in any group: groups that no table is about get the widest one's configuration.
            known = [entry["tp"] for entry in self.directory.tables[contract.op] if entry["hardware"] == self.card.name]
            choice = self.directory.choose(contract.op, self.card.name, tp if tp in known else max(known), rows)
            kernel, config = choice.kernel, dict(choice.config)
        else:
            kernel, config = f"kernels/{contract.op}.py", dict(configurations[contract.op])
        return launch_op(self.directory.kernel(kernel), contract, workload, tensors, config, self.card)

    def do_long_state(
        self, seed: int, tp: int, steps: int, decades: Sequence[int], kept: str | None = None
    ) -> dict[int, tuple[Any, Any]]:  # fmt: skip
        """Decade -> state and output of the kernel of the recurrence, at the true shape of a head; `kept` as in long_steps.py."""
        of = Architecture.from_config()
        drift = long_state.Drift(of, tp, seed, self.card.device)
        contract = op_exams.contracts(of)["kda_decode"]
        kernel = long_steps.Kernel(drift, contract, lambda at, tensors: self._bound(of, contract, at, tensors))
        found = long_steps.states(drift, {"candidate": kernel}, steps, decades, Path(kept) if kept else None)
        return {step: tuple(packed(tensor) for tensor in paths["candidate"]) for step, paths in found.items()}

    def do_launches(self) -> list[str]:
        """Kernels that ran, each once: of an interpreter by their names, on a GPU the files that launch them."""
        names = getattr(self.card.context, "launches", None) or self.group.kernels
        return sorted(set(names))


def _chosen(scores: Tensor, top: int) -> Tensor:
    return scores.sort(dim=-1, descending=True, stable=True).indices[:, :top].sort(-1).values


def _batch(sent: dict[str, Any]) -> Batch:
    return Batch(torch.tensor(sent["tokens"]), tuple(sent["requests"]), tuple(sent["counts"]))


def _sent(seen: Seen, ran: str) -> dict[str, Any]:
    return {
        "logits": packed(seen.logits), "streams": packed(seen.streams), "ran": ran,
        "chosen": {layer: packed(ids) for layer, ids in seen.chosen.items()},
        "scores": {layer: packed(scores) for layer, scores in seen.scores.items()},
    }  # fmt: skip
