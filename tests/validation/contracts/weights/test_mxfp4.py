"""MXFP4 against a second implementation: element by element, in exact rational arithmetic."""

import math
import struct
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fasttrack_validation.contracts.kimi_k3.weights import mxfp4
from fasttrack_validation.errors import UserError

# sign, exponent (2 bits, bias 1), mantissa (1 bit), by the definition of a floating-point number.
MAGNITUDES = [
    Fraction(mantissa, 2) if exponent == 0 else (1 + Fraction(mantissa, 2)) * 2 ** (exponent - 1)
    for exponent in range(4)
    for mantissa in range(2)
]


def element(nibble: int) -> float:
    return math.copysign(float(MAGNITUDES[nibble & 7]), -1.0 if nibble & 8 else 1.0)


def quantise_group(values: list[float]) -> tuple[list[int], int]:
    """Nibbles and scale byte of 32 float64 values, by search over the grid."""
    largest = max(map(abs, values))
    # frexp: largest = m 2^e with m in [0.5, 1), so floor(log2 largest) = e - 1.
    exponent = min(max(math.frexp(largest)[1] - 1 - 2, -127), 127) if largest else 0
    nibbles = []
    for value in values:
        magnitude = min(abs(Fraction(value)) / Fraction(2) ** exponent, Fraction(6))
        code = min(range(8), key=lambda code: (abs(MAGNITUDES[code] - magnitude), code % 2))
        nibbles.append(code | 8 * (math.copysign(1, value) < 0))
    return nibbles, exponent + 127


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view({8: torch.int64, 4: torch.int32, 2: torch.int16}[tensor.element_size()])


@pytest.fixture(scope="module")
def every_pair() -> tuple[torch.Tensor, torch.Tensor]:
    """All 256 bytes under all 256 scales: packed [256 scales, 256 bytes], scale [256, 16]."""
    scale = torch.arange(256, dtype=torch.uint8)[:, None].expand(256, 16).contiguous()
    return torch.arange(256, dtype=torch.uint8).expand(256, 256).contiguous(), scale


def test_every_byte_unpacks_low_nibble_first_and_packs_back():
    packed = torch.arange(256, dtype=torch.uint8)
    codes = mxfp4.unpack(packed)
    assert codes.tolist() == [nibble for byte in range(256) for nibble in (byte % 16, byte // 16)]
    assert torch.equal(mxfp4.pack(codes), packed)


def test_every_byte_under_every_scale_is_exact_in_float64(every_pair):
    values = mxfp4.dequantise(*every_pair)
    expected = torch.tensor(
        [
            [math.ldexp(element(nibble), scale - 127) for byte in range(256) for nibble in (byte % 16, byte // 16)]
            for scale in range(255)
        ],
        dtype=torch.float64,
    )
    assert torch.equal(bits(values[:255]), bits(expected)), "bit for bit, the sign of zero included"
    assert values[255].isnan().all(), "scale 255 is NaN for every element"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_results_are_exact_below_two_to_the_128_and_infinite_from_there(every_pair, dtype):
    exact, narrow = mxfp4.dequantise(*every_pair)[:255], mxfp4.dequantise(*every_pair, dtype)[:255]
    finite = exact.abs() < 2.0**128
    assert narrow.dtype == dtype
    assert torch.equal(bits(narrow.double()[finite]), bits(exact[finite]))
    assert torch.equal(narrow.double()[~finite], torch.sign(exact[~finite]) * math.inf)
    assert finite[:253].all() and not finite[253].all(), "the first scale that can overflow is 253"


def test_scale_covers_32_elements_of_its_own_row():
    packed = torch.full((2, 32), 0x22, dtype=torch.uint8)
    scale = torch.tensor([[127, 128], [126, 130]], dtype=torch.uint8)
    values = mxfp4.dequantise(packed, scale)
    assert values.tolist() == [[1.0] * 32 + [2.0] * 32, [0.5] * 32 + [8.0] * 32]


@pytest.mark.parametrize("shape", [(2, 31), (2, 64), (3, 32)])
def test_scales_of_another_group_size_are_refused(shape):
    with pytest.raises(UserError, match="one scale for 32 elements, that is 16 bytes"):
        mxfp4.dequantise(torch.zeros(shape, dtype=torch.uint8), torch.zeros((2, 2), dtype=torch.uint8))


def test_ties_round_to_the_even_mantissa():
    # With a 4 in the group the shared exponent is 0, so each value is rounded on the grid itself.
    ties = {0.25: 0, 0.75: 1, 1.25: 1, 1.75: 2, 2.5: 2, 3.5: 4, 5.0: 4}
    values = torch.tensor([4.0, *ties, *(-tie for tie in ties)] + [0.0] * 17)
    packed, scale = mxfp4.quantise(values)
    assert scale.tolist() == [127]
    assert mxfp4.dequantise(packed, scale)[1:15].tolist() == [*ties.values(), *(-value for value in ties.values())]
    above = torch.nextafter(values, 8 * values)
    assert mxfp4.dequantise(*mxfp4.quantise(above))[1:8].tolist() == [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    below = torch.nextafter(values, torch.zeros(()))
    below[0] = 4
    assert mxfp4.dequantise(*mxfp4.quantise(below))[1:8].tolist() == [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0]


def test_values_above_the_largest_element_saturate():
    values = torch.tensor([7.99, -7.99, 6.5] + [0.0] * 29)
    packed, scale = mxfp4.quantise(values)
    assert scale.tolist() == [127]
    assert mxfp4.dequantise(packed, scale)[:3].tolist() == [6.0, -6.0, 6.0]
    # 8 raises the shared exponent instead.
    assert mxfp4.quantise(torch.tensor([8.0] + [0.0] * 31))[1].tolist() == [128]


def test_a_group_of_zeros_has_the_neutral_scale_and_keeps_its_signs():
    packed, scale = mxfp4.quantise(torch.tensor([0.0, -0.0] * 16))
    assert scale.tolist() == [mxfp4.NEUTRAL_SCALE]
    assert packed.tolist() == [0x80] * 16


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(bad):
    values = torch.ones(2, 64)
    values[1, 40] = bad
    with pytest.raises(UserError, match="no MXFP4 form"):
        mxfp4.quantise(values)


def test_a_partial_group_is_refused():
    with pytest.raises(UserError, match="48 elements"):
        mxfp4.quantise(torch.ones(2, 48))


float32s = st.integers(0, 2**32 - 1).map(lambda word: struct.unpack("<f", struct.pack("<I", word))[0])
close = st.integers(-64, 64).map(lambda steps: steps / 8)


@settings(deadline=None)
@given(
    st.one_of(
        st.lists(float32s.filter(math.isfinite), min_size=32, max_size=32),
        st.tuples(st.lists(close, min_size=32, max_size=32), st.integers(-140, 120)).map(
            lambda drawn: [math.ldexp(value, drawn[1]) for value in drawn[0]]
        ),
    )
)
def test_quantise_agrees_with_a_search_over_the_grid(values):
    packed, scale = mxfp4.quantise(torch.tensor(values, dtype=torch.float32))
    # What float32 holds is what counts: the second pattern may lie below its subnormals.
    nibbles, scale_byte = quantise_group(torch.tensor(values, dtype=torch.float32).tolist())
    assert scale.tolist() == [scale_byte]
    assert mxfp4.unpack(packed).tolist() == nibbles


@settings(deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=32, max_size=32))
def test_float64_beyond_the_range_of_the_scale_is_held_to_it(values):
    packed, scale = mxfp4.quantise(torch.tensor(values, dtype=torch.float64))
    nibbles, scale_byte = quantise_group(values)
    assert (scale.tolist(), mxfp4.unpack(packed).tolist()) == ([scale_byte], nibbles)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_dequantised_values_come_back_unchanged(dtype):
    random = torch.Generator().manual_seed(1)
    packed = torch.randint(256, (253, 64), generator=random).to(torch.uint8)
    scale = torch.arange(253, dtype=torch.uint8)[:, None].expand(253, 4).contiguous()
    values = mxfp4.dequantise(packed, scale, dtype)
    assert torch.equal(bits(mxfp4.dequantise(*mxfp4.quantise(values), dtype)), bits(values))
