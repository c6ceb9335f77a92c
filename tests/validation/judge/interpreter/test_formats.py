"""Every bit pattern, and the hard float32 values, against torch and against exact rational arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from fasttrack_validation.judge.interpreter import formats


def hard_float32(count: int = 1 << 18) -> np.ndarray:
    """Random exponents, all bf16 and fp16 ties with both neighbours, infinities, NaNs and subnormals."""
    rng = np.random.default_rng(7)
    bits = rng.integers(0, 1 << 32, count, dtype=np.uint32)
    ties = (np.arange(1 << 16, dtype=np.uint32) << 16) | 0x8000
    special = np.array(
        [0, 1, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF], np.uint32
    )
    special = np.concatenate([special, special | 0x80000000])
    half_ties = np.arange(0, 1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32).view(np.uint32) | 0x1000
    tail = [half_ties - 1, half_ties, half_ties + 1]
    return np.concatenate([bits, ties - 1, ties, ties + 1, special, *tail]).view(np.float32)


def torch_of(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values.copy())


def same(ours: np.ndarray, theirs: np.ndarray, nan: np.ndarray) -> bool:
    return np.array_equal(ours[~nan], theirs[~nan])


def test_every_bf16_pattern_decodes_as_torch_does():
    bits = np.arange(1 << 16, dtype=np.uint16)
    theirs = torch_of(bits.view(np.int16)).view(torch.bfloat16).float().numpy()
    assert np.array_equal(formats.decode_bf16(bits).view(np.uint32), theirs.view(np.uint32))


def test_every_bf16_pattern_survives_a_round_trip():
    bits = np.arange(1 << 16, dtype=np.uint16)
    back = formats.encode_bf16(formats.decode_bf16(bits))
    nan = np.isnan(formats.decode_bf16(bits))
    assert np.array_equal(back[~nan], bits[~nan])
    assert np.isnan(formats.decode_bf16(back[nan])).all() and np.array_equal(back[nan] >> 15, bits[nan] >> 15)


def test_float32_to_bf16_as_torch():
    values = hard_float32()
    theirs = torch_of(values).bfloat16().view(torch.int16).numpy().view(np.uint16)
    ours = formats.encode_bf16(values)
    nan = np.isnan(values)
    assert same(ours, theirs, nan) and np.isnan(formats.decode_bf16(ours[nan])).all()


def test_float32_to_f16_as_torch_and_every_f16_back():
    values = hard_float32()
    theirs = torch_of(values).half().view(torch.int16).numpy()
    assert same(formats.encode_f16(values).view(np.int16), theirs, np.isnan(values))
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    assert same(formats.encode_f16(every.astype(np.float32)).view(np.uint16), every.view(np.uint16), np.isnan(every))


def test_every_f16_to_bf16_as_torch():
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    theirs = torch_of(every).bfloat16().view(torch.int16).numpy().view(np.uint16)
    assert same(formats.encode_bf16(every.astype(np.float32)), theirs, np.isnan(every))


def test_float64_to_bf16_rounds_once():
    # Just above a tie by less than float32 can hold: through float32 it would become the tie, and round to even.
    tie = 1.0 + 2.0**-8
    assert formats.encode_bf16(np.array([tie + 2.0**-40]))[0] == 0x3F81
    assert formats.encode_bf16(np.array([tie - 2.0**-40]))[0] == 0x3F80
    assert formats.encode_bf16(np.array([tie]))[0] == 0x3F80
    assert formats.encode_bf16(np.array([-tie - 2.0**-40]))[0] == 0xBF81


@pytest.mark.parametrize("encode", [lambda v: formats.decode_bf16(formats.encode_bf16(v, toward_zero=True)),
                                    lambda v: formats.encode_f16(v, toward_zero=True).astype(np.float32)])  # fmt: skip
def test_toward_zero_never_grows_and_is_within_one_step(encode):
    values = np.random.default_rng(3).normal(size=4096).astype(np.float32)
    out = encode(values)
    assert (np.abs(out) <= np.abs(values)).all() and (np.sign(out) == np.sign(values)).all()
    assert (np.abs(values - out) < np.abs(values) * 2.0**-7).all()


@pytest.mark.parametrize(
    ("form", "dtype"), [(formats.E4M3, torch.float8_e4m3fn), (formats.E5M2, torch.float8_e5m2)], ids=["e4m3", "e5m2"]
)
class TestFloat8:
    def test_every_code_decodes_as_torch_does(self, form, dtype):
        codes = torch.arange(256, dtype=torch.uint8)
        theirs = codes.view(dtype).float().numpy()
        ours = form.table()
        assert np.array_equal(np.isnan(ours), np.isnan(theirs))
        assert same(ours.view(np.uint32), theirs.view(np.uint32), np.isnan(theirs))

    def test_float32_as_torch_where_torch_is_finite_else_saturated(self, form, dtype):
        values = np.concatenate([hard_float32(), np.random.default_rng(1).normal(0, 60, 1 << 17).astype(np.float32)])
        theirs = torch_of(values).to(dtype)
        finite = torch.isfinite(theirs.float()).numpy()
        ours = form.encode(values)
        assert np.array_equal(ours[finite], theirs.view(torch.uint8).numpy()[finite])
        over = ~finite & ~np.isnan(values)
        assert np.array_equal(form.table()[ours[over]], np.copysign(np.float32(form.largest), values[over]))
        assert np.isnan(form.table()[ours[np.isnan(values)]]).all()

    def test_ties_go_to_even(self, form, dtype):
        table = np.unique(form.table()[np.isfinite(form.table())]).astype(np.float64)
        middles = (table[1:] + table[:-1]) / 2
        assert np.array_equal(form.encode(middles) & 1, np.zeros(len(middles)))


def test_tf32_keeps_ten_bits_and_rounds_ties_away():
    step = 2.0**-10
    values = np.array([1 + step / 2, 1 + step / 2 - 2.0**-23, -(1 + step / 2), np.inf, np.nan, 1 + step], np.float32)
    assert np.array_equal(
        formats.round_tf32(values),
        np.array([1 + step, 1, -(1 + step), np.inf, np.nan, 1 + step], np.float32),
        equal_nan=True,
    )


def exact_round(value: Fraction, bits: int) -> float:
    """Nearest, ties to even, of a rational to `bits` significant bits (no exponent limits)."""
    if value == 0:
        return 0.0
    sign, value = (-1 if value < 0 else 1), abs(value)
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    scale = Fraction(2) ** (bits - 1 - exponent)
    while value * scale >= 2**bits:
        scale /= 2
    while value * scale < 2 ** (bits - 1):
        scale *= 2
    scaled = value * scale
    whole = scaled.numerator // scaled.denominator
    rest = scaled - whole
    whole += rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2 == 1)
    return sign * float(Fraction(whole) / scale)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_fma_rounds_the_exact_result_once(dtype):
    rng = np.random.default_rng(11)
    x, y = (rng.normal(size=3000).astype(dtype) for _ in range(2))
    # A third of the sums nearly cancel, a third are far apart.
    z = np.concatenate([-(x[:1000] * y[:1000]), rng.normal(size=1000) * 1e-3, rng.normal(size=1000)]).astype(dtype)
    ours = formats.fused_multiply_add(x, y, z).astype(dtype)
    bits = 24 if dtype is np.float32 else 11
    exact = [Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)) for a, b, c in zip(x, y, z, strict=True)]
    expected = np.array([exact_round(e, bits) for e in exact])
    normal = np.abs(expected) > 2.0**-13
    assert normal.sum() > 1900 and np.array_equal(ours[normal].astype(np.float64), expected[normal])


def test_bf16_fma_sees_what_lies_below_float64():
    # product is exactly halfway between two bf16 values; z decides, 70 bits further down.
    x, y = np.float32([1.0 + 2.0**-7, 1.0 + 2.0**-7]), np.float32([1.5, 1.5])
    product = (1 + 2.0**-7) * 1.5
    assert product * 2**8 % 1 == 0 and product * 2**7 % 1 == 0.5
    z = np.float32([2.0**-70, -(2.0**-70)])
    up, down = formats.decode_bf16(formats.encode_bf16(formats.fused_multiply_add(x, y, z)))
    assert up == np.ceil(product * 2**7) / 2**7 and down == np.floor(product * 2**7) / 2**7
