"""MXFP4 matrices as the tensor cores read them: static weights, so the work is done once, when a layer is prepared.

A matrix [N, K] is cut into blocks of 16 rows and chunks of 64 columns (K is padded with zeros under scale 1). A chunk
of a block is 512 bytes: lane l of a warp loads 16 of them, four words, one for each `mma.m16n8k16` step of k. With
g = l / 4 and q = l % 4, word 2 a + s holds rows g and g + 8 at columns 32 a + 8 q + 4 s + {0, 1, 2, 3} of the chunk:
columns are permuted within a scale group, so that a lane's activations for two steps are 16 contiguous bytes as well.

Each half of a word holds four elements, of even columns in the low half: a mask leaves the first with its sign in bit
15 and its E2M1 exponent and mantissa in bits 8 to 6, which is a bfloat16 of value times 2^-126; shifts by 3 and 6 bring
the second and third there, and three masked shifts the fourth. Scale bytes of a chunk are one word for each g:
(row g | row g + 8) of the first 32 columns, then of the second; if chunks are even, words of two lie together.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ....errors import UserError
from ..layer_weights import Mxfp4
from ..weights.mxfp4 import GROUP, NAN_SCALE, NEUTRAL_SCALE, unpack
from .tactics import CHUNK, chunks, vector

BLOCK_ROWS = 16
LANES = 32

# Where bits 0 to 3 (mantissa, exponent low, exponent high, sign) of the first to fourth element of a half lie.
_PLACES = ((6, 7, 8, 15), (3, 4, 5, 12), (0, 1, 2, 9), (10, 11, 13, 14))

# Elements converted at a time, of one expert at least: temporaries take several bytes an element.
_AT_ONCE = 2**25


@dataclass(frozen=True)
class Packed:
    """A stack of matrices in fragment order."""

    words: Tensor
    """[E, N / 16, chunks, 32 lanes, 4] int32"""
    scales: Tensor
    """[E, N / 16, chunks / V, 8, V] int32, V = `tactics.vector`: four E8M0 bytes each"""


def pack_rows(stack: Mxfp4, order: Tensor | None = None, *, unused_nan: bool = False) -> Packed:
    """`stack` [E, N, K], its rows taken in `order` [N] if given, in fragment order on the same device.

    Raises UserError if N is no multiple of 16, and for the two scales that the exponent field of a normal float does
    not hold: NaN, unless `unused_nan` says that whoever has it is never chosen, and 2^-127 over anything but zeros.
    """
    if stack.packed.shape[-2] % BLOCK_ROWS:
        raise UserError(
            f"{stack.packed.shape[-2]} rows are no whole blocks of {BLOCK_ROWS}",
            "pad the expert intermediate size when the shard is loaded",
        )
    if not unused_nan and (stack.scale == NAN_SCALE).any():
        raise UserError("an expert has a scale of NaN (E8M0 byte 255)", "check the checkpoint that it came from")
    at_once = max(1, _AT_ONCE // (2 * stack.packed[0].numel()))
    parts = [
        _pack(packed if order is None else packed[:, order], scale if order is None else scale[:, order])
        for packed, scale in zip(stack.packed.split(at_once), stack.scale.split(at_once), strict=True)
    ]
    return Packed(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def paired_rows(intermediate: int, device: torch.device | str = "cpu") -> Tensor:
    """Order of w13's rows (gate | up) in which each block of 16 has eight gate rows, then their eight up rows: [2 I].

    Raises UserError for an intermediate size that is no multiple of 8.
    """
    if intermediate % 8:
        raise UserError(
            f"{intermediate} intermediate channels are no multiple of 8",
            "pad the expert intermediate size when the shard is loaded",
        )
    channels = torch.arange(intermediate, device=device).view(-1, 8)
    return torch.cat([channels, channels + intermediate], 1).flatten()


def _pack(packed: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    experts, rows, groups = scale.shape
    count = chunks(groups * GROUP)
    padding = count * CHUNK // GROUP - groups
    codes = F.pad(unpack(packed), (0, padding * GROUP))
    scale = F.pad(scale, (0, padding), value=NEUTRAL_SCALE)
    if (codes.view(*scale.shape, GROUP)[scale == 0] & 7).any():
        raise UserError("an expert has weights under scale 2^-127 (E8M0 byte 0)", "check the checkpoint they came from")
    scale = torch.where(scale == 0, NEUTRAL_SCALE, scale)

    # Axes: expert, block, row half, g, chunk, group, q, step, register pair, element of a register.
    codes = codes.view(experts, rows // BLOCK_ROWS, 2, 8, count, 2, 4, 2, 2, 2)
    table = torch.tensor(
        [[_spread(code, places) for code in range(16)] for places in _PLACES], dtype=torch.int32, device=codes.device
    )
    words = codes.new_zeros(codes[:, :, 0, :, ..., 0, 0].shape, dtype=torch.int32)
    for half in range(2):
        for pair in range(2):
            for element in range(2):
                part = codes[:, :, half, :, ..., pair, element]
                words |= table[half + 2 * pair][part.int()] << 16 * element
    # [expert, block, g, chunk, group, q, step] -> [expert, block, chunk, lane, word]
    words = words.permute(0, 1, 3, 2, 5, 4, 6).reshape(experts, -1, count, LANES, 4)

    # [expert, block, row half, g, chunk, group]
    scale = scale.view(experts, rows // BLOCK_ROWS, 2, 8, count, 2).int()
    scales = sum(scale[:, :, half, ..., group] << 8 * (2 * group + half) for half in range(2) for group in range(2))
    # [expert, block, g, chunk] -> [expert, block, vector, g, chunk of the vector]
    width = vector(count)
    return words, scales.unflatten(3, (-1, width)).transpose(2, 3).contiguous()


def _spread(code: int, places: tuple[int, ...]) -> int:
    return sum((code >> bit & 1) << place for bit, place in enumerate(places))

