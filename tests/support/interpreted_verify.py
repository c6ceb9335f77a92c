"""Verify steps of a small Kimi K3 through models/kimi_k3/decode.py, interpreted, beside single steps; prints JSON.

    interpreted_verify.py steps TP     errors of verify steps
    interpreted_verify.py faults       what planted faults change

After a prefill, a verify step of three tokens for two requests, a padded one between them and one that fills the bucket.
Then, for every number that can be accepted, a single step from there, and from one accepted token a second verify step.
Each row is held against the oracle, and against our own path's single steps. A script of its own: whether kernels are interpreted is decided when
triton is imported.
"""

import copy
import json
import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

import decoded  # noqa: E402
import k3_weights  # noqa: E402
import torch  # noqa: E402
from decoded import EXACT, PADDING, PAGE, PUBLISHED, Batch, Run, error  # noqa: E402

K, LIVE = 3, (0, 1)
REQUESTS = (0, PADDING, 1)


def batch_of(tokens, requests=REQUESTS):
    """A step of the tokens [requests, count]."""
    return Batch(tokens.flatten(), requests, (tokens.shape[1],) * len(requests))


def saved(run, group):
    """Everything that our path's next step depends on."""
    pools = [
        {layer: {name: t.clone() for name, t in cache.items()} for layer, cache in caches.items()}
        for caches in group.caches
    ]
    return copy.deepcopy(run.ours), pools


def restore(run, group, kept):
    run.ours = copy.deepcopy(kept[0])
    for caches, pools in zip(group.caches, kept[1], strict=True):
        for layer, cache in pools.items():
            for name, tensor in cache.items():
                caches[layer][name].copy_(tensor)


def ours(run, group, batch, spoil=lambda inputs: None):
    """Logits of a step by the kernels. A single step moves on in place; of several tokens nothing is accepted yet."""
    inputs = run.inputs(batch)
    spoil(inputs)
    got = group.run(inputs).clone()
    if batch.counts[0] == 1:
        run.advance(batch)
    return got.view(len(batch.requests), batch.counts[0], -1)


def single(run, path, tokens):
    """Logits [requests, count, .] of the tokens one after the other: by our path (a group) or a reference precision."""
    steps = []
    for t in range(tokens.shape[1]):
        batch = batch_of(tokens[:, t : t + 1])
        own = isinstance(path, decoded.Group)
        steps.append(ours(run, path, batch)[:, 0] if own else run.reference(batch, path))
    return torch.stack(steps, 1)


def accept(run, tokens, state, counted):
    """Takes over the state behind `state` tokens, and counts `counted` of them: the same number, but for a fault."""
    run.ours.offer(batch_of(tokens))
    run.ours.commit(batch_of(tokens), [state] * len(REQUESTS))
    for request in LIVE:
        run.ours.lengths[request] += counted - state


def begin(tp: int):
    """A model of three layers with few heads, after a prefill; its decode path; tokens of two steps."""
    of = decoded.tiny()
    few = {"kda": of.kda.model_copy(update={"heads": 4}), "mla": of.mla.model_copy(update={"heads": 4})}
    of = of.model_copy(update={"layers": 3, "kda_layers": (0, 1), "mla_layers": (2,), **few})
    decoded.resize(of)
    # The last of the second request's first three tokens begins a page.
    run = Run(of, tp, len(LIVE), width=K, prompt=PAGE - K + 1 - 7)
    group = run.decoders(buckets=(1, 4, 16), widths=(1, K))
    drawn = (k3_weights.tokens(of, len(REQUESTS) * K, seed=seed).view(len(REQUESTS), K) for seed in (20, 21))
    return run, group, *drawn


def steps(tp: int) -> dict:
    """"rows": what -> errors of the kernels and of the plain path against the oracle; "singles": what -> difference
    between the kernels' verify and their single steps; and whether what is nobody's to write was left alone."""
    run, group, first, second = begin(tp)
    found: dict = {"rows": {}, "singles": {}}

    def hold(what, got, exact, plain, alone):
        for r, request in enumerate(REQUESTS):
            for t in range(got.shape[1] if request != PADDING else 0):
                key = f"{what}: request {request}, token {t}"
                found["rows"][key] = [error(got[r, t], exact[r, t]), error(plain[r, t], exact[r, t])]
                found["singles"][key] = error(got[r, t], alone[r, t])

    # Single steps over the first tokens, with the state behind each number of them.
    behind = {0: (saved(run, group), copy.deepcopy(run.states))}
    columns = {path: [] for path in (EXACT, PUBLISHED, group)}
    for t in range(K):
        for path, logits in columns.items():
            logits.append(single(run, path, first[:, t : t + 1]))
        behind[t + 1] = saved(run, group), copy.deepcopy(run.states)
    exact, plain, alone = (torch.cat(logits, 1) for logits in columns.values())

    start = behind[0][0]
    restore(run, group, start)
    got = ours(run, group, batch_of(first))
    verified = saved(run, group)
    hold("first", got, exact, plain, alone)
    found["committed"] = all(
        torch.equal(after[layer][name][page], before[layer][name][page])
        for before, after in zip(start[1], verified[1], strict=True)
        for layer in before for name in ("conv_state", "recurrent_state") if name in before[layer]
        for page in start[0].slots[list(LIVE), 0].tolist()
    )  # fmt: skip
    found["null pages"] = all(
        bool(pool[0].isnan().all()) for caches in group.caches for cache in caches.values() for pool in cache.values()
    )
    for accepted in range(K + 1):
        reached, states = behind[accepted]
        counts = (K, 1) if accepted == 1 else (1,)
        restore(run, group, reached)
        alone = single(run, group, second[:, : counts[0]])
        run.states = copy.deepcopy(states)
        exact, plain = (single(run, path, second[:, : counts[0]]) for path in (EXACT, PUBLISHED))
        for count in counts:
            restore(run, group, verified)
            accept(run, first, accepted, accepted)
            got = ours(run, group, batch_of(second[:, :count]))
            hold(f"{accepted} accepted, then {count}", got, exact, plain, alone)
    return found


def lengths(inputs):
    """All rows of a request see its last token."""
    inputs.lengths.copy_(inputs.lengths.view(-1, K).amax(1, keepdim=True).expand(-1, K).flatten())


def negative(inputs):
    """Accepted count 0 read as index -1."""
    inputs.slots[:, 0] = torch.where(inputs.slots[:, 0] > 0, inputs.slots[:, -1], inputs.slots[:, 0])


def rolled(launch):
    """The state behind a token goes to the page of another token."""

    def spoilt(ctx, buffers, axes, config):
        slots = buffers.slots.clone()
        slots[:, 1:] = slots[:, 1:].roll(1, 1)
        launch(ctx, buffers._replace(slots=slots), axes, config)

    return spoilt


def apart(launch):
    """Every token starts from the committed state."""

    def spoilt(ctx, buffers, axes, config):
        for t in range(axes["tokens"]):
            rows = slice(t, None, axes["tokens"])
            out = torch.empty_like(buffers.out[rows])
            own = buffers._replace(slots=buffers.slots[:, [0, t + 1]], projected=buffers.projected[rows], out=out)
            launch(ctx, own, {**axes, "rows": len(out), "tokens": 1}, config)
            buffers.out[rows] = out

    return spoilt


def unmasked(launch):
    """Every token sees those behind it."""

    def spoilt(ctx, buffers, axes, config):
        tokens = axes["tokens"]
        lengths = buffers.lengths.view(-1, tokens).amax(1).repeat_interleave(tokens)
        launch(ctx, buffers._replace(lengths=lengths), axes, config)

    return spoilt


def faults() -> dict:
    """Fault -> largest difference to the kernels' single steps, of a verify step and of one single step from `K - 1`
    accepted tokens."""
    run, group, first, second = begin(1)
    kernels = {op: decoded.kernel(f"kernels/{op}.py") for op in ("kda_verify", "mla_verify")}
    start, launches = saved(run, group), {op: kernel.launch for op, kernel in kernels.items()}
    alone = single(run, group, first[:, : K - 1])
    then = single(run, group, second[:, :1])
    found = {}
    for name, spoil, wrong, extra in (
        ("none", None, None, 0), ("lengths", lengths, None, 0), ("index -1", negative, None, 0),
        ("pages rolled", None, rolled, 0), ("tokens apart", None, apart, 0), ("one token too many", None, None, 1),
        ("unmasked", None, unmasked, 0),
    ):  # fmt: skip
        spoilt = "mla_verify" if wrong is unmasked else "kda_verify"
        for op, kernel in kernels.items():
            kernel.launch = wrong(launches[op]) if wrong and op == spoilt else launches[op]
        group = run.decoders(buckets=(1, 4, 16), widths=(1, K))
        restore(run, group, start)
        got = ours(run, group, batch_of(first), spoil or (lambda inputs: None))
        accept(run, first, K - 1 + extra, K - 1)
        after = ours(run, group, batch_of(second[:, :1]))
        found[name] = [
            max(error(mine[r], its[r]) for r, request in enumerate(REQUESTS) if request != PADDING)
            for mine, its in ((got[:, : K - 1], alone), (after, then))
        ]
    return found


print(json.dumps(steps(int(sys.argv[2])) if sys.argv[1] == "steps" else faults()))
