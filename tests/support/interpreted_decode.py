"""Decodes tokens with a small Kimi K3 through models/kimi_k3/decode.py, interpreted, and prints errors as JSON.

    interpreted_decode.py WHAT     tp1, tp2, nano, faults

A prefill by the plain path comes first; then plain path, oracle and decode path each go on from their own state. A script
of its own: whether kernels are interpreted is decided when triton is imported.
"""

import json
import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

import decoded  # noqa: E402
import k3_weights  # noqa: E402
import torch  # noqa: E402
from decoded import EXACT, PADDING, PUBLISHED, Batch, Run, error  # noqa: E402


def compare(run: Run, group: decoded.Group, steps: int, found: dict, what: str) -> None:
    """Steps of every request and a padded row: logits against the oracle, states against the plain path's."""
    requests = (*range(run.requests), PADDING)
    for number in range(steps):
        tokens = k3_weights.tokens(run.of, len(requests), seed=10 + number)
        batch = Batch(tokens, requests, (1,) * len(requests))
        got = group.run(run.inputs(batch)).clone()
        run.advance(batch)
        exact, plain = run.reference(batch, EXACT), run.reference(batch, PUBLISHED)
        for request in range(run.requests):
            errors = [error(logits[request], exact[request]) for logits in (got, plain)]
            found[f"{what}: step {number}, request {request}"] = errors
    state = run.states[PUBLISHED]
    for rank, caches in enumerate(group.caches):
        for layer, cache in caches.items():
            theirs = vars(state.ranks[rank][layer])
            for name, plain in (("conv_state", "conv"), ("recurrent_state", "recurrent"), ("cache", "rows")):
                if name not in cache:
                    continue
                for request in range(run.requests):
                    if name == "cache":
                        pages, length = state.pages[request], state.lengths[request]
                        own, other = (t[pages].flatten(0, 1)[:length] for t in (cache[name], theirs[plain]))
                    else:
                        # The plain path leaves a step's state in another slot; the decode path updates it in place.
                        own = cache[name][run.ours.slots[request, 0]]
                        other = theirs[plain][state.slots[request, 0]]
                    key = f"{what}: {name}"
                    found[key] = max(found.get(key, 0.0), error(own, other))
            for name, tensor in cache.items():
                whole = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)
                between = whole.numel() - int(torch.isfinite(whole).sum())
                gap = tensor.stride(0) - tensor[0].numel()
                # The null page and what lies between pages are NaN still, and nothing else became NaN.
                expected = tensor[0].numel() + gap * len(tensor)
                found[f"{what}: untouched"] = found.get(f"{what}: untouched", True) and between == expected


def tp(ranks: int, of, requests: int, steps: int, buckets) -> dict:
    decoded.resize(of)
    run, found = Run(of, ranks, requests), {}
    group = run.decoders(buckets=buckets)
    compare(run, group, steps, found, f"tp{ranks}")
    found["allocated"] = grew(run, group)
    return found


def grew(run: Run, group: decoded.Group) -> bool:
    """Whether one more step allocates a tensor that stays: buffers, prepared weights, anything."""
    before = [decoder.extra_bytes for decoder in group.ranks]
    batch = Batch(k3_weights.tokens(run.of, 1), (0,), (1,))
    plan = group.ranks[0].plan(decoded.decode.Step((1,)))
    lane = group.ranks[0].lane(plan.bucket)
    places = {name: tensor.data_ptr() for name, tensor in lane.memory._kept.items()}
    for decoder in group.ranks:
        decoder.lane(plan.bucket).take(run.inputs(batch), 1)
    after = {name: tensor.data_ptr() for name, tensor in lane.memory._kept.items()}
    return before != [decoder.extra_bytes for decoder in group.ranks] or places != after


def faults(of) -> dict:
    """Planted faults: each must show as an error far beyond the plain path's."""
    decoded.resize(of)
    found, run = {}, Run(of, 1, 1)
    batch = Batch(k3_weights.tokens(of, 1), (0,), (1,))
    exact, plain = run.reference(batch, EXACT), run.reference(batch, PUBLISHED)
    for what in ("none", "slot", "length", "shared expert", "bank"):
        group = run.decoders(buckets=(1,))  # with caches of its own
        for bound in group.ranks[0].executors[1].bound:
            if what == "shared expert" and bound.call.op == "shared_down":
                object.__setattr__(bound, "launch", lambda: group.context.stream("shared").__enter__())
            if what == "bank" and bound.call.name == f"{of.attn_res_block_size}.o_proj_residual":
                # As if the block's first stream were written over what is banked already.
                banks, launch = group.ranks[0].lane(1).memory._banks(), bound.launch
                object.__setattr__(bound, "launch", lambda: (launch(), banks[0].copy_(banks[1])))
        inputs = run.inputs(batch)
        if what == "slot":
            inputs.slots.copy_(run.ours.slots[:1, 1])
        if what == "length":
            inputs.lengths.sub_(1)
        got = group.run(inputs).clone()
        found[what] = [error(got[0], exact[0]), error(plain[0], exact[0])]
    return found


what = sys.argv[1]
if what == "faults":
    print(json.dumps(faults(decoded.tiny(narrower=4))))
elif what == "nano":
    print(json.dumps(tp(1, k3_weights.nano(), 1, 1, (2,))))
else:
    print(json.dumps(tp(int(what[2:]), decoded.tiny(narrower=4), 2, 3 if what == "tp1" else 1, (4,))))
