"""Tactics of the stock path's attention over latent rows, timed on one GPU: what `mla_core.TACTICS` was drawn from.

python benchmarks/mla_core.py --tp 8 16 --rows 1 4 16 64 --tokens 1024 4096 32768

Prints for each point the TB/s of the cached rows under each tactic (block of rows, stages, warps, blocks on a
multiprocessor), the best first. Caches are cold: several of them rotate.
"""

import argparse
import itertools
import json

import stock_bench
import torch

from fasttrack_validation.contracts.kimi_k3.architecture import Architecture
from fasttrack_validation.contracts.kimi_k3.stock.mla_core import Paging, Tactic, attend

SPACE = [
    Tactic(*each)
    for each in (
        (32, 2, 4, 3),
        (32, 3, 4, 3),
        (32, 3, 4, 2),
        (32, 4, 4, 2),
        (32, 3, 8, 2),
        (64, 1, 4, 2),
        (64, 2, 4, 1),
        (64, 3, 4, 1),
        (64, 2, 8, 1),
        (64, 3, 8, 1),
    )
]
PAGE = 64


def point(of: Architecture, tp: int, rows: int, tokens: int, space: list[Tactic]) -> dict:
    """TB/s under each tactic that compiles and agrees with the shipped one, best first."""
    sizes, heads = of.mla, of.mla.heads // tp
    width, pages = sizes.kv_lora_rank + sizes.qk_rope_head_dim, -(-tokens // PAGE)
    nbytes = rows * tokens * width * 2
    copies = stock_bench.copies_of(nbytes, least=2, most=24)
    query = torch.randn(rows, heads, width, device="cuda").bfloat16()
    absorbed, unrotated = query.split([sizes.kv_lora_rank, sizes.qk_rope_head_dim], 2)
    table = 1 + torch.randperm(rows * pages, device="cuda", dtype=torch.int32).view(rows, pages)
    paging = Paging(table, torch.full((rows,), tokens, device="cuda", dtype=torch.int32))
    caches = [torch.randn(1 + rows * pages, PAGE, width, device="cuda").bfloat16() for _ in range(copies)]
    out = torch.empty_like(absorbed)
    processors = torch.cuda.get_device_properties().multi_processor_count
    attend(absorbed, unrotated, caches[0], paging, sizes, out, processors)
    expected, found, failed = out.clone(), {}, []
    for tactic in space:
        runs = [
            lambda cache=cache, t=tactic: attend(
                absorbed, unrotated, cache, paging, sizes, out, processors, t
            )
            for cache in caches
        ]
        name = f"{tactic.block}/{tactic.stages}/{tactic.warps}/{tactic.resident}"
        try:
            runs[0]()
            if not torch.allclose(out.float(), expected.float(), rtol=2**-6, atol=1e-2):
                failed.append(f"{name}: wrong by {(out.float() - expected.float()).abs().max().item():.2g}")
                continue
            found[name] = round(nbytes / stock_bench.replay_us(runs) / 1e6, 3)
        except Exception as error:  # Too much shared memory, say: not a tactic for this card.
            failed.append(f"{name}: {type(error).__name__}")
    best = sorted(found.items(), key=lambda pair: -pair[1])
    return {"tp": tp, "rows": rows, "tokens": tokens, "TB/s": dict(best), "failed": failed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tp", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 4096, 32768])
    chosen = parser.parse_args()
    of = Architecture.from_config()
    for tp, rows, tokens in itertools.product(chosen.tp, chosen.rows, chosen.tokens):
        print(json.dumps(point(of, tp, rows, tokens, SPACE)), flush=True)


if __name__ == "__main__":
    main()
