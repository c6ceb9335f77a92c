"""Number formats that numpy lacks: bf16, fp8 and tf32, decoded to float32 and encoded with one rounding.

Bit patterns are uint16 (bf16) or uint8 (fp8) arrays, as Triton's interpreter stores them. Rounding is to nearest, ties
to even, except where a function says otherwise. Every function keeps the shape of its argument.
"""

from dataclasses import dataclass

import numpy as np


def decode_bf16(bits: np.ndarray) -> np.ndarray:
    """uint16 bf16 patterns -> float32, exactly (subnormals and NaN payloads included)."""
    return (np.asarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32)


def encode_bf16(values: np.ndarray, toward_zero: bool = False) -> np.ndarray:
    """float32 or float64 -> uint16 bf16 patterns, rounded once. Any NaN becomes the quiet NaN 0x7FC0 of its sign."""
    values = np.asarray(values)
    single = _float64_to_odd_float32(values) if values.dtype == np.float64 else values.astype(np.float32, copy=False)
    bits = np.ascontiguousarray(single).view(np.uint32).reshape(values.shape)
    upper = bits >> np.uint32(16)
    if toward_zero:
        encoded = upper
    else:
        # Adding just under half a unit, plus the last kept bit, carries exactly when nearest-even rounds up.
        encoded = (bits + (np.uint32(0x7FFF) + (upper & np.uint32(1)))) >> np.uint32(16)
    nan = np.isnan(single)
    if nan.any():
        encoded = np.where(nan.reshape(values.shape), np.uint32(0x7FC0) | (upper & np.uint32(0x8000)), encoded)
    return encoded.astype(np.uint16)


def encode_f16(values: np.ndarray, toward_zero: bool = False) -> np.ndarray:
    """float32 or float64 -> float16, rounded once."""
    values = np.asarray(values)
    with np.errstate(over="ignore", invalid="ignore"):
        nearest = values.astype(np.float16)
        if not toward_zero:
            return nearest
        away = np.abs(nearest.astype(np.float64)) > np.abs(values.astype(np.float64))
        return np.where(away, np.nextafter(nearest, np.float16(0)), nearest)


def round_tf32(values: np.ndarray) -> np.ndarray:
    """float32 -> float32 with 10 mantissa bits: nearest, ties away from zero, as PTX `cvt.rna.tf32.f32`."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    special = (bits & np.uint32(0x7F800000)) == np.uint32(0x7F800000)
    rounded = (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return np.where(special, bits, rounded).view(np.float32).reshape(np.shape(values))


def fused_multiply_add(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """x * y + z of float32 (or narrower) values as float64, rounded to odd.

    The product of two 24-bit significands is exact in float64. The sum's rounding error (Knuth's TwoSum) then sets the
    last bit, so that one later rounding to 24 bits or fewer gives the correctly rounded fma (Boldo, Melquiond 2008).
    """
    with np.errstate(over="ignore", invalid="ignore"):
        product = np.multiply(x, y, dtype=np.float64)
        total = np.atleast_1d(product + z)
        virtual = total - product
        error = (product - (total - virtual)) + (z - virtual)
    inexact = np.isfinite(error) & (error != 0)
    bits = total.view(np.int64)
    toward_zero = np.signbit(error) != np.signbit(total)
    odd = (bits - (inexact & toward_zero)) | inexact
    return odd.view(np.float64)


def _float64_to_odd_float32(values: np.ndarray) -> np.ndarray:
    """float64 -> float32 rounded to odd, so that a second rounding to fewer bits rounds the original value once."""
    with np.errstate(over="ignore", invalid="ignore"):
        single = np.atleast_1d(values).astype(np.float32)
        widened = single.astype(np.float64)
        inexact = (widened != values) & np.isfinite(values)
        away = np.abs(widened) > np.abs(values)
    bits = single.view(np.uint32) - (inexact & away).astype(np.uint32)
    return (bits | inexact).astype(np.uint32).view(np.float32).reshape(np.shape(values))


@dataclass(frozen=True)
class Float8:
    """An 8-bit float format as NVIDIA GPUs convert it (OCP 8-bit floating point specification, 2023)."""

    mantissa_bits: int
    bias: int
    largest: float
    nan: int
    infinity: int | None

    def table(self) -> np.ndarray:
        """float32 values of the 256 codes."""
        codes = np.arange(256)
        exponent = (codes & 0x7F) >> self.mantissa_bits
        fraction = (codes & ((1 << self.mantissa_bits) - 1)) / 2.0**self.mantissa_bits
        magnitude = np.where(
            exponent == 0,
            np.ldexp(fraction, 1 - self.bias),
            np.ldexp(1 + fraction, exponent - self.bias),
        )
        first_nan = self.nan if self.infinity is None else self.infinity + 1
        magnitude = np.where((codes & 0x7F) >= first_nan, np.nan, magnitude)
        if self.infinity is not None:
            magnitude = np.where((codes & 0x7F) == self.infinity, np.inf, magnitude)
        return np.where(codes & 0x80, -magnitude, magnitude).astype(np.float32)

    def encode(self, values: np.ndarray) -> np.ndarray:
        """float32 or float64 -> codes, saturating to the largest finite value as PTX `cvt.rn.satfinite` does."""
        with np.errstate(invalid="ignore"):  # a signalling NaN is quieted
            values = np.asarray(values, np.float64)
        magnitude = np.minimum(np.abs(np.where(np.isnan(values), 0.0, values)), self.largest)
        exponent = np.maximum(np.frexp(magnitude)[1] - 1, 1 - self.bias)
        # Scaled so that one unit is the last kept bit; exact, because it only changes the exponent.
        rounded = np.minimum(np.ldexp(np.rint(np.ldexp(magnitude, self.mantissa_bits - exponent)),
                                      exponent - self.mantissa_bits), self.largest)  # fmt: skip
        exponent = np.maximum(np.frexp(rounded)[1] - 1, 1 - self.bias)
        significand = np.ldexp(rounded, self.mantissa_bits - exponent).astype(np.int64)
        implicit = 1 << self.mantissa_bits
        normal = ((exponent + self.bias) << self.mantissa_bits) + significand - implicit
        codes = np.where(significand < implicit, significand, normal)
        return np.where(np.isnan(values), self.nan, codes | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)


E4M3 = Float8(mantissa_bits=3, bias=7, largest=448.0, nan=0x7F, infinity=None)
E5M2 = Float8(mantissa_bits=2, bias=15, largest=57344.0, nan=0x7F, infinity=0x7C)
