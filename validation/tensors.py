"""Element types by the names used in contracts, packs and reports."""

from enum import StrEnum


class DType(StrEnum):
    """Element type of a buffer. The value is Triton's spelling of the pointee."""

    BF16 = "bf16"
    F16 = "fp16"
    F32 = "fp32"
    F64 = "fp64"
    F8E4M3 = "fp8e4nv"
    F8E5M2 = "fp8e5"
    I8 = "i8"
    I16 = "i16"
    I32 = "i32"
    I64 = "i64"
    U8 = "u8"

    @property
    def bytes(self) -> int:
        """Size of one element in bytes."""
        return _BYTES[self]


_BYTES = {
    DType.BF16: 2, DType.F16: 2, DType.F32: 4, DType.F64: 8,
    DType.F8E4M3: 1, DType.F8E5M2: 1, DType.I8: 1, DType.I16: 2, DType.I32: 4, DType.I64: 8, DType.U8: 1,
}  # fmt: skip


def torch_dtype(dtype: DType):
    """The torch dtype of `dtype` (imports torch)."""
    import torch

    return {
        DType.BF16: torch.bfloat16, DType.F16: torch.float16, DType.F32: torch.float32, DType.F64: torch.float64,
        DType.I8: torch.int8, DType.I16: torch.int16, DType.I32: torch.int32, DType.I64: torch.int64,
        DType.U8: torch.uint8, DType.F8E4M3: torch.float8_e4m3fn, DType.F8E5M2: torch.float8_e5m2,
    }[dtype]  # fmt: skip
