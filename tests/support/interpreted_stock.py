"""Runs the stock path's Triton kernels in Triton's interpreter and prints as JSON how far they are from plain.

A script of its own: whether kernels are interpreted is decided when triton is imported.
"""

import copy
import json
import os
import types
import warnings

os.environ["TRITON_INTERPRET"] = "1"
warnings.filterwarnings("ignore")

import k3_weights  # noqa: E402
import torch  # noqa: E402

from fasttrack_validation.contracts.kimi_k3.layer_weights import MixWeights  # noqa: E402
from fasttrack_validation.contracts.kimi_k3.step import attn_res as plain_attn_res  # noqa: E402
from fasttrack_validation.contracts.kimi_k3.step.kda import Kda as PlainKda  # noqa: E402
from fasttrack_validation.contracts.kimi_k3.step.mla import Mla as PlainMla  # noqa: E402
from fasttrack_validation.contracts.kimi_k3.step.norm import rms_norm  # noqa: E402
from fasttrack_validation.contracts.kimi_k3.step.precision import PUBLISHED  # noqa: E402
from fasttrack_validation.contracts.kimi_k3.step.situ import situ  # noqa: E402
from fasttrack_validation.contracts.kimi_k3.step.state import PADDING, Batch, State  # noqa: E402
from fasttrack_validation.judge.interpreter import arithmetic, device_library  # noqa: E402

# bfloat16 arithmetic and casts of Triton's interpreter, corrected; memory as it comes.
arithmetic.install()
device_library.install()
torch.cuda.get_device_properties = lambda: types.SimpleNamespace(multi_processor_count=6)

from fasttrack_validation.contracts.kimi_k3.stock import attn_res, kda, mla, pointwise  # noqa: E402
from fasttrack_validation.contracts.kimi_k3.stock.step import Tables  # noqa: E402

OF, WEIGHTS = k3_weights.pico(), k3_weights.pico_weights()
BATCH = Batch(torch.zeros(8, dtype=torch.int64), (0, PADDING, 1, 2), (3, 1, 2, 2))
LENGTHS = [70, 5, 18]
PADDED_ROW = 3


def error(out: torch.Tensor, reference: torch.Tensor) -> float:
    return ((out.double() - reference.double()).norm() / reference.double().norm()).item()


def residual_stream() -> dict[str, float]:
    rng = torch.Generator().manual_seed(1)

    def draw() -> torch.Tensor:
        return torch.randn(3, OF.hidden_size, generator=rng).bfloat16()

    eps, embedding = OF.eps.backbone, draw()
    plain = plain_attn_res.Stream(embedding.float(), OF.attn_res_block_size, PUBLISHED)
    stream = attn_res.Stream.start(embedding, OF.layers, OF.attn_res_block_size)
    worst = 0.0

    def compare(out: torch.Tensor, sources: list[torch.Tensor], mix: MixWeights) -> None:
        nonlocal worst
        worst = max(worst, error(out, plain_attn_res.mix_norm(sources, mix, eps, PUBLISHED)))

    for number, layer in WEIGHTS.layers.items():
        compare(stream.attention_input(number, layer.attention_mix, eps), plain.enter(number), layer.attention_mix)
        output = draw()
        plain.after_attention(number, output.float())
        stream.after_attention(number, output)
        compare(stream.mlp_input(number, layer.mlp_mix, eps), plain.sources, layer.mlp_mix)
        output = draw()
        plain.after_mlp(output.float())
        stream.after_mlp(output)
    compare(stream.head_input(WEIGHTS.final_mix, eps), plain.sources, WEIGHTS.final_mix)
    return {
        "mix and norm of every layer": worst,
        "stream": error(stream.prefix, plain.prefix),
        "bank": error(stream.bank, torch.stack(plain.blocks)),
    }


def rows() -> dict[str, float]:
    rng = torch.Generator().manual_seed(2)
    x, weight = 4 * torch.randn(5, 96, generator=rng).bfloat16(), torch.rand(96, generator=rng).bfloat16()
    gate, up = x.float().chunk(2, -1)
    return {
        "rms_norm": error(pointwise.rms_norm(x, weight, 1e-5), rms_norm(x.float(), weight, 1e-5, PUBLISHED)),
        "situ": error(pointwise.situ(x, OF.situ), PUBLISHED.round(situ(gate, up, OF.situ))),
    }


def attention() -> dict[str, float]:
    rng = torch.Generator().manual_seed(3)
    x = torch.randn(len(BATCH.tokens), OF.hidden_size, generator=rng).bfloat16()
    found = {}
    for kind, number, page_size in (
        ("kda", OF.kda_layers[1], 16),
        ("mla, small pages", OF.mla_layers[0], 16),
        ("mla", OF.mla_layers[0], 64),
    ):
        state = State.allocate(OF, 1, PUBLISHED, 3, 90, verify_width=3, page_size=page_size)
        state.lengths = list(LENGTHS)
        for tensor in vars(state.ranks[0][number]).values():
            tensor.normal_(0, 0.3, generator=rng)
        ours = copy.deepcopy(state)
        weights, cache, own_cache = WEIGHTS.layers[number].attention, state.ranks[0][number], ours.ranks[0][number]
        tables = Tables.of(BATCH, ours, "cpu")
        if kind == "kda":
            plain = PlainKda(OF, 1, PUBLISHED).decode(x.float(), weights, cache, state.slots_of(BATCH), BATCH.counts)
            out = kda.Kda(OF, 1)(x, weights, own_cache, tables)
        else:
            plain = PlainMla(OF, 1, PUBLISHED).decode(
                x.float(), weights, cache, state.pages_of(BATCH), state.lengths_of(BATCH), BATCH.counts
            )
            out = mla.Mla(OF, 1)(x, weights, own_cache, tables)
        found[f"{kind} output"] = error(out, plain)
        found[f"{kind} padded row"] = out[PADDED_ROW].abs().max().item()
        for name, tensor in vars(own_cache).items():
            found[f"{kind} {name}"] = error(tensor[1:], vars(cache)[name][1:])
    found["mla null page"] = error(own_cache.rows[0], cache.rows[0])
    return found


print(json.dumps(residual_stream() | rows() | attention()))
