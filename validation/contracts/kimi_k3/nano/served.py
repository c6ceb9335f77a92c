"""The nano model as something that speaks: its symbols, its checkpoint, and its oracle, plain and stock paths."""

import platform
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ....digests import package_files
from ....errors import UserError
from ....generation.paths import Backend, Card, Setup
from ....records import digest_files, sha256
from ..layer_weights import ModelWeights, Shard
from ..numerics import kernel_sizes
from ..step.model import Model
from ..step.precision import EXACT, PUBLISHED, Precision
from ..step.state import Batch, KdaCache, State
from ..step.unpack import unpack
from ..weights.checkpoint import CONFIG_FILE, INDEX_FILE, Checkpoint
from ..weights.shard import load_model
from .devices import moved, require
from .tokenizer import BOS, EOS, MARKS as _MARKS, SYMBOLS, encode

__all__ = ["BOS", "CHECKPOINT", "EOS", "MARKS", "SYMBOLS", "Plain", "card", "chat", "encode", "path"]

CHECKPOINT = Path(__file__).parent / "checkpoint"
MARKS = len(_MARKS)
_COMPUTES = (
    "contracts/kimi_k3/", "generation/", "judge/interpreter/", "numerics/whole_model/", "performance/directory.py", "tensors.py",
)  # fmt: skip
"""Not what compares servers: they would be other builds after a change of the comparison"""
_DTYPE = {Backend.ORACLE: "float64"}


def chat(messages: Sequence[tuple[str, str]]) -> str:
    """Messages one after the other, each ended by a line feed: the model was trained on plain text without roles."""
    return "".join(content if content.endswith("\n") else content + "\n" for _, content in messages)


def path(setup: Setup) -> "Plain":
    """The oracle, the plain or the stock path over a checkpoint."""
    if setup.backend is Backend.STOCK:
        from .served_stock import Stock

        return Stock(setup)
    return Plain(setup, EXACT if setup.backend is Backend.ORACLE else PUBLISHED)


class Plain:
    """The whole step in PyTorch, as `Path`. Requests own fixed slots and pages of one `State`.

    Every call computes one request alone, so that no bit of an answer depends on what else is served.
    """

    def __init__(self, setup: Setup, precision: Precision) -> None:
        require(setup.device)
        checkpoint = opened(setup.checkpoint)
        self.architecture = checkpoint.architecture
        self._setup = setup = setup.model_copy(
            update={"context": setup.context or self.architecture.max_positions}
        )
        if setup.context > self.architecture.max_positions:
            raise UserError(
                f"a context of {setup.context} tokens; this model has {self.architecture.max_positions} positions",
                f"serve at most {self.architecture.max_positions}",
            )
        self.ranks: list[ModelWeights] = [
            moved(load_model(checkpoint, Shard(setup.tp, rank)), setup.device) for rank in range(setup.tp)
        ]
        self.model = Model(self.architecture, [unpack(rank, precision) for rank in self.ranks], precision)
        self.state = self.model.new_state(setup.sessions, setup.context, verify_width=1)
        self.device = setup.device
        self.card = card(setup, checkpoint)
        self.launches: Counter[str] = Counter()
        """Kernels of a model directory by op: none here"""

    def open(self, session: int) -> None:
        """As `Path`."""
        fresh(self.state, session)

    def prefill(self, session: int, tokens: Sequence[int]) -> Tensor:
        """As `Path`."""
        return self._out(self.model.prefill(self._batch(session, tokens), self.state))

    def decode(self, session: int, token: int) -> Tensor:
        """As `Path`."""
        batch = self._batch(session, [token])
        logits = self.step(batch)
        self.state.commit(batch, [1])
        return self._out(logits)

    def step(self, batch: Batch) -> Tensor:
        """Logits of a decode step of one token; it leaves the state behind the token as a candidate."""
        return self.model.decode(batch, self.state)

    def kernel_sizes(self) -> dict[str, Any]:
        """What a model directory's kernels are given instead of the published sizes."""
        of = self.architecture
        return {
            "sizes": kernel_sizes.sizes(of), "constants": kernel_sizes.constants(of),
            "configurations": kernel_sizes.configurations(of, len(self.ranks)),
        }  # fmt: skip

    def caches(self) -> list[dict[int, dict[str, Tensor]]]:
        """Every rank's pools by layer, by the names that ops have for them."""
        names = {"conv": "conv_state", "recurrent": "recurrent_state", "rows": "cache"}
        return [
            {layer: {names[name]: tensor for name, tensor in vars(cache).items()} for layer, cache in rank.items()}
            for rank in self.state.ranks
        ]

    def row(self, session: int, token: int) -> dict[str, Tensor]:
        """What a decode path that works in place is given for one token of a session."""
        batch, whole = self._batch(session, [token]), {"dtype": torch.int32, "device": self.device}
        return {
            "embedding": self.ranks[0].embedding[batch.tokens],
            "slots": self.state.slots_of(batch)[:, 0].int(),
            "page_table": self.state.pages_of(batch).int(),
            "lengths": torch.tensor([self.state.lengths[session] + 1], **whole),
        }

    def moved_on(self, session: int) -> None:
        """Somebody else has put one more token into a session's caches."""
        self.state.lengths[session] += 1

    def _batch(self, session: int, tokens: Sequence[int]) -> Batch:
        return Batch(torch.tensor(tokens, device=self.device), (session,), (len(tokens),))

    def _out(self, logits: Tensor) -> Tensor:
        wide = logits if logits.dtype is torch.float64 else logits.float()
        return wide[:, : len(SYMBOLS)].cpu().contiguous()


def opened(directory: Path) -> Checkpoint:
    """The checkpoint in `directory`. Raises UserError for one of another vocabulary, too."""
    if not (directory / INDEX_FILE).is_file():
        raise UserError(
            f"{directory}: no checkpoint of the nano model",
            "train one (see validation/contracts/kimi_k3/nano/README.md), and name its directory with --checkpoint",
        )
    checkpoint = Checkpoint(directory)
    if checkpoint.architecture.vocab_size < len(SYMBOLS):
        raise UserError(
            f"{directory}: {checkpoint.architecture.vocab_size} tokens, fewer than the tokenizer's {len(SYMBOLS)}",
            "use a checkpoint of the nano model",
        )
    return checkpoint


def fresh(state: State, request: int) -> None:
    """Empties the state of one request."""
    slots = state.slots[request]
    for caches in state.ranks:
        for cache in caches.values():
            if isinstance(cache, KdaCache):
                cache.conv[slots] = 0
                cache.recurrent[slots] = 0
    state.lengths[request] = 0
    state.candidates.pop(request, None)


def card(setup: Setup, checkpoint: Checkpoint) -> Card:
    """What the path of `setup` says of itself."""
    shards = {file.name: file.read_bytes() for file in sorted(checkpoint.directory.glob("*.safetensors"))}
    described = {name: (checkpoint.directory / name).read_bytes() for name in (CONFIG_FILE, INDEX_FILE)}
    plain = "oracle" if setup.backend is Backend.ORACLE else "plain"
    computes = {
        name: data
        for name, data in package_files().items()
        if name.startswith(_COMPUTES) and name.endswith((".py", ".cu"))
    }
    libraries = {"python": platform.python_version(), "torch": torch.__version__}
    if setup.device != "cpu":
        libraries["cuda"] = str(torch.version.cuda)
    return Card(
        backend=setup.backend,
        dtype=_DTYPE.get(setup.backend, "bfloat16"),
        prefill=plain,
        decode=plain,
        revision=digest_files(shards | described),
        tokenizer=sha256("\0".join(SYMBOLS).encode()),
        tp=setup.tp,
        device="cpu" if setup.device == "cpu" else torch.cuda.get_device_name(setup.device),
        context=setup.context,
        vocabulary=len(SYMBOLS),
        sources=digest_files(computes),
        libraries=libraries,
    )
