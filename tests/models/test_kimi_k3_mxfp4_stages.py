"""Weights in fragment order, read back as `cuda/mxfp4.cuh` reads them and held to the contract's decoding."""

import pytest
import torch
from fasttrack_models.kimi_k3.kernels import moe_half, mxfp4_stages
from fasttrack_validation.contracts.kimi_k3.weights.mxfp4 import dequantise


def shifted(words, left):
    """32-bit words moved left (right, if negative), without sign."""
    words = words.long() & 0xFFFFFFFF
    return (words << left if left >= 0 else words >> -left) & 0xFFFFFFFF


def unpacked(words):
    """The four registers of `unpack` in mxfp4.cuh."""
    return (
        shifted(words, 0) & 0x81C081C0,
        shifted(words, 3) & 0x81C081C0,
        (shifted(words, 1) ^ shifted(words, 6)) & 0x81C081C0,
        (shifted(words, 2) ^ shifted(words, -3)) & 0x81C081C0,
    )


def bf16_of(bits):
    return (bits << 16).to(torch.int64).to(torch.uint32).view(torch.float32).double()


def read_back(stages, rows, columns, chunks):
    """[E, rows, columns] float64 from stages, fragment by fragment, by the layout of mma.m16n8k16's first operand."""
    experts, blocks, per_block, _ = stages.shape
    matrix = torch.full((experts, rows, columns), float("nan"), dtype=torch.float64)
    for block in range(blocks):
        for stage in range(per_block):
            words = stages[:, block, stage, : chunks * 128].view(experts, chunks, 32, 4)
            scales = stages[:, block, stage, chunks * 128 :].view(experts, chunks, 8)
            for lane in range(32):
                g, q = divmod(lane, 4)
                for word in range(4):
                    a, s = divmod(word, 2)
                    first = stage * chunks * 64 + 32 * a + 8 * q + 4 * s
                    for register, bits in enumerate(unpacked(words[:, :, lane, word])):
                        row = g + 8 * (register % 2)
                        exponent = shifted(scales[:, :, g], (23, 15, 7, -1)[2 * a + register % 2]) & 0x7F800000
                        # What a sum is multiplied by at the end: activations bring 2^96, WEIGHT_UNIT is 2^29.
                        scale = exponent.to(torch.uint32).view(torch.float32).double() * 2.0 ** (96 + 29)
                        for half in range(2):
                            column = first + 2 * (register // 2) + half
                            value = bf16_of((bits >> 16 * half) & 0xFFFF) * scale
                            matrix[:, 16 * block + row, column + 64 * torch.arange(chunks)] = value
    return matrix


@pytest.mark.parametrize("at_once", (2**25, 4 * 32 * 384, 1))
@pytest.mark.parametrize("chunks", (1, 3))
def test_every_element_and_scale_comes_back_in_its_place(monkeypatch, chunks, at_once):
    monkeypatch.setattr(mxfp4_stages, "_AT_ONCE", at_once)
    random = torch.Generator().manual_seed(chunks)
    packed = torch.randint(0, 256, (9, 32, 192), generator=random, dtype=torch.uint8)
    scale = torch.randint(0, 254, (9, 32, 12), generator=random, dtype=torch.uint8)
    scale[0, 0, :2] = torch.tensor([0, 253])
    stages = mxfp4_stages.stages(packed, scale, chunks)
    assert stages.shape == (9, 2, 6 // chunks, 136 * chunks) and stages.dtype == torch.int32
    assert torch.equal(read_back(stages, 32, 384, chunks), dequantise(packed, scale))


def test_every_code_is_read_exactly():
    packed = torch.arange(256, dtype=torch.uint8).repeat(2).view(1, 16, 32)
    scale = torch.full((1, 16, 2), 127, dtype=torch.uint8)
    found = read_back(mxfp4_stages.stages(packed, scale, 1), 16, 64, 1)
    magnitudes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    value = torch.cat([magnitudes, -magnitudes])
    assert torch.equal(found.flatten()[0:512:2], value[torch.arange(256) % 16])
    assert torch.equal(found.flatten()[1:512:2], value[torch.arange(256) // 16])


def test_a_word_solved_for_other_registers_does_not_come_back(monkeypatch):
    solved = mxfp4_stages._word
    monkeypatch.setattr(mxfp4_stages, "_word", lambda registers: solved([*registers[:2], *registers[:1:-1]]))
    packed = torch.randint(0, 256, (1, 16, 32), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    scale = torch.full((1, 16, 2), 127, dtype=torch.uint8)
    found = read_back(mxfp4_stages.stages(packed, scale, 1), 16, 64, 1)
    assert not torch.equal(found, dequantise(packed, scale))


def test_gate_and_up_rows_of_a_channel_share_a_row_block():
    rows = torch.arange(64).view(1, 64, 1)
    ordered = mxfp4_stages.gate_over_up(rows).flatten().view(-1, 2, 8)
    channels = torch.arange(32).view(4, 8)
    assert torch.equal(ordered[:, 0], channels) and torch.equal(ordered[:, 1], channels + 32)


def test_bf16_fragments_hold_each_lane_its_four_columns():
    matrix = torch.arange(32 * 256).remainder(251).bfloat16().view(32, 256)
    found = moe_half.fragments(matrix)
    assert found.shape == (2, 8, 2, 32, 4)
    for block, k, fragment, lane in ((0, 0, 0, 0), (1, 3, 1, 13), (1, 7, 0, 31)):
        g, q = divmod(lane, 4)
        row, column = 16 * block + g, 32 * k + 16 * fragment + 4 * q
        held = found[block, k, fragment, lane].view(torch.bfloat16).view(4, 2)
        expected = [matrix[row + 8 * half, column + 2 * pair :][:2] for pair in range(2) for half in range(2)]
        assert torch.equal(held, torch.stack(expected))
