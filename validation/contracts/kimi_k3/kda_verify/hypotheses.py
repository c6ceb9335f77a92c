"""Known mistakes about the tokens of a verify step and their pages; each is a variant of the oracle's single steps.

Some were seen in public servers: an accepted count of zero taken for index -1, a state that was not rolled back.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ...base import Workload
from .steps import Inputs, Path, steps

Mistake = Callable[[Path, Inputs, Workload], dict[str, Tensor]]

MISTAKES: dict[str, Mistake] = {}


def _mistake(description: str) -> Callable[[Mistake], Mistake]:
    def register(mistake: Mistake) -> Mistake:
        MISTAKES[description] = mistake
        return mistake

    return register


@_mistake("the first token reads the last page of its table (index -1) instead of the committed one")
def _(path, inputs, at):
    return steps(path, inputs, at, read=lambda slots, t: slots[:, t - (t == 0)])


@_mistake("the committed page is moved on as well, so that nothing can be taken back")
def _(path, inputs, at):
    result = steps(path, inputs, at)
    slots = inputs["slots"][inputs["slots"][:, 0] > 0].long()
    for name in ("conv_state", "recurrent_state"):
        result[name][slots[:, 0]] = result[name][slots[:, -1]]
    return result


@_mistake("the state behind each token goes to the page before its own")
def _(path, inputs, at):
    return steps(path, inputs, at, write=lambda slots, t: slots[:, t])


@_mistake("only the last token's state is written")
def _(path, inputs, at):
    result = steps(path, inputs, at)
    live = inputs["slots"][inputs["slots"][:, 0] > 0].long()
    for name in ("conv_state", "recurrent_state"):
        kept = live[:, 1:-1].flatten()
        result[name][kept] = inputs[name][kept].to(result[name].dtype)
    return result


@_mistake("every token starts from the committed state, not from the token before it")
def _(path, inputs, at):
    return steps(path, inputs, at, read=lambda slots, t: slots[:, 0])


@_mistake("every token's convolution reads the committed window: the tokens before it are not in it")
def _(path, inputs, at):
    slots = inputs["slots"][inputs["slots"][:, 0] > 0].long()
    # Every page of a table stands for the committed one.
    where = torch.arange(len(inputs["conv_state"]))
    where[slots] = slots[:, :1].expand_as(slots)
    committed = inputs["conv_state"][where]

    def one(own, alone):
        return path({**own, "conv_state": committed}, alone)

    result = steps(one, inputs, at)
    return {**result, "conv_state": steps(path, inputs, at)["conv_state"]}


@_mistake("the window behind the last token is written to the page of every token")
def _(path, inputs, at):
    result = steps(path, inputs, at)
    slots = inputs["slots"][inputs["slots"][:, 0] > 0].long()
    result["conv_state"][slots[:, 1:]] = result["conv_state"][slots[:, -1:]].expand(-1, slots.shape[1] - 1, -1, -1)
    return result


@_mistake("rows are taken token by token over all requests, not request by request")
def _(path, inputs, at):
    tokens = at.axes["tokens"]

    def turned(tensor: Tensor, parts: int) -> Tensor:
        return tensor.unflatten(0, (parts, -1)).transpose(0, 1).flatten(0, 1)

    result = steps(path, {**inputs, "projected": turned(inputs["projected"], tokens)}, at)
    return {**result, "out": turned(result["out"], len(inputs["slots"]))}


@_mistake("padding is looked for at each page of a table, not at its first: other pages of padded requests are written")
def _(path, inputs, at):
    slots, behind = inputs["slots"], len(inputs["conv_state"])
    # A copy of the null page behind the pool: what a read of that page finds, and no write to it.
    everyone = torch.where(slots > 0, slots, behind)
    copied = {name: torch.cat([inputs[name], inputs[name][:1]]) for name in ("conv_state", "recurrent_state")}
    result = steps(path, {**inputs, **copied, "slots": everyone}, at)
    return {**result, **{name: result[name][:-1] for name in copied}}


@_mistake("tables are addressed as if they lay side by side: request times table width, not the row stride")
def _(path, inputs, at):
    slots, stride = inputs["slots"], at.axes["slots_stride"]
    # Entries between tables read as zero: the null page, padding.
    storage = torch.zeros(len(slots) * stride + slots.shape[1], dtype=slots.dtype)
    storage.as_strided(slots.shape, (stride, 1)).copy_(slots)
    return steps(path, {**inputs, "slots": storage[: slots.numel()].view(slots.shape).clone()}, at)


@_mistake("projected rows are addressed by their width, not by the row stride")
def _(path, inputs, at):
    projected, stride = inputs["projected"], at.axes["projected_stride"]
    storage = torch.full((len(projected) * stride,), float("nan"), dtype=projected.dtype)
    storage.as_strided(projected.shape, (stride, 1)).copy_(projected)
    return steps(path, {**inputs, "projected": storage[: projected.numel()].view(projected.shape)}, at)
