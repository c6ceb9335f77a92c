"""Small Kimi K3 models through `models/kimi_k3/decode.py` on a CPU, beside the plain path and the oracle.

Kernels hold the published model's sizes as constants; here they are given those of the small model, nothing else.
To run anything, import this in a process of its own that was started with TRITON_INTERPRET=1.
"""

import warnings
from dataclasses import dataclass, replace
from importlib import import_module

warnings.filterwarnings("ignore")

import k3_weights  # noqa: E402
import torch  # noqa: E402

from fasttrack_models.kimi_k3 import decode, dispatch, environment, graph, shape  # noqa: E402
from fasttrack_validation.contracts.kimi_k3.architecture import Architecture  # noqa: E402
from fasttrack_validation.contracts.kimi_k3.step.model import Model  # noqa: E402
from fasttrack_validation.contracts.kimi_k3.step.precision import EXACT, PUBLISHED, Precision  # noqa: E402
from fasttrack_validation.contracts.kimi_k3.step.state import PADDING, Batch, State  # noqa: E402
from fasttrack_validation.judge.interpreter.serving import InterpretingContext  # noqa: E402

TILES = {"structure": "tiles", "block_n": 16, "block_k": 32, "splits": 1, "num_warps": 4, "num_stages": 2}
PAGE = 16


def tiny(narrower: int = 1) -> Architecture:
    """`k3_weights.pico` with rows of the latent cache and projections on 16 bytes, as kernels need them.

    Experts have so many times fewer channels: most programs of a step are theirs, and TP 16 alone needs all of them.
    """
    of = k3_weights.pico()
    moe = of.moe.model_copy(update={"expert_intermediate_size": of.moe.expert_intermediate_size // narrower})
    return of.model_copy(update={"mla": of.mla.model_copy(update={"qk_rope_head_dim": 8}), "moe": moe})


def weights_of(of: Architecture):
    """Drawn weights of which the bias alone chooses experts: a choice that hangs on a rounding is nobody's fault."""
    drawn, random = k3_weights.draw(of, 0), torch.Generator().manual_seed(1)
    for number, layer in drawn.layers.items():
        if number >= of.moe.first_layer:
            bias = 2.0 * torch.randperm(of.moe.experts, generator=random)
            drawn.layers[number] = replace(layer, mlp=replace(layer.mlp, correction_bias=bias))
    return drawn


def small_shape(of: Architecture) -> shape.Shape:
    """The decode path's view of an architecture."""
    return shape.Shape(
        hidden=of.hidden_size, layers=of.layers, vocabulary=of.vocab_size,
        dense_intermediate=of.dense_intermediate_size, block_size=of.attn_res_block_size, kda_layers=of.kda_layers,
        kda_heads=of.kda.heads, kda_head_dim=of.kda.head_dim, conv_width=of.kda.conv_width, mla_heads=of.mla.heads,
        q_rank=of.mla.q_lora_rank, kv_rank=of.mla.kv_lora_rank, nope_dim=of.mla.qk_nope_head_dim,
        rope_dim=of.mla.qk_rope_head_dim, v_dim=of.mla.v_head_dim, experts=of.moe.experts, top_k=of.moe.top_k,
        latent=of.moe.latent_size, expert_intermediate=of.moe.expert_intermediate_size,
        shared_experts=of.moe.shared_experts, first_moe=of.moe.first_layer,
    )  # fmt: skip


def constants(of: Architecture) -> dict[str, dict[str, float]]:
    """Kernel file -> its constants for `of`."""
    mla, moe, width = of.mla, of.moe, of.hidden_size
    scale = (mla.qk_nope_head_dim + mla.qk_rope_head_dim) ** -0.5 * 1.4426950408889634
    return {
        "attn_res_norm": {"HIDDEN": width}, "residual": {"HIDDEN": width},
        "routing": {"EXPERTS": moe.experts, "TOP": moe.top_k},
        "front": {"EXPERTS": moe.experts, "LATENT": moe.latent_size}, "latent_up": {"LATENT": moe.latent_size},
        "experts": {"LATENT": moe.latent_size, "TOP": moe.top_k},
        **{op: {"HEAD_DIM": of.kda.head_dim, "GATE_RANK": of.kda.gate_rank} for op in ("kda_decode", "kda_verify")},
        **{
            op: {"LATENT": mla.kv_lora_rank, "SHARED": mla.qk_rope_head_dim, "SCALE_LOG2": scale}
            for op in ("mla_core", "mla_verify")
        },
        "mla_value": {"LATENT": mla.kv_lora_rank, "HEAD_DIM": mla.v_head_dim},
        "mla_query": {
            "Q_RANK": mla.q_lora_rank, "LATENT": mla.kv_lora_rank, "NOPE": mla.qk_nope_head_dim,
            "ROPE": mla.qk_rope_head_dim,
        },
    }  # fmt: skip


def resize(of: Architecture) -> None:
    """Gives the kernels the sizes of `of`, in this process."""
    for file, values in constants(of).items():
        for name, value in values.items():
            assert hasattr(kernel(f"kernels/{file}.py"), name)
            setattr(kernel(f"kernels/{file}.py"), name, value)


def kernel(file: str):
    """The module of a kernel file."""
    return import_module(f"fasttrack_models.kimi_k3.{file.removesuffix('.py').replace('/', '.')}")


def directory(of: Architecture, tps=(1, 2), rows=(1, 64), *, width: int = 1, **other: dict) -> dispatch.Directory:
    """Every op with a configuration that fits small widths, for these rows; `other` replaces an op's. `width`: tokens of
    a request at most."""
    configs = {op: TILES for op in ("in_projection", "mla_projection", "shared_down", "head", "o_proj_residual")}
    configs |= {op: TILES for op in ("dense_down", "dense_up", "latent_up")}
    # A tile of the front holds columns of one product.
    configs["front"] = {**TILES, "block_n": 8}
    per_head = {"block_n": min(16, of.mla.v_head_dim), "block_k": 16}
    configs |= {
        "mla_value": {**TILES, **per_head},
        "mla_query": {key: value for key, value in {**TILES, "block_n": 8}.items() if key != "splits"},
        "kda_decode": {"structure": "fused", "block_v": of.kda.head_dim, "num_warps": 4},
        "kda_verify": {"block_v": of.kda.head_dim, "num_warps": 4},
        "routing": {"num_warps": 4},
        "attn_res_norm": {"num_warps": 4},
        "experts": {"structure": "gemv", "block_n": 16, "block_k": 32, "num_warps": 1, "num_stages": 2},
        "mla_core": {"splits": 2, "block_tokens": 16, "num_warps": 4, "num_stages": 2},
        "mla_verify": {"block_q": 16, "splits": 2, "block_tokens": 16, "num_warps": 4, "num_stages": 2},
    } | other  # fmt: skip
    tables = {
        op: tuple(
            {"hardware": "h200", "tp": tp, "rows": list(rows), "kernel": f"kernels/{op}.py", "config": config,
             "basis": "modelled"}
            for tp in tps
        )
        for op, config in configs.items()
    }  # fmt: skip
    return dispatch.Directory(tuple(environment.Claim("h200", tp, rows, width) for tp in tps), tables, kernel)


def here(of: Architecture, tp: int, **changes) -> environment.Environment:
    """A deployment that nothing speaks against."""
    fine = environment.Environment(
        hardware="h200", capability=(9, 0), multiprocessors=132, tp=tp, shape=small_shape(of), ranks_here=tp
    )
    return replace(fine, **changes)


@dataclass
class Run:
    """A small model after a prefill: one state for each path."""

    of: Architecture
    tp: int
    requests: int
    tokens: int = 90
    width: int = 1
    """Tokens of a request in a step at most"""
    prompt: int = 3
    """Tokens of the first request's prompt; those of the others are seven longer each"""

    def __post_init__(self) -> None:
        self.weights = k3_weights.shard_model(weights_of(self.of), self.of, self.tp)
        self.models = {p: Model(self.of, self.weights, p) for p in (PUBLISHED, EXACT)}
        self.states = {p: self._prefilled(model) for p, model in self.models.items()}
        self.ours = self._prefilled(self.models[PUBLISHED])

    def _prefilled(self, model: Model) -> State:
        state = model.new_state(self.requests, self.tokens, verify_width=self.width, page_size=PAGE)
        counts = tuple(self.prompt + 7 * request for request in range(self.requests))
        model.prefill(Batch(k3_weights.tokens(self.of, sum(counts)), tuple(range(self.requests)), counts), state)
        return state

    def caches(self, rank: int, gap: int = 64) -> dict[int, dict[str, torch.Tensor]]:
        """Copies of our state's pools for the decode path, pages `gap` elements further apart than they are large."""
        found = {}
        for layer, cache in self.ours.ranks[rank].items():
            names = {"conv": "conv_state", "recurrent": "recurrent_state", "rows": "cache"}
            found[layer] = {names[name]: apart(tensor, gap) for name, tensor in vars(cache).items()}
        return found

    def inputs(self, batch: Batch) -> decode.Inputs:
        """What the decode path is given for a step, of one token a request or of several."""
        slots, counts = self.ours.slots_of(batch).int(), torch.tensor(batch.counts)
        lengths = [
            (before + 1 + t) * (request != PADDING)
            for before, request, count in zip(self.ours.lengths_of(batch), batch.requests, batch.counts, strict=True)
            for t in range(count)
        ]  # fmt: skip
        return decode.Inputs(
            self.weights[0].embedding[batch.tokens], slots if max(batch.counts) > 1 else slots[:, 0],
            self.ours.pages_of(batch).int().repeat_interleave(counts, 0), torch.tensor(lengths, dtype=torch.int32),
        )  # fmt: skip

    def reference(self, batch: Batch, precision: Precision) -> torch.Tensor:
        """Logits of the step by the plain path or the oracle, whose state moves on."""
        model, state = self.models[precision], self.states[precision]
        logits = model.decode(batch, state)
        state.commit(batch, [0 if request == PADDING else 1 for request in batch.requests])
        return logits

    def advance(self, batch: Batch) -> None:
        """Our state is one token further: the decode path has updated its pages in place."""
        for request in batch.requests:
            if request != PADDING:
                self.ours.lengths[request] += 1

    def decoders(self, buckets=(4,), pages=None, **options) -> "Group":
        """The decode path of every rank, bound to copies of our state."""
        return Group(self, buckets, pages or self.ours.pages.shape[1], **options)


class Group:
    """Simulated ranks, call by call in step: what a rank sends is copied to the others before anybody goes on."""

    def __init__(self, run: Run, buckets, pages: int, **options) -> None:
        self.context = InterpretingContext()
        self.caches = [run.caches(rank) for rank in range(run.tp)]
        tables = options.pop("directory", None) or directory(run.of, width=run.width)
        self.ranks = [
            decode.Decoder(
                run.weights[rank], here(run.of, run.tp, verify_width=run.width), tables, self.context, rank=rank, shape=small_shape(run.of),
                buckets=buckets, device="cpu", **options,
            )
            for rank in range(run.tp)
        ]  # fmt: skip
        for decoder, caches in zip(self.ranks, self.caches, strict=True):
            decoder.bind(caches, pages)

    def run(self, inputs: decode.Inputs) -> torch.Tensor:
        """Logits [rows, vocabulary] of one step."""
        rows, requests = len(inputs.lengths), len(inputs.slots)
        plan = self.ranks[0].plan(decode.Step((rows // requests,) * requests))
        if len(self.ranks) == 1:
            return self.ranks[0].run(plan, inputs)
        for decoder in self.ranks:
            decoder.lane(plan.bucket, plan.tokens).take(inputs, rows)
        executors = [decoder.executor(plan.bucket, plan.tokens) for decoder in self.ranks]
        for bounds in zip(*(executor.bound for executor in executors), strict=True):
            for executor, bound in zip(executors, bounds, strict=True):
                executor.enqueue(bound)
            if bounds[0].call.sends:
                self._exchange(plan, bounds[0].call.sends)
                if any(value.endswith(("residual.partial", "down.partial")) for value in bounds[0].call.sends):
                    # What a kernel sends and what it sums are one launch: the second has everybody's share.
                    for executor, bound in zip(executors, bounds, strict=True):
                        executor.enqueue(bound)
        lanes = [decoder.lane(plan.bucket, plan.tokens).memory for decoder in self.ranks]
        return torch.cat([lane.written(graph.LOGITS)[:rows] for lane in lanes], 1)

    def _exchange(self, plan: decode.Plan, values: tuple[str, ...]) -> None:
        lanes = [decoder.lane(plan.bucket, plan.tokens).memory for decoder in self.ranks]
        for value in values:
            sent = [lane.written(value).clone() for lane in lanes]
            op = value.split(".")[1]
            for rank, lane in enumerate(lanes):
                if op in ("o_proj_residual", "dense_down"):
                    lane.peers().copy_(torch.stack([s for other, s in enumerate(sent) if other != rank]))
                elif op in ("front", "latent_up"):
                    lane.whole(value).copy_(torch.cat(sent, 1))
                else:
                    lane._everyones(value).copy_(torch.stack(sent))


def apart(tensor: torch.Tensor, gap: int) -> torch.Tensor:
    """A copy whose leading index steps over `gap` elements more; they hold NaN, as does page 0."""
    step = tensor[0].numel() + gap
    storage = torch.full((len(tensor) * step,), float("nan"), dtype=tensor.dtype)
    laid = storage.as_strided(tensor.shape, (step, *tensor[0].stride()))
    laid[1:] = tensor[1:]
    return laid


def error(got: torch.Tensor, exact: torch.Tensor) -> float:
    """Relative, in the norm."""
    return ((got.double() - exact.double()).norm() / exact.double().norm()).item()
