"""Known mistakes of KDA decode kernels, each as a variant of the oracle that differs in one stage.

Most were seen in public kernels. The judge compares a rejected candidate with every variant, and names the one that
explains its error; a test shows that each one is rejected.
"""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from ...base import Workload
from .oracle import Oracle, Step, matvec

Variant = Callable[[Oracle, Mapping[str, Tensor], Workload], dict[str, Tensor]]

VARIANTS: dict[str, Variant] = {}


def _mistake(description: str) -> Callable[[type[Oracle]], type[Oracle]]:
    """Registers a subclass of the oracle under what a person would say is wrong."""

    def register(variant: type[Oracle]) -> type[Oracle]:
        VARIANTS[description] = lambda oracle, inputs, workload: variant(
            oracle.shard, oracle.eps, oracle.gate_lower_bound
        )(inputs)
        return variant

    return register


def _bf16(x: Tensor) -> Tensor:
    return x.bfloat16().double()


@_mistake("the decay is rounded to bfloat16: values above 0.998 become 1 and the state never forgets")
class _(Oracle):
    def decay(self, step: Step) -> Tensor:
        return _bf16(super().decay(step))


@_mistake("the log decay is rounded to bfloat16 before it is exponentiated")
class _(Oracle):
    def decay(self, step: Step) -> Tensor:
        return _bf16(super().decay(step).log()).exp()


@_mistake("beta is rounded to bfloat16 after the sigmoid")
class _(Oracle):
    def beta(self, step: Step) -> Tensor:
        return _bf16(super().beta(step))


@_mistake("beta is doubled (the form that allows negative eigenvalues)")
class _(Oracle):
    def beta(self, step: Step) -> Tensor:
        return 2 * super().beta(step)


@_mistake("beta of the neighbouring head is used")
class _(Oracle):
    def beta(self, step: Step) -> Tensor:
        return super().beta(step).roll(1, 1)


@_mistake("the gate projection f_b f_a is not rounded to bfloat16")
class _(Oracle):
    def round_gate(self, gamma: Tensor) -> Tensor:
        return gamma


@_mistake("the gate projection is truncated to bfloat16 instead of rounded to nearest even")
class _(Oracle):
    def round_gate(self, gamma: Tensor) -> Tensor:
        return (gamma.float().view(torch.int32) & -65536).view(torch.float32).double()


@_mistake("the decay uses softplus, as Kimi Linear does, instead of the bounded gate")
class _(Oracle):
    def decay(self, step: Step) -> Tensor:
        bias = step.static["dt_bias"].unflatten(0, (self.shard.heads, -1))
        return (-step.static["a_log"].exp()[:, None] * F.softplus(self.gate(step) + bias)).exp()


@_mistake("the decay uses softplus clamped at the lower bound instead of the bounded gate")
class _(Oracle):
    def decay(self, step: Step) -> Tensor:
        bias = step.static["dt_bias"].unflatten(0, (self.shard.heads, -1))
        log_decay = -step.static["a_log"].exp()[:, None] * F.softplus(self.gate(step) + bias)
        return log_decay.clamp(min=self.gate_lower_bound).exp()


@_mistake("A_log is used without its exponential")
class _(Oracle):
    def decay(self, step: Step) -> Tensor:
        bias = step.static["dt_bias"].unflatten(0, (self.shard.heads, -1))
        rate = step.static["a_log"][:, None]
        return (self.gate_lower_bound * torch.sigmoid(rate * (self.gate(step) + bias))).exp()


@_mistake("dt_bias is left out of the decay")
class _(Oracle):
    def decay(self, step: Step) -> Tensor:
        rate = step.static["a_log"].exp()[:, None]
        return (self.gate_lower_bound * torch.sigmoid(rate * self.gate(step))).exp()


@_mistake("the decay acts on the value channels of the state instead of the key channels")
class _(Oracle):
    def recurrence(self, step: Step) -> tuple[Tensor, Tensor]:
        query, key, value = self.convolved(step)
        query, key = self.scaled(self.normalised(query)), self.normalised(key)
        decayed = step.state * self.decay(step)[..., None]
        delta = self.beta(step)[..., None] * (value - matvec(decayed, key))
        return self.core(decayed, delta, query, key), decayed + delta[..., None] * key[..., None, :]


@_mistake("the state is read and written with keys and values swapped")
class _(Oracle):
    def recurrence(self, step: Step) -> tuple[Tensor, Tensor]:
        core, state = super().recurrence(step._replace(state=step.state.mT))
        return core, state.mT


@_mistake("the prediction error is taken against the state before its decay")
class _(Oracle):
    def read(self, step: Step, decayed: Tensor) -> Tensor:
        return step.state


@_mistake("the output is read from the state before its update")
class _(Oracle):
    def core(self, decayed: Tensor, delta: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return matvec(decayed, query)


@_mistake("the recurrent state is kept in bfloat16")
class _(Oracle):
    def recurrence(self, step: Step) -> tuple[Tensor, Tensor]:
        core, state = super().recurrence(step._replace(state=_bf16(step.state)))
        return core, _bf16(state)


@_mistake("q is not scaled by 1/sqrt(head dimension)")
class _(Oracle):
    def scaled(self, query: Tensor) -> Tensor:
        return query


@_mistake("q and k are not L2-normalised")
class _(Oracle):
    def normalised(self, x: Tensor) -> Tensor:
        return x


@_mistake("the L2 norm has no epsilon: a row of zeros becomes NaN")
class _(Oracle):
    def normalised(self, x: Tensor) -> Tensor:
        return x / x.square().sum(-1, keepdim=True).sqrt()


@_mistake("the L2 norm is bounded below by its epsilon instead of adding it inside the root")
class _(Oracle):
    def normalised(self, x: Tensor) -> Tensor:
        return x / x.square().sum(-1, keepdim=True).sqrt().clamp(min=self.eps.kda_l2)


@_mistake("q, k and v are rounded to bfloat16 after the convolution")
class _(Oracle):
    def convolved(self, step: Step) -> tuple[Tensor, Tensor, Tensor]:
        return tuple(_bf16(part) for part in super().convolved(step))


@_mistake("the convolution's taps are applied in reverse order")
class _(Oracle):
    def taps(self, weight: Tensor) -> Tensor:
        return weight.flip(1)


@_mistake("the convolution is not followed by SiLU")
class _(Oracle):
    def convolved(self, step: Step) -> tuple[Tensor, Tensor, Tensor]:
        newest = torch.cat([step.projected[name] for name in "qkv"], 1)
        taps = torch.cat([step.window, newest[:, None]], 1)
        mixed = torch.einsum("rtc,ct->rc", taps, step.static["conv_weight"])
        return tuple(part.unflatten(1, (self.shard.heads, -1)) for part in mixed.chunk(3, 1))


@_mistake("the convolution state is not shifted")
class _(Oracle):
    def shifted(self, step: Step) -> Tensor:
        return step.window


@_mistake("the convolution state is shifted the wrong way")
class _(Oracle):
    def shifted(self, step: Step) -> Tensor:
        return super().shifted(step).roll(1, 1)


@_mistake("the convolution state is shifted before it is read, so the oldest tap is lost")
class _(Oracle):
    def convolved(self, step: Step) -> tuple[Tensor, Tensor, Tensor]:
        return super().convolved(step._replace(window=self.shifted(step)))


@_mistake("the convolution state stores the convolved values instead of the raw projection")
class _(Oracle):
    def shifted(self, step: Step) -> Tensor:
        newest = torch.cat([part.flatten(1) for part in self.convolved(step)], 1)
        return torch.cat([step.window[:, 1:], newest[:, None]], 1)


@_mistake("the output gate of the neighbouring head is used (the one before)")
class _(Oracle):
    def output_gate(self, step: Step) -> Tensor:
        return super().output_gate(step).roll(1, 1)


@_mistake("the output gate of the neighbouring head is used (the one after)")
class _(Oracle):
    def output_gate(self, step: Step) -> Tensor:
        return super().output_gate(step).roll(-1, 1)


@_mistake("the output gate is left out")
class _(Oracle):
    def output_gate(self, step: Step) -> Tensor:
        return torch.ones_like(super().output_gate(step))


@_mistake("the output gate is applied without its sigmoid")
class _(Oracle):
    def output_gate(self, step: Step) -> Tensor:
        return step.projected["g"].unflatten(1, (self.shard.heads, -1))


@_mistake("the output gate is SiLU instead of sigmoid")
class _(Oracle):
    def output_gate(self, step: Step) -> Tensor:
        return F.silu(step.projected["g"]).unflatten(1, (self.shard.heads, -1))


@_mistake("the output is gated before it is normalised")
class _(Oracle):
    def output(self, step: Step, core: Tensor) -> Tensor:
        return self.norm(core * self.output_gate(step)) * step.static["o_norm"]


@_mistake("the output norm takes all heads together")
class _(Oracle):
    def norm(self, core: Tensor) -> Tensor:
        return core / (core.square().mean((1, 2), keepdim=True) + self.eps.kda_output).sqrt()


@_mistake("the output norm has no epsilon")
class _(Oracle):
    def norm(self, core: Tensor) -> Tensor:
        return core / core.square().mean(-1, keepdim=True).sqrt()


@_mistake("the core output is rounded to bfloat16 before the norm")
class _(Oracle):
    def norm(self, core: Tensor) -> Tensor:
        return super().norm(_bf16(core))


@_mistake("padded rows are treated as live: the null page and, through negative slots, the last page are updated")
class _(Oracle):
    def __call__(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        last = len(inputs["recurrent_state"]) - 1
        slots = torch.where(inputs["slots"] < 0, last, inputs["slots"])
        return super().__call__({**inputs, "slots": slots})

    def live(self, slots: Tensor) -> Tensor:
        return slots >= 0


@_mistake("the row's number is used as its slot")
class _(Oracle):
    def __call__(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        slots = torch.where(inputs["slots"] > 0, torch.arange(len(inputs["slots"])).int() + 1, inputs["slots"])
        return super().__call__({**inputs, "slots": slots})


def _dense_pages(oracle: Oracle, inputs: Mapping[str, Tensor], workload: Workload) -> dict[str, Tensor]:
    """Reads and writes live pages at slot times the dense page size; what lies between pages reads as NaN."""
    strides = {
        "conv_state": workload.axes["conv_page_stride"],
        "recurrent_state": workload.axes["state_page_stride"],
    }
    live = inputs["slots"][inputs["slots"] > 0].long()
    storage = {name: _spread(inputs[name], stride) for name, stride in strides.items()}
    dense = {name: storage[name].as_strided(inputs[name].shape, inputs[name].stride()) for name in strides}
    result = oracle({**inputs, **{name: view.clone() for name, view in dense.items()}})
    for name, stride in strides.items():
        pool = storage[name].to(result[name].dtype)
        pool.as_strided(inputs[name].shape, inputs[name].stride())[live] = result[name][live]
        result[name] = pool.as_strided(inputs[name].shape, (stride, *inputs[name].stride()[1:])).clone()
    return result


def _dense_rows(oracle: Oracle, inputs: Mapping[str, Tensor], workload: Workload) -> dict[str, Tensor]:
    """Reads projected rows at row times their width."""
    projected = inputs["projected"]
    storage = _spread(projected, workload.axes["projected_stride"])
    return oracle({**inputs, "projected": storage.as_strided(projected.shape, projected.stride()).clone()})


def _spread(tensor: Tensor, stride: int) -> Tensor:
    """The storage of contiguous `tensor` with `stride` elements from one leading index to the next; gaps NaN."""
    size, page = len(tensor), tensor[0].numel()
    storage = torch.full((size * max(stride, page),), float("nan"), dtype=tensor.dtype)
    storage.as_strided((size, page), (stride, 1)).copy_(tensor.reshape(size, page))
    return storage


VARIANTS["pages are addressed as if they lay side by side: slot times page size, not the page stride"] = _dense_pages
VARIANTS["projected rows are addressed by their width, not by the row stride"] = _dense_rows
