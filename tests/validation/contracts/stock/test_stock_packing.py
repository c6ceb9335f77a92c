"""The fragment order of MXFP4 weights, read back as the kernel reads it: lane by lane, with its masks and shifts."""

import math

import pytest
import torch

from fasttrack_validation.contracts.kimi_k3.layer_weights import Mxfp4
from fasttrack_validation.contracts.kimi_k3.stock import packing
from fasttrack_validation.contracts.kimi_k3.stock.packing import pack_rows, paired_rows
from fasttrack_validation.contracts.kimi_k3.weights.mxfp4 import dequantise
from fasttrack_validation.errors import UserError


def _mxfp4(*shape: int, seed: int = 0) -> Mxfp4:
    *rows, k = shape
    rng = torch.Generator().manual_seed(seed)
    return Mxfp4(
        torch.randint(256, (*rows, k // 2), generator=rng, dtype=torch.uint8),
        torch.randint(1, 255, (*rows, k // 32), generator=rng, dtype=torch.uint8),
    )


def _registers(v: int) -> tuple[int, int, int, int]:
    """The four A registers of an MMA step from a word, as experts.cu computes them (32-bit arithmetic)."""
    return (
        v & 0x81C081C0,
        v << 3 & 0x81C081C0,
        v << 6 & 0x81C081C0,
        (v << 1 & 0x80008000) | (v >> 5 & 0x01000100) | (v >> 4 & 0x00C000C0),
    )


def _bfloat16(bits: int) -> float:
    """A bfloat16 from its bits, by the definition of the format."""
    sign, exponent, mantissa = bits >> 15, bits >> 7 & 255, bits & 127
    magnitude = math.ldexp(mantissa / 128 + (exponent > 0), max(exponent, 1) - 127)
    return -magnitude if sign else magnitude


def _read_back(packed, rows: int, k: int) -> torch.Tensor:
    """Values [E, rows, k padded to 64] float64: registers and lanes as PTX lays them out for mma.m16n8k16."""
    experts, blocks, chunks = packed.words.shape[:3]
    values = torch.full((experts, rows, chunks * 64), math.nan, dtype=torch.float64)
    for e, b, c, lane, word in torch.cartesian_prod(*map(torch.arange, packed.words.shape)).tolist():
        g, q = divmod(lane, 4)
        group, step = divmod(word, 2)
        width = packed.scales.shape[-1]
        scales = int(packed.scales[e, b, c // width, g, c % width]) & 0xFFFFFFFF
        for register, bits in enumerate(_registers(int(packed.words[e, b, c, lane, word]) & 0xFFFFFFFF)):
            row = g + 8 * (register % 2)
            byte = scales >> (16 * group + 8 * (register % 2)) & 255
            for i in range(2):
                # B's registers of the same step hold the activations at these columns: 16 bytes a lane and group.
                column = 64 * c + 32 * group + 8 * q + 4 * step + 2 * (register // 2) + i
                value = math.ldexp(_bfloat16(bits >> 16 * i & 0xFFFF), 126)
                assert math.isnan(values[e, 16 * b + row, column])
                values[e, 16 * b + row, column] = math.ldexp(value, byte - 127)
    return values


@pytest.mark.parametrize("k", [64, 128, 96, 192, 256])
def test_fragments_are_the_dequantised_values_bit_for_bit(k):
    stack = _mxfp4(2, 32, k, seed=k)
    values = _read_back(pack_rows(stack), 32, k)
    expected = dequantise(stack.packed, stack.scale)
    assert torch.equal(values[..., :k].view(torch.int64), expected.view(torch.int64))
    assert not values[..., k:].any()


@pytest.mark.parametrize("at_once", (2 * 16 * 64, 1))
def test_experts_converted_in_turns_are_those_converted_together(monkeypatch, at_once):
    stack, order = _mxfp4(5, 16, 64), torch.arange(16).flip(0)
    whole = packing.pack_rows(stack, order)
    monkeypatch.setattr(packing, "_AT_ONCE", at_once)
    parts = packing.pack_rows(stack, order)
    assert torch.equal(parts.words, whole.words) and torch.equal(parts.scales, whole.scales)


def test_every_code_and_scale_survives():
    """All 16 codes under the scales 1 to 254: each row of a matrix holds two of them."""
    codes = torch.arange(16, dtype=torch.uint8).repeat(2)
    packed = (codes[0::2] | codes[1::2] << 4).repeat(1, 128, 2)
    scale = (torch.arange(256) % 254 + 1).to(torch.uint8).view(1, 128, 2)
    values = _read_back(pack_rows(Mxfp4(packed, scale)), 128, 64)
    expected = dequantise(packed, scale)
    assert torch.equal(values.view(torch.int64), expected.view(torch.int64))


def test_gate_and_up_rows_of_a_channel_share_a_lane():
    order = paired_rows(24)
    assert order[:18].tolist() == [*range(8), *range(24, 32), 8, 9]
    assert sorted(order.tolist()) == list(range(48))
    stack = _mxfp4(1, 48, 64)
    values = _read_back(pack_rows(stack, order), 48, 64)
    assert torch.equal(values, dequantise(stack.packed, stack.scale)[:, order])


@pytest.mark.parametrize(
    ("stack", "what"),
    [
        (_mxfp4(1, 24, 64), "24 rows"),
        (Mxfp4(torch.zeros(1, 16, 32, dtype=torch.uint8), torch.full((1, 16, 2), 255, dtype=torch.uint8)), "NaN"),
    ],
)
def test_what_fragments_cannot_hold_is_refused(stack, what):
    with pytest.raises(UserError, match=what):
        pack_rows(stack)


def test_the_least_scale_is_refused_over_weights_and_neutral_over_zeros():
    zeros = Mxfp4(torch.full((1, 16, 32), 0x80, dtype=torch.uint8), torch.zeros(1, 16, 2, dtype=torch.uint8))
    values = _read_back(pack_rows(zeros), 16, 64)
    expected = dequantise(zeros.packed, zeros.scale)
    assert torch.equal(values.view(torch.int64), expected.view(torch.int64))
    zeros.packed[0, 3, 5] = 1
    with pytest.raises(UserError, match="2\\^-127"):
        pack_rows(zeros)


def test_an_odd_intermediate_size_is_refused():
    with pytest.raises(UserError, match="12 intermediate channels"):
        paired_rows(12)
