"""MXFP4 matrices in stages for `cuda/mxfp4.cuh`: what one warp brings into shared memory and multiplies at a time.

A matrix [N, K] is cut into row blocks of 16 and chunks of 64 columns; a stage is `chunks` chunks of a row block that
follow one another, 136 words each: 32 lanes x 4 words of elements for every chunk, then 8 words of scale bytes for every
chunk. With g = lane / 4 and q = lane % 4, word 2 a + s of a lane holds rows g and g + 8 at columns 32 a + 8 q + 4 s + {0,
1, 2, 3} of its chunk: in each half of the word the four elements of one column parity, at PLACES. Scale word g holds
(row g, row g + 8) of the first 32 columns, then of the last, each one more than E8M0's byte.
"""

import torch

BLOCK_ROWS = 16
CHUNK = 64
CHUNK_WORDS = 136
# Where bits 0 to 3 (mantissa, exponent low, exponent high, sign) of an element lie in a half word: row g, row g + 8 of
# the first two columns, then of the other two.
PLACES = ((6, 7, 8, 15), (3, 4, 5, 12), (0, 1, 2, 14), (9, 10, 11, 13))
# Experts converted at a time: temporaries take some ten bytes an element.
_AT_ONCE = 8


def gate_over_up(matrix):
    """[E, gate I | up I, ..] with eight gate rows, then their eight up rows, and so on."""
    return matrix.unflatten(1, (2, -1, 8)).transpose(1, 2).flatten(1, 3)


def stages(packed, scale, chunks):
    """[E, N, K / 2] and [E, N, K / 32] uint8 as [E, N / 16, K / 64 / chunks, 136 chunks] int32."""
    table = _table().to(packed.device)
    parts = zip(packed.split(_AT_ONCE), scale.split(_AT_ONCE), strict=True)
    return torch.cat([_stages(*part, chunks, table) for part in parts])


def _stages(packed, scale, chunks, table):
    # A byte is a pair of columns. Axes: expert, block, row half, g, stage, chunk, a, q, s, pair.
    pairs = packed.unflatten(2, (-1, chunks, 2, 4, 2, 2)).unflatten(1, (-1, 2, 8)).int()
    words = sum(table[half + 2 * pair][pairs[:, :, half, ..., pair]] for half in range(2) for pair in range(2))
    words = words.permute(0, 1, 3, 4, 2, 6, 5, 7).flatten(4).flatten(3)
    # Axes: expert, block, row half, g, stage, chunk, a.
    raised = (scale.int() + 1).clamp(max=255).to(torch.uint8).unflatten(2, (-1, chunks, 2)).unflatten(1, (-1, 2, 8))
    exponents = raised.permute(0, 1, 4, 5, 3, 6, 2).contiguous().flatten(4).view(torch.int32).flatten(3)
    return torch.cat([words, exponents], 3)


def _table():
    """[4, 256] int32: a byte's two elements at each of PLACES, the first in the low half."""
    byte = torch.arange(256)

    def spread(code, places):
        return sum((code >> bit & 1) << place for bit, place in enumerate(places))

    words = torch.stack([spread(byte & 15, places) | spread(byte >> 4, places) << 16 for places in PLACES])
    return torch.where(words >= 1 << 31, words - (1 << 32), words).int()
