"""A layer of a small model by the specialised path, interpreted, held against the oracle as the performance grid does.

    interpreted_shard.py KIND [FAULT]     JSON: tensor -> decision of the ruling

KIND is kda_moe, mla_moe or step: all layers, of which an MLA layer and the end are examined; or kda_verify or mla_verify: a
layer with three requests of two tokens, the second of which begins a page. FAULT: "skipped" leaves the shared expert's
product undone; "epsilon" changes a norm; "committed" lets each token of a verify step start from the committed state;
"unmasked" lets it see the tokens behind it.
A script of its own: whether kernels are interpreted is decided when triton is imported.
"""

import json
import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

import decoded  # noqa: E402
from grid_shards import LAYERS, STEP_LAYERS, small_grid, spec  # noqa: E402

import torch  # noqa: E402

from fasttrack_models.kimi_k3 import factory  # noqa: E402
from fasttrack_validation.performance.runner import ruled  # noqa: E402

kind, fault = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
of, tp, rows = decoded.tiny(), 2, 3
cell = spec(kind, tp, rows)
if kind in ("kda_verify", "mla_verify"):
    rows, cell = 6, spec(f"{kind.partition('_')[0]}_moe", tp, 6, 2)
    cell = cell if cell.context is None else cell.model_copy(update={"context": 63})
decoded.resize(of)
shard = small_grid(of, STEP_LAYERS if kind == "step" else LAYERS).shard(cell, "h200")
tensors = shard.draw(5, "cpu")
examined = shard.examined({name: tensor.clone() for name, tensor in tensors.items()})["specialised"]
context = decoded.InterpretingContext()
directory = decoded.directory(of, tps=(tp,))
if fault == "epsilon":
    decoded.kernel("kernels/latent_up.py").EPS = 1.0
if fault == "skipped":
    decoded.kernel("kernels/shared_down.py").launch = lambda *arguments: context.stream("shared").__enter__()
if fault == "committed":
    kernel, launch = decoded.kernel("kernels/kda_verify.py"), decoded.kernel("kernels/kda_verify.py").launch

    def apart(ctx, buffers, axes, config):
        for t in range(2):
            out = torch.empty_like(buffers.out[t::2])
            own = buffers._replace(slots=buffers.slots[:, [0, t + 1]], projected=buffers.projected[t::2], out=out)
            launch(ctx, own, {**axes, "rows": 3, "tokens": 1}, config)
            buffers.out[t::2] = out

    kernel.launch = apart
if fault == "unmasked":
    seeing, attend = decoded.kernel("kernels/mla_verify.py"), decoded.kernel("kernels/mla_verify.py").launch

    def whole(ctx, buffers, axes, config):
        lengths = buffers.lengths.view(-1, 2).amax(1).repeat_interleave(2)
        attend(ctx, buffers._replace(lengths=lengths), axes, config)

    seeing.launch = whole
part = factory.part(
    shard.names, tensors, directory, context, hardware="h200", tp=tp, rows=rows, tokens=cell.width,
    shape=decoded.small_shape(of),
)  # fmt: skip
part.run()
produced = {value: part.outputs[value].index_select(0, indices) for value, indices in examined.selection.items()}
print(json.dumps({ruling.tensor: ruling.decision for ruling in ruled(examined, produced)}))
