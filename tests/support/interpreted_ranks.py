"""One rank of two of a small Kimi K3, interpreted, its exchanges by gloo: prints errors of its step as JSON.

    interpreted_ranks.py RANK FOLDER
"""

import json
import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

import decoded  # noqa: E402
import k3_weights  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from decoded import EXACT, PADDING, PUBLISHED, Batch, Run, error  # noqa: E402

from fasttrack_models.kimi_k3 import decode, graph  # noqa: E402
from fasttrack_models.kimi_k3.exchange import Collectives, RankedStep  # noqa: E402
from fasttrack_validation.judge.interpreter.serving import InterpretingContext  # noqa: E402

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
of = decoded.tiny(narrower=4)
decoded.resize(of)
run = Run(of, 2, 2)
decoder = decode.Decoder(
    run.weights[rank], decoded.here(of, 2), decoded.directory(of), InterpretingContext(), rank=rank,
    shape=decoded.small_shape(of), buckets=(4,), device="cpu",
)  # fmt: skip
decoder.bind(run.caches(rank), run.ours.pages.shape[1])
batch = Batch(k3_weights.tokens(of, 3, seed=10), (0, 1, PADDING), (1, 1, 1))
lane = decoder.lane(4)
lane.take(run.inputs(batch), 3)
step = RankedStep(decoder.executors[4], lane, Collectives(dist.group.WORLD))
step.run()
mine = lane.memory.written(graph.LOGITS)[:3].contiguous()
parts = [torch.empty_like(mine) for _ in range(2)]
dist.all_gather(parts, mine)
logits = torch.cat(parts, 1)
exact, plain = run.reference(batch, EXACT), run.reference(batch, PUBLISHED)
errors = [[error(one[request], exact[request]) for one in (logits, plain)] for request in range(2)]
print(json.dumps({"errors": errors, "exchanges": step.exchanges}))
