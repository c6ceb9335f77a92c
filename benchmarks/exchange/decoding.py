"""The decode path of one rank of a group on GPUs of their own: tables for any TP, weights drawn at the true shapes."""

import sys
import tomllib
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
import k3_weights  # noqa: E402
import torch  # noqa: E402

import fasttrack_models.kimi_k3 as package  # noqa: E402
from fasttrack_models.kimi_k3 import decode, dispatch, environment, launcher, shape  # noqa: E402
from fasttrack_validation.contracts.kimi_k3.architecture import Architecture  # noqa: E402
from fasttrack_validation.contracts.kimi_k3.layer_weights import DenseWeights, LayerWeights  # noqa: E402

ROOT = Path(package.__file__).parent
TABLES = ("gb300", 8, 8)
"""Hardware, TP and rows whose entries are taken for TP without tables of its own, at every row count: Triton configurations
of single ops on tensor cores, tuned for nothing here, whose loops compile quickly however long a rank's K is"""


def directory(tp: int) -> dispatch.Directory:
    """Every op alone, by Triton kernels, for `tp` ranks."""
    manifest = tomllib.loads((ROOT / "fasttrack.toml").read_text())
    hardware, as_for, rows = TABLES
    tables = {}
    for op, entry in manifest["ops"].items():
        if dispatch.PART not in op:
            given = tomllib.loads((ROOT / entry["dispatch"]).read_text())["entry"]
            (chosen,) = (
                one for one in given
                if (one["hardware"], one["tp"]) == (hardware, as_for) and one["rows"][0] <= rows <= one["rows"][1]
            )  # fmt: skip
            tables[op] = (chosen | {"hardware": "h200", "tp": tp, "rows": [1, 64]},)
    sources = {path.relative_to(ROOT).as_posix(): path.read_text() for path in ROOT.rglob("*.cu*")}
    return dispatch.Directory((environment.Claim("h200", tp, (1, 64), 1),), tables, module, sources)


def module(file: str):
    """The module of a kernel file."""
    return import_module(f"fasttrack_models.kimi_k3.{file.removesuffix('.py').replace('/', '.')}")


def decoder(weights, of: shape.Shape, tp: int, rank: int, buckets, caches, pages: int) -> decode.Decoder:
    """The decode path, bound; its exchanges are the caller's."""
    tables = directory(tp)
    here = environment.Environment(
        hardware="h200", capability=(9, 0), multiprocessors=132, tp=tp, shape=of, ranks_here=tp
    )  # fmt: skip
    context = launcher.ServingContext(launcher.hardware("h200"), tables.sources)
    made = decode.Decoder(weights, here, tables, context, rank=rank, shape=of, buckets=buckets)
    made.bind(caches, pages)
    return made


def compile_all(made: decode.Decoder, part: int, parts: int) -> None:
    """Launches every call of every size once, whatever it reads: caches hold anything afterwards.

    Processes begin at different places, `part` of `parts`, and find on disk what others have compiled.
    """
    bounds = [bound for executor in made.executors.values() for bound in executor.bound]
    seen, first = set(), []
    for bound in bounds:
        key = (bound.call.op, tuple(sorted(bound.call.members[0].place.axes.items())))
        if key not in seen:
            seen.add(key)
            first.append(bound)
    begin = len(first) * part // parts
    for bound in [*first[begin:], *first[:begin], *bounds]:
        bound.launch()
    torch.cuda.synchronize()


def cut_down(layers: int, kda: tuple[int, ...], block: int) -> tuple[Architecture, shape.Shape]:
    """The published model with fewer layers: everything else is its own."""
    of = Architecture.from_config()
    mla = tuple(number for number in range(layers) if number not in kda)
    changed = {"layers": layers, "kda_layers": kda, "mla_layers": mla, "attn_res_block_size": block}
    return of.model_copy(update=changed), replace(shape.PUBLISHED, layers=layers, kda_layers=kda, block_size=block)


def rank_of(whole: Architecture, tp: int) -> Architecture:
    """The architecture whose whole has the shapes that one rank of `whole` has."""
    return whole.model_copy(
        update={
            "vocab_size": whole.vocab_size // tp, "dense_intermediate_size": whole.dense_intermediate_size // tp,
            "kda": whole.kda.model_copy(update={"heads": whole.kda.heads // tp}),
            "mla": whole.mla.model_copy(update={"heads": whole.mla.heads // tp}),
            "moe": whole.moe.model_copy(update={"expert_intermediate_size": whole.moe.expert_intermediate_size // tp}),
        }
    )  # fmt: skip


def matrix(rng: torch.Generator, *sizes: int) -> torch.Tensor:
    """Of variance 1 / K."""
    return (torch.randn(sizes, generator=rng) * sizes[-1] ** -0.5).bfloat16()


def dense_mlp(of: Architecture, rng: torch.Generator) -> DenseWeights:
    """Layer 0's."""
    inner, width = of.dense_intermediate_size, of.hidden_size
    return DenseWeights(matrix(rng, 2 * inner, width), matrix(rng, width, inner))


def layer(of: Architecture, kind: str, mlp, rng: torch.Generator) -> LayerWeights:
    """A layer around `mlp`."""
    mixes = [k3_weights.draw_mix(rng, of.hidden_size) for _ in range(2)]
    attention = (k3_weights.draw_mla if kind == "mla" else k3_weights.draw_kda)(of, rng)
    return LayerWeights(mixes[0], attention, mixes[1], mlp)


def ends(of: Architecture, rng: torch.Generator, layers: dict) -> SimpleNamespace:
    """A model's embedding, head and last mix around `layers`."""
    return SimpleNamespace(
        embedding=torch.randn(of.vocab_size, of.hidden_size, generator=rng).bfloat16(), layers=layers,
        final_mix=k3_weights.draw_mix(rng, of.hidden_size), lm_head=matrix(rng, of.vocab_size, of.hidden_size),
    )  # fmt: skip
