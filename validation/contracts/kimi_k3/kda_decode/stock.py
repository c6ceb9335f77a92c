"""The stock path of `kda_decode` on a GPU: the pieces that a user of a public serving stack runs today on Hopper.

Gate GEMM (cuBLAS), paged convolution update (Triton), recurrent KDA with gate, L2 norm and sigmoid inside (fla-core),
gated RMSNorm (fla-core), and the two small copies that make strided slices dense. Serving falls back to this chain
wherever its own fused kernel does not apply. It rounds q, k, v and the core output to bfloat16, as the chain does.
"""

from collections.abc import Callable, Mapping
from importlib.util import find_spec

import torch
from torch import Tensor

from ....errors import UserError
from ...base import Workload
from ..architecture import Architecture

_HOW = "run on a machine with a CUDA GPU after: pip install 'fasttrack[gpu]'"


def path(device: str, architecture: Architecture) -> Callable[[Mapping[str, Tensor], Workload], dict[str, Tensor]]:
    """A function that updates `conv_state` and `recurrent_state` in place on `device` and returns them with `out`.

    Its buffers lie on `device` with the strides of the contract. Intermediates come from torch's caching allocator; a
    CUDA graph can capture it after one warm-up call. Padded rows must carry slot 0, as serving pads: they run on the
    null page, and their output means nothing. Raises UserError naming what is missing.
    """
    if not device.startswith("cuda") or not torch.cuda.is_available():
        raise UserError(f"the stock path of kda_decode needs a CUDA GPU, not {device!r}", _HOW)
    if find_spec("fla") is None:
        raise UserError("the stock path of kda_decode needs fla-core, which is not installed", _HOW)
    from fla.modules.norm.fused_norm_gate import rms_norm_gated
    from fla.ops.kda.fused_recurrent import fused_recurrent_kda_fwd

    from . import stock_conv

    def run(buffers: Mapping[str, Tensor], workload: Workload) -> dict[str, Tensor]:
        shard = architecture.kda_shard(workload.axes["tp"])
        shape = (workload.axes["rows"], 1, shard.heads, shard.head_dim)
        part = {name: buffers["projected"][:, columns] for name, columns in shard.columns.items()}
        gate = part["f_a"] @ buffers["f_b"].T
        mixed = stock_conv.update(
            buffers["projected"], buffers["conv_state"], buffers["conv_weight"], buffers["slots"]
        )
        q, k, v = (channels.view(shape) for channels in mixed.unbind(0))
        core, _ = fused_recurrent_kda_fwd(
            q=q,
            k=k,
            v=v,
            g=gate.view(shape),
            beta=part["beta"].contiguous().view(shape[:3]),
            A_log=buffers["a_log"],
            dt_bias=buffers["dt_bias"],
            initial_state=buffers["recurrent_state"],
            state_v_first=True,
            ssm_state_indices=buffers["slots"],
            use_qk_l2norm_in_kernel=True,
            use_gate_in_kernel=True,
            use_beta_sigmoid_in_kernel=True,
            lower_bound=architecture.kda.gate_lower_bound,
            out=torch.empty_like(v),
        )
        out = rms_norm_gated(
            core, part["g"].reshape(shape), buffers["o_norm"], None, "sigmoid", eps=architecture.eps.kda_output
        )
        return {
            "conv_state": buffers["conv_state"],
            "recurrent_state": buffers["recurrent_state"],
            "out": out.view(shape[0], shard.channels),
        }

    return run
