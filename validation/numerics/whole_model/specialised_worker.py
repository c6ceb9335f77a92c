"""The specialised path's own process on a CPU: kernels interpreted, what they leave to the stock path run plainly.

It never holds the oracle. Kernels are interpreted from the moment triton is imported, hence the first lines.
"""

import os
import traceback

os.environ["TRITON_INTERPRET"] = "1"

from multiprocessing.connection import Connection  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402

from ...contracts.base import OpContract, Workload  # noqa: E402
from ...contracts.kimi_k3.architecture import Architecture  # noqa: E402
from ...contracts.kimi_k3.numerics import kernel_sizes, op_exams  # noqa: E402
from ...contracts.kimi_k3.numerics.paths import Paths, Seen  # noqa: E402
from ...contracts.kimi_k3.step.state import PADDING, Batch  # noqa: E402
from ...performance.arm import packed  # noqa: E402
from ...performance.directory import load  # noqa: E402
from .simulated_ranks import Group, launch_op, resize  # noqa: E402
from .specialised import received  # noqa: E402


def main(descriptor: int, role: str, model: str, directory: str) -> None:
    """Answers commands on a connection until it closes: ("ok", value) or ("error", text) for each."""
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

    def do_open(self, checkpoint: str, tp: int) -> None:
        """Loads weights: every rank's."""
        self.paths, self.tp = Paths(Path(checkpoint)), tp
        self.plain = self.paths.stock(tp)

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
            self.factory, self.directory, self.paths.shards(self.tp), caches,
            pages=self.plain.state.pages.shape[1], buckets=buckets, sizes=kernel_sizes.sizes(of),
            configurations=kernel_sizes.configurations(of, self.tp), constants=kernel_sizes.constants(of), width=width,
        )  # fmt: skip
        self._in_place = False

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
        weights, counts = self.paths.shards(self.tp), torch.tensor(batch.counts)
        lengths = [
            (before + 1 + t) * (request != PADDING)
            for before, request, count in zip(state.lengths_of(batch), batch.requests, batch.counts, strict=True)
            for t in range(count)
        ]  # fmt: skip
        slots = state.slots_of(batch).int()
        left = self.group.step(
            plan, weights[0].embedding[batch.tokens], slots if several else slots[:, 0],
            state.pages_of(batch).int().repeat_interleave(counts, 0), torch.tensor(lengths, dtype=torch.int32),
        )  # fmt: skip
        if several:
            state.offer(batch)
        scores = {
            layer: logits.sigmoid() + weights[0].layers[layer].mlp.correction_bias
            for layer, logits in left.logits_of_routers.items()
        }
        return _sent(Seen(left.logits, left.streams, left.chosen, scores), "specialised")

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
        of = self.paths.architecture
        contract, workload = op_exams.contracts(of)[op], Workload.model_validate(at)
        resize(self.directory, kernel_sizes.constants(of))
        config = kernel_sizes.configurations(of, workload.axes["tp"])[op]
        return self._launch(contract, workload, inputs, dict(config))

    def do_true_op(self, op: str, at: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
        """The same at the published widths, whatever this process ran before."""
        of = Architecture.from_config()
        contract, workload = op_exams.contracts(of)[op], Workload.model_validate(at)
        resize(self.directory, kernel_sizes.constants(of))
        config = kernel_sizes.configurations(of, workload.axes["tp"])[op]
        return self._launch(contract, workload, inputs, dict(config))

    def _launch(
        self, contract: OpContract, workload: Workload, inputs: dict[str, Any], config: dict[str, Any]
    ) -> dict[str, Any]:
        tensors = op_exams.laid(contract, workload, {name: received(tensor) for name, tensor in inputs.items()})
        launch_op(self.directory.kernel(f"kernels/{contract.op}.py"), contract, workload, tensors, config)
        return {name: packed(tensors[name]) for name in contract.produced}

    def do_launches(self) -> list[str]:
        """Kernels that ran, each once."""
        return sorted(set(self.group.context.launches))


def _batch(sent: dict[str, Any]) -> Batch:
    return Batch(torch.tensor(sent["tokens"]), tuple(sent["requests"]), tuple(sent["counts"]))


def _sent(seen: Seen, ran: str) -> dict[str, Any]:
    return {
        "logits": packed(seen.logits), "streams": packed(seen.streams), "ran": ran,
        "chosen": {layer: packed(ids) for layer, ids in seen.chosen.items()},
        "scores": {layer: packed(scores) for layer, scores in seen.scores.items()},
    }  # fmt: skip
