"""One training run: parameters, optimiser, the selection bias of the router, and how far the run has come."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor

from ....records import Frozen
from ..architecture import Architecture
from ..weights.names import EMBEDDING, LM_HEAD, layer_prefix
from .batches import Batch
from .model import UNROUNDED, Forward, TensorCores
from .parameters import correction_bias, initial, weights
from .tokenizer import PAD


class Settings(Frozen):
    """All that decides a run, save the machine: with `steps`, the same settings give the same batches and schedule."""

    seed: int = 0
    minutes: float | None = Field(default=None, gt=0, description="length of the run, if not in steps")
    steps: int | None = Field(default=None, gt=0, description="length of the run, if not in minutes")
    tokens: int = Field(default=16384, gt=0, description="of one batch; one sequence at least")
    lengths: tuple[int, ...] = Field(default=(512, 2048, 8192, 20480), min_length=1, description="of sequences")
    learning_rate: float = Field(default=2e-3, gt=0, description="at its highest")
    warmup: float = Field(default=0.02, ge=0, lt=1, description="share of the run in which the learning rate rises")
    weight_decay: float = Field(default=0.1, ge=0, description="of matrices between embedding and head")
    bias_rate: float = Field(default=1e-3, gt=0, description="step of the router's selection bias")
    other_weight: float = Field(default=0.2, ge=0, description="of tokens that follow from nothing; answers have 1")
    clip: float = Field(default=1.0, gt=0, description="largest norm of a gradient")

    @model_validator(mode="after")
    def _one_length(self) -> "Settings":
        if (self.minutes is None) == (self.steps is None):
            raise ValueError("give the length of the run either in minutes or in steps")
        return self


class Run:
    """Parameters and optimiser on one device, from step 0 or from a saved state."""

    def __init__(self, architecture: Architecture, settings: Settings, device: str, *, recompute: bool = False) -> None:
        self.architecture = architecture
        self.settings = settings
        self.device = device
        self.recompute = recompute
        self.precision = UNROUNDED if device == "cpu" else TensorCores()
        self.step = 0
        self.tokens = 0
        self.seconds = 0.0
        """of wall time, evaluations included: the caller counts them"""
        self.parameters = {name: x.to(device) for name, x in initial(architecture, settings.seed).items()}
        self.biases = {
            layer: self.parameters[correction_bias(layer_prefix(layer))]
            for layer in range(architecture.moe.first_layer, architecture.layers)
        }
        selection = {id(bias) for bias in self.biases.values()}
        trained = {name: x.requires_grad_() for name, x in self.parameters.items() if id(x) not in selection}
        decayed = [x for name, x in trained.items() if x.squeeze().ndim > 1 and name not in (EMBEDDING, LM_HEAD)]
        kept = {id(x) for x in decayed}
        self.optimiser = torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": settings.weight_decay},
                {"params": [x for x in trained.values() if id(x) not in kept], "weight_decay": 0.0},
            ],
            lr=settings.learning_rate,
            betas=(0.9, 0.95),
            fused=device != "cpu",
        )

    @property
    def progress(self) -> float:
        """How much of the run is behind it; 1 and more at its end."""
        if self.settings.steps:
            return self.step / self.settings.steps
        return self.seconds / (60 * self.settings.minutes)

    @property
    def learning_rate(self) -> float:
        """Rising linearly, then falling along a cosine to a hundredth."""
        highest, warmup, progress = self.settings.learning_rate, self.settings.warmup, min(self.progress, 1)
        if progress < warmup:
            return highest * max(progress / warmup, 0.01)
        return highest * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (progress - warmup) / (1 - warmup))))

    def advance(self, batch: Batch) -> dict[str, Tensor]:
        """One step. Gives scalars on the device: `answer_loss` and `other_loss` (nats a token), and `imbalance` (the
        fullest expert's load over the mean, in the worst layer).

        The mean over answers is weighed against the mean over all else: long texts hold few answers.
        """
        for group in self.optimiser.param_groups:
            group["lr"] = self.learning_rate
        tokens, answer = batch.tokens.to(self.device), batch.answer.to(self.device).flatten()
        forward = self.forward()
        logits = forward(tokens[:, :-1])
        each = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        answers, others = ((each * of).sum() / of.sum().clamp(min=1) for of in (answer, ~answer))
        loss = answers + self.settings.other_weight * others
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_([x for x in self.parameters.values() if x.grad is not None], self.settings.clip)
        self.optimiser.step()
        self._balance(forward.loads)
        self.step += 1
        self.tokens += answer.numel()
        return {
            "answer_loss": answers.detach(),
            "other_loss": others.detach(),
            "imbalance": torch.stack([load.max() / load.float().mean() for load in forward.loads.values()]).max(),
        }

    def forward(self) -> Forward:
        """A forward pass with the parameters as they are."""
        read = weights(self.parameters, self.architecture)
        return Forward(self.architecture, read, self.precision, recompute=self.recompute)

    @torch.no_grad()
    def likeliest(self, sequences: Sequence[list[int]]) -> list[list[int]]:
        """After every token of every sequence the likeliest next one; 16,384 tokens or one sequence at a time."""
        forward, found = self.forward(), []
        longest = max(map(len, sequences))
        at_once = max(1, 16384 // longest)
        for start in range(0, len(sequences), at_once):
            part = sequences[start : start + at_once]
            tokens = torch.full((len(part), longest), PAD)
            for row, ids in enumerate(part):
                tokens[row, : len(ids)] = torch.tensor(ids)
            predicted = forward(tokens.to(self.device)).argmax(-1).tolist()
            found += [row[: len(ids)] for row, ids in zip(predicted, part, strict=True)]
        return found

    def state(self) -> dict:
        """What `restore` needs, for `torch.save`."""
        return {
            "step": self.step,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "parameters": {name: x.detach() for name, x in self.parameters.items()},
            "optimiser": self.optimiser.state_dict(),
        }

    def restore(self, state: dict) -> None:
        """Goes on where `state` was taken."""
        self.step, self.tokens, self.seconds = state["step"], state["tokens"], state["seconds"]
        with torch.no_grad():
            for name, x in self.parameters.items():
                x.copy_(state["parameters"][name])
        self.optimiser.load_state_dict(state["optimiser"])

    @torch.no_grad()
    def _balance(self, loads: dict[int, Tensor]) -> None:
        """Makes experts with less than their share likelier to be chosen, and the others less so.

        Source: balancing without an auxiliary loss (arXiv 2408.15664). The bias never enters the weights.
        """
        for layer, bias in self.biases.items():
            load = loads[layer].float()
            bias += self.settings.bias_rate * (load.mean() - load).sign()
