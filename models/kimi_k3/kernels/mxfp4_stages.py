"""MXFP4 matrices in stages for `cuda/mxfp4.cuh`: what one warp brings into shared memory and multiplies at a time.

A matrix [N, K] is cut into row blocks of 16 and chunks of 64 columns; a stage is `chunks` chunks of a row block that
follow one another, 136 words each: 32 lanes x 4 words of elements for every chunk, then 8 words of scale bytes for every
chunk. With g = lane / 4 and q = lane % 4, word 2 a + s of a lane holds rows g and g + 8 at columns 32 a + 8 q + 4 s + {0,
1, 2, 3} of its chunk. Scale word g holds (row g, row g + 8) of the first 32 columns, then of the last, each one more than
E8M0's byte.

A kernel makes of a word v the four registers of a fragment, M = 0x81C081C0 being where bfloat16 has a sign and E2M1's
other bits:

    r0 = v & M    r1 = v << 3 & M    r2 = (v << 1 ^ v << 6) & M    r3 = (v << 2 ^ v >> 3) & M

Registers hold (row g, first two columns), (row g + 8, first two), (row g, last two), (row g + 8, last two), a column in
each half. That is 32 equations in the 32 bits of v; `_word` solves them.
"""

import torch

BLOCK_ROWS = 16
CHUNK = 64
CHUNK_WORDS = 136
# Elements converted at a time, of one expert at least: temporaries take several bytes an element.
_AT_ONCE = 2**25


def gate_over_up(matrix):
    """[E, gate I | up I, ..] with eight gate rows, then their eight up rows, and so on."""
    return matrix.unflatten(1, (2, -1, 8)).transpose(1, 2).flatten(1, 3)


def stages(packed, scale, chunks):
    """[E, N, K / 2] and [E, N, K / 32] uint8 as [E, N / 16, K / 64 / chunks, 136 chunks] int32."""
    table = _table().to(packed.device)
    experts, rows, half = packed.shape
    of_block = (half // (CHUNK // 2) // chunks, CHUNK_WORDS * chunks)
    # Filled in place: on a card that all layers' experts fill, there is no room for a second copy of some.
    whole = packed.new_empty((experts, rows // BLOCK_ROWS, *of_block), dtype=torch.int32)
    at_once = max(1, _AT_ONCE // (2 * rows * half))
    for part, *of in zip(whole.split(at_once), packed.split(at_once), scale.split(at_once), strict=True):
        part.copy_(_stages(*of, chunks, table))
    return whole


def _stages(packed, scale, chunks, table):
    # A byte is a pair of columns. Axes: expert, block, row half, g, stage, chunk, a, q, s, pair.
    pairs = packed.unflatten(2, (-1, chunks, 2, 4, 2, 2)).unflatten(1, (-1, 2, 8)).int()
    words = table[0][pairs[:, :, 0, ..., 0]]
    for half, pair in ((1, 0), (0, 1), (1, 1)):
        words ^= table[half + 2 * pair][pairs[:, :, half, ..., pair]]
    words = words.permute(0, 1, 3, 4, 2, 6, 5, 7).flatten(4).flatten(3)
    # Axes: expert, block, row half, g, stage, chunk, a.
    raised = (scale.int() + 1).clamp(max=255).to(torch.uint8).unflatten(2, (-1, chunks, 2)).unflatten(1, (-1, 2, 8))
    exponents = raised.permute(0, 1, 4, 5, 3, 6, 2).contiguous().flatten(4).view(torch.int32).flatten(3)
    return torch.cat([words, exponents], 3)


def _table():
    """[4, 256] int32: what a byte's two elements in each register add (exclusively) to a word."""
    byte = torch.arange(256)
    register = _field(byte & 15) | _field(byte >> 4) << 16
    words = torch.stack([_word([register if r == place else 0 * byte for r in range(4)]) for place in range(4)])
    return torch.where(words >= 1 << 31, words - (1 << 32), words).int()


def _field(code):
    """E2M1 as the sign and the lowest exponent and highest mantissa bits of a bfloat16."""
    return (code & 8) << 12 | (code & 7) << 6


def _word(registers):
    """The word that the four registers (int64) come from."""

    def bit(tensor, place):
        return tensor >> place & 1

    r0, r1, r2, r3 = registers
    word = r0 | r1 >> 3
    # The high half first: its bit 2 comes into the low half's r3.
    for half in (16, 0):
        for to, register, at, known in (
            (9, r3, 6, 4), (10, r3, 7, 5), (11, r3, 8, 6), (2, r2, 8, 7), (1, r2, 7, 6), (0, r2, 6, 5), (14, r2, 15, 9),
        ):  # fmt: skip
            word = word | (bit(register, at + half) ^ bit(word, known + half)) << to + half
        carried = bit(word, 18) if half == 0 else 0
        word = word | (bit(r3, 15 + half) ^ carried) << 13 + half
    return word
