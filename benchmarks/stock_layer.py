"""The stock path of whole layers on one GPU at the real shapes of one rank: times, and launches counted from graphs.

python benchmarks/stock_layer.py --tp 8 16 --rows 1 2 4 8 16 32 64 --tokens 1024 32768 --out figures.json

Layers (KDA + MoE, MLA + MoE, the dense layer 0, the end of the step) replay as one CUDA graph of several with weights
and state of their own, several times the L2 cache. Medians of replays. One rank alone: communication is neither done
nor timed. Random routing. `part`: the same layer as a part of the op graph, which also sums what other ranks sent;
`check`: its outputs against the ops' oracles, beside the plain path's error. `benchmarks/stock_ops.py` goes op by op.
"""

import argparse
import json
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
import k3_weights  # noqa: E402
import stock_bench  # noqa: E402
import stock_parts  # noqa: E402
import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from fasttrack_validation.contracts.kimi_k3 import graph as op_graph  # noqa: E402
from fasttrack_validation.contracts.kimi_k3 import stock  # noqa: E402
from fasttrack_validation.contracts.kimi_k3.architecture import Architecture  # noqa: E402
from fasttrack_validation.contracts.kimi_k3.layer_weights import DenseWeights  # noqa: E402
from fasttrack_validation.contracts.kimi_k3.step.precision import PUBLISHED  # noqa: E402
from fasttrack_validation.contracts.kimi_k3.step.state import Batch, State  # noqa: E402
from fasttrack_validation.contracts.kimi_k3.stock.step import Tables  # noqa: E402

LAYERS = 4
"""Layers of one kind in a chain"""
NUMBERS = {"KDA": 13, "MLA": 15, "dense": 0}
"""Whose bookkeeping a layer of each kind has: two banked blocks and the stream; none in front of layer 0"""
PAGE = 64


def rank_of(whole: Architecture, tp: int) -> Architecture:
    """The architecture whose whole has the shapes that one rank of `whole` has."""
    return whole.model_copy(
        update={
            "vocab_size": whole.vocab_size // tp,
            "dense_intermediate_size": whole.dense_intermediate_size // tp,
            "kda": whole.kda.model_copy(update={"heads": whole.kda.heads // tp}),
            "mla": whole.mla.model_copy(update={"heads": whole.mla.heads // tp}),
            "moe": whole.moe.model_copy(update={"expert_intermediate_size": whole.moe.expert_intermediate_size // tp}),
        }
    )


def state_of(of: Architecture, kind: str, requests: int, width: int, tokens: int) -> State:
    """The filled cache of one layer."""
    kinds = {"layers": 1, "mla_layers": (0,) if kind == "MLA" else (), "kda_layers": (0,)}
    cached = tokens if kind == "MLA" else PAGE
    state = State.allocate(
        of.model_copy(update=kinds), 1, PUBLISHED, requests, cached + width, verify_width=width, page_size=PAGE,
        device="cuda",
    )  # fmt: skip
    for tensor in vars(state.ranks[0][0]).values():
        tensor.normal_(0, 0.1 if tensor.ndim == 4 else 1)
    state.lengths = [cached] * requests
    return state


class Rank:
    """One rank's layers, drawn once on the GPU and prepared."""

    def __init__(self, whole: Architecture, tp: int) -> None:
        self.of, self.tp = rank_of(whole, tp), tp
        self.path = stock.path(self.of, 1)
        self.rng = torch.Generator("cuda").manual_seed(0)
        with torch.device("cuda"):
            self.moes = [self._packed() for _ in range(LAYERS)]

    def _packed(self):
        return self.path.moe(self.of.moe.expert_intermediate_size).pack(k3_weights.draw_moe(self.of, self.rng))

    def layer(self, kind: str, place: int):
        """A layer with attention weights of its own."""
        from fasttrack_validation.contracts.kimi_k3.stock.layer import PreparedLayer

        of, rng = self.of, self.rng
        with torch.device("cuda"):
            mixes = [k3_weights.draw_mix(rng, of.hidden_size) for _ in range(2)]
            attention = (k3_weights.draw_mla if kind == "MLA" else k3_weights.draw_kda)(of, rng)
            mlp = self.moes[place]
            if kind == "dense":
                inner, width = of.dense_intermediate_size, of.hidden_size
                shapes = ((2 * inner, width), (width, inner))
                mlp = DenseWeights(*((torch.randn(shape) * shape[1] ** -0.5).bfloat16() for shape in shapes))
        return PreparedLayer(NUMBERS[kind], mixes[0], attention, mixes[1], mlp)

    def chain(self, kind: str, requests: int, width: int, tokens: int) -> dict:
        """Time of a layer in a chain, launches of one alone."""
        from fasttrack_validation.contracts.kimi_k3.stock.attn_res import Stream

        of, number, rows = self.of, NUMBERS[kind], requests * width
        layers = [self.layer(kind, place) for place in range(LAYERS)]
        states = [state_of(of, kind, requests, width, tokens) for _ in layers]
        batch = Batch(torch.zeros(rows, dtype=torch.long), tuple(range(requests)), (width,) * requests)
        tables = Tables.of(batch, states[0], "cuda")
        prefix, delta = (torch.randn(rows, of.hidden_size, device="cuda").bfloat16() for _ in range(2))
        bank = torch.randn(2, rows, of.hidden_size, device="cuda").bfloat16()

        def run(count: int) -> None:
            stream = Stream(prefix, bank, of.attn_res_block_size)
            stream.after_mlp(delta)
            for layer, state in zip(layers[:count], states, strict=False):
                self.path.layer(layer, stream, state.ranks[0][0], tables)

        kernels = stock_bench.launches(lambda: run(1))
        us = stock_bench.replay_us([lambda: run(LAYERS)]) / LAYERS
        return {
            "layer": kind, "tp": self.tp, "rows": rows, "requests": requests, "number": number,
            "tokens": tokens if kind == "MLA" else None, "us": us, "launches": len(kernels), "kernels": kernels,
        }  # fmt: skip

    def end(self, rows: int) -> dict:
        """Final mix with norm, and this rank's logits."""
        from fasttrack_validation.contracts.kimi_k3.stock.attn_res import Stream

        of = self.of
        with torch.device("cuda"):
            mix = k3_weights.draw_mix(self.rng, of.hidden_size)
            heads = [torch.randn(of.vocab_size, of.hidden_size).bfloat16() for _ in range(3)]
            prefix, bank = (torch.randn(*n, rows, of.hidden_size).bfloat16() for n in ((), (8,)))
        stream = Stream(prefix, bank, of.attn_res_block_size)
        runs = [lambda head=head: self.path.head(stream, mix, head) for head in heads]
        return {"layer": "end", "tp": self.tp, "rows": rows, "us": stock_bench.replay_us(runs),
                "launches": len(stock_bench.launches(runs[0]))}  # fmt: skip


def part_of(whole: Architecture, kind: str, tp: int, rows: int, tokens: int) -> stock_parts.Part:
    """A layer as a part of the op graph."""
    graph = op_graph.step(whole)
    return stock_parts.Part(graph, graph.layer(NUMBERS[kind]), whole, tp, rows, tokens)


def bound(part: stock_parts.Part, tensors: dict[str, Tensor]):
    """The part's stock path on `tensors`."""
    return stock.part(part.graph, part.names, part.contracts, tensors, part.workloads)


def time_part(part: stock_parts.Part, kind: str) -> dict:
    """Time and launches of a part, on three copies of all that it reads."""

    def drawn() -> dict[str, Tensor]:
        tensors, seen = {}, {}
        for node in part.nodes:
            for spec in part.specs(node):
                if part.given(node, spec.name):
                    fresh = stock_bench.drawn(spec, part.rows)
                    if spec.name == "lengths":
                        fresh.fill_(part.tokens)
                    sources = (spec.name == "blocks", node.reads.get(spec.name))
                    tensors[f"{node.name}.{spec.name}"] = seen.setdefault(sources, fresh) if sources[1] else fresh
        return tensors

    runs = [bound(part, drawn()) for _ in range(3)]
    return {
        "part": kind, "tp": part.tp, "rows": part.rows, "tokens": part.tokens,
        "us": stock_bench.replay_us([run.run for run in runs]), "launches": len(stock_bench.launches(runs[0].run)),
    }  # fmt: skip


def check_part(part: stock_parts.Part, kind: str) -> dict:
    """Relative errors of each output against the oracle: of the stock path and, as a yardstick, of the plain one."""
    tensors = part.draw()
    outputs = bound(part, stock_parts.laid_out(part, tensors, "cuda"))
    outputs.run()
    got = {name: value.cpu() for name, value in outputs.outputs.items()}
    exact, plain = part.expected(tensors), part.expected(tensors, "plain")
    errors = {name: (stock_parts.error(got[name], exact[name]), stock_parts.error(plain[name], exact[name]))
              for name in exact}  # fmt: skip
    return {"check": kind, "tp": part.tp, "rows": part.rows, "stock, plain": errors}


def measure(chosen: argparse.Namespace) -> Iterator[dict]:
    whole = Architecture.from_config()
    yield {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "read TB/s": stock_bench.read_ceiling()}
    for tp in chosen.tp:
        rank = Rank(whole, tp)
        for rows in chosen.rows:
            yield rank.chain("KDA", rows, 1, 0)
            for tokens in chosen.tokens:
                yield rank.chain("MLA", rows, 1, tokens)
            yield rank.chain("dense", rows, 1, 0)
            yield rank.end(rows)
        for kind in ("KDA", "MLA"):
            yield rank.chain(kind, 1, 8, chosen.tokens[0])
        del rank
        torch.cuda.empty_cache()
        for kind in NUMBERS:
            for rows in chosen.part_rows:
                yield time_part(part_of(whole, kind, tp, rows, chosen.tokens[0]), kind)
                torch.cuda.empty_cache()
    for kind in chosen.check:
        yield check_part(part_of(whole, kind, chosen.tp[0], 4, 100), kind)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tp", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 32768], help="cached tokens of a request")
    parser.add_argument("--part-rows", type=int, nargs="*", default=[1, 16])
    parser.add_argument("--check", nargs="*", default=list(NUMBERS), choices=list(NUMBERS))
    parser.add_argument("--out", type=Path, help="writes all results as JSON")
    chosen = parser.parse_args()
    results: list[dict] = []
    try:
        for result in measure(chosen):
            results.append(result)
            shown = {k: round(v, 3) if isinstance(v, float) else v for k, v in result.items() if k != "kernels"}
            print(json.dumps(shown), flush=True)
    except Exception:
        results.append({"raised": traceback.format_exc()})
        raise
    finally:
        if chosen.out:
            chosen.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
