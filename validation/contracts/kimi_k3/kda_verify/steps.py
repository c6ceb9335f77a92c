"""A verify step as single steps: what any path of `kda_decode` makes of a request's tokens, one after the other."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ...base import Workload
from . import layout

Inputs = Mapping[str, Tensor]
Path = Callable[[Inputs, Workload], dict[str, Tensor]]
POOLS = ("conv_state", "recurrent_state")


def steps(
    path: Path, inputs: Inputs, at: Workload, *, read: Callable[[Tensor, int], Tensor] = lambda slots, t: slots[:, t],
    write: Callable[[Tensor, int], Tensor] = lambda slots, t: slots[:, t + 1],
) -> dict[str, Tensor]:  # fmt: skip
    """Everything that `kda_verify` produces, by `path`, which moves a page on in place by one token.

    `read` and `write` say which page [requests] of the table the step of token t begins with and leaves: the former is
    copied to the latter first. Padding keeps its mark. `inputs` stay as they are.
    """
    slots, tokens = inputs["slots"], at.axes["tokens"]
    live = slots[:, 0] > 0
    pools = {name: inputs[name].clone() for name in POOLS}
    out = []
    for t in range(tokens):
        source, target = read(slots, t)[live].long(), write(slots, t)[live].long()
        for pool in pools.values():
            pool[target] = pool[source]
        marked = torch.where(live, write(slots, t), slots[:, 0])
        own = {**inputs, **pools, "projected": inputs["projected"][t::tokens].contiguous(), "slots": marked}
        left = path(own, layout.one_token(at))
        pools = {name: left[name] for name in POOLS}
        out.append(left["out"])
    return {**pools, "out": torch.stack(out, 1).flatten(0, 1)}
