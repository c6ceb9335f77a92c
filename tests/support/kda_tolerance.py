"""How far honest and dishonest forms of `kda_decode` leave the recurrent state, in units of the contract's limit.

    python tests/support/kda_tolerance.py [SEEDS]     prints the table that the tolerance was set from

Honest forms differ in what no contract can ask for: the order of sums, one or two passes over the state, functions that
are off by two units in the last place, as a GPU's are. Dishonest ones round to bfloat16 somewhere.
"""

import sys
from collections.abc import Callable

import torch
from fasttrack_validation import contracts
from fasttrack_validation.contracts.kimi_k3.kda_decode import layout
from fasttrack_validation.contracts.kimi_k3.kda_decode.oracle import Oracle
from fasttrack_validation.numerics.calibrate import MIN_POOLED, measure
from fasttrack_validation.numerics.errors import summary

OP = contracts.load("kimi_k3").op("kda_decode")
WORKLOAD = layout.workload(
    OP.architecture.kda_shard(32), "small", 5, projected_gap=16, conv_gap=128, state_gap=64, slots_stride=2
)
(STATE,) = (comparison for comparison in OP.comparisons if comparison.tensor == "recurrent_state")
DISHONEST = ("beta is rounded", "the decay is rounded", "the log decay is rounded", "q, k and v are rounded")


class OnePass(Oracle):
    """The oracle's form, every operation in float32."""

    def step(self, inputs):
        step = super().step(inputs)
        projected = {name: value.float() for name, value in step.projected.items()}
        static = {name: value.float() for name, value in step.static.items()}
        return step._replace(projected=projected, window=step.window.float(), state=step.state.float(), static=static)

    def round_gate(self, gamma):
        return gamma.bfloat16().float()

    def recurrence(self, step):
        core, state = super().recurrence(step)
        return core, state.double()

    def output(self, step, core):
        return super().output(step, core).double()


class Sequential(OnePass):
    """Predictions summed one key channel after the other, the worst order that there is."""

    def recurrence(self, step):
        query, key, value = self.convolved(step)
        query, key = self.scaled(self.normalised(query)), self.normalised(key)
        decayed = step.state * self.decay(step)[:, :, None, :]
        predicted = (decayed * key[..., None, :]).cumsum(-1)[..., -1]
        delta = self.beta(step)[..., None] * (value - predicted)
        state = decayed + delta[..., :, None] * key[..., None, :]
        return self.core(decayed, delta, query, key), state.double()


class Approximate(OnePass):
    """exp, sigmoid and reciprocal root off by up to two units in the last place, whichever way."""

    def decay(self, step):
        bias = step.static["dt_bias"].unflatten(0, (self.shard.heads, -1))
        rate = _off(step.static["a_log"].exp())[:, None]
        return _off((self.gate_lower_bound * _off(torch.sigmoid(rate * (self.gate(step) + bias)))).exp())

    def beta(self, step):
        return _off(super().beta(step))

    def normalised(self, x):
        return x * _off((x.square().sum(-1, keepdim=True) + self.eps.kda_l2).rsqrt())


def _off(x):
    return x * (1 + 2.0**-23 * torch.randint(-2, 3, x.shape, generator=torch.Generator().manual_seed(x.numel())))


def reordered(inputs, workload):
    """The plain path with the key channels in another order: the same sums, added otherwise (A/A)."""
    shard = OP.architecture.kda_shard(workload.axes["tp"])
    order = torch.randperm(128, generator=torch.Generator().manual_seed(1))
    keys = torch.cat([head * 128 + order for head in range(shard.heads)])
    p = shard.channels
    both = torch.cat([keys, p + keys, torch.arange(2 * p, 3 * p)])
    moved = dict(inputs)
    moved["f_b"], moved["dt_bias"] = inputs["f_b"][keys], inputs["dt_bias"][keys]
    moved["conv_weight"] = inputs["conv_weight"][both]
    moved["conv_state"] = inputs["conv_state"][..., both]
    moved["projected"] = torch.cat([inputs["projected"][:, both], inputs["projected"][:, 3 * p :]], 1)
    moved["recurrent_state"] = inputs["recurrent_state"][..., order]
    result = OP.plain(moved, workload)
    result["conv_state"] = result["conv_state"][..., both.argsort()].contiguous()
    result["recurrent_state"] = result["recurrent_state"][..., order.argsort()].contiguous()
    return result


def _float32(form: type[Oracle]) -> Callable:
    def run(inputs, workload):
        stages = OP.stages(workload)
        return form(stages.shard, stages.eps, stages.gate_lower_bound)(inputs)

    return run


HONEST: dict[str, Callable] = {
    "plain path, two passes": OP.plain,
    "plain path, key channels in another order": reordered,
    "one pass": _float32(OnePass),
    "one pass, channel after channel": _float32(Sequential),
    "one pass, functions off by two ulp": _float32(Approximate),
}
FORMS = HONEST | {
    name: form for name, form in OP.hypotheses.items() if name.startswith(DISHONEST)
}


def shares(form: Callable, inputs, expected, plain) -> dict[str, float]:
    """Error of the state over the limit, at each quantile that is judged, and the error itself at the median."""
    got = form(inputs, WORKLOAD)["recurrent_state"].float()
    owners = [OP.row_of("recurrent_state", (page, 0, 0, 0), inputs) for page in range(len(got))]
    measured = measure(STATE, expected["recurrent_state"], plain["recurrent_state"], got, owners)
    errors, own = summary(measured.errors), summary(measured.plain_errors)
    limits = {
        "median": max(STATE.ratio * own.median, STATE.floor),
        "p999": max(STATE.ratio * own.p999, STATE.floor),
        "maximum": STATE.max_ratio * max(own.maximum, STATE.floor),
    }
    found = {name: getattr(errors, name) / limit for name, limit in limits.items()}
    if errors.values < MIN_POOLED:
        del found["p999"]
    return found | {"error": errors.median}


def table(seeds: int = 1) -> dict[str, dict[str, tuple[float, str]]]:
    """Form -> quantile -> the largest share of the limit over all distributions and seeds, and where."""
    worst = {name: {} for name in FORMS}
    for distribution in OP.distributions:
        for seed in range(seeds):
            inputs = OP.make_inputs(WORKLOAD, distribution, seed)
            expected, plain = OP.oracle(inputs, WORKLOAD), OP.plain(inputs, WORKLOAD)
            for name, form in FORMS.items():
                for quantile, share in shares(form, inputs, expected, plain).items():
                    worst[name][quantile] = max(worst[name].get(quantile, (0.0, "")), (share, distribution))
    return worst


def main() -> None:
    print(f"floor {STATE.floor:.3g}, ratio {STATE.ratio}, max_ratio {STATE.max_ratio}; largest shares of the limit")
    for name, row in table(int(sys.argv[1]) if len(sys.argv) > 1 else 3).items():
        cells = "  ".join(f"{quantile} {share:9.3g} ({where})" for quantile, (share, where) in row.items())
        print(f"{name[:44]:44} {cells}")


if __name__ == "__main__":
    main()
