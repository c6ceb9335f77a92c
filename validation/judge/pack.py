"""A kernel pack: a candidate reduced to data, a launch plan over named buffers and the sources of its kernels.

The recorder's process writes the plan, so everything here is data to be validated (plan.py), never believed. Machine
code is not part of what the recorder says: the judge compiles the kernel sources itself (device_code/).
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from ..records import Frozen
from ..tensors import DType

SCHEMA = 1

Int = Annotated[int, Field(strict=True)]
Byte = Annotated[int, Field(strict=True, ge=0, le=255)]
Offset = Annotated[int, Field(strict=True, ge=0, description="bytes from the start of the buffer")]


class Role(StrEnum):
    """What a launch is for. A prefetch launch must write nothing."""

    COMPUTE = "compute"
    PREFETCH = "prefetch"


class Language(StrEnum):
    """What a kernel is written in."""

    TRITON = "triton"
    CUDA = "cuda"


class BufferArgument(Frozen):
    """A pointer into a named buffer: a contract tensor, a prepared buffer, scratch or a persistent buffer."""

    kind: Literal["buffer"] = "buffer"
    buffer: str
    offset: Offset
    dtype: DType


class ScalarArgument(Frozen):
    """A run-time scalar. `type` is Triton's name (i32, i64, u1, fp32, ...), for CUDA kernels too."""

    kind: Literal["scalar"] = "scalar"
    type: str
    value: bool | int | float


class TensorMapArgument(Frozen):
    """A tensor map (TMA descriptor) over part of a named buffer; the judge encodes it (cuTensorMapEncodeTiled).

    Axes as in the source, the innermost last; the encoder takes them in reverse. Nothing is interleaved.
    """

    kind: Literal["tensor_map"] = "tensor_map"
    buffer: str
    offset: Offset
    dtype: DType
    shape: tuple[Int, ...]
    strides: tuple[Int, ...] = Field(description="elements; the last is 1")
    block_shape: tuple[Int, ...]
    padding: Literal["zero", "nan"] = "zero"
    swizzle: Literal[0, 32, 64, 128] | None = Field(
        default=None, description="bytes, 0 for none; None for a Triton kernel, where the compiler chooses (DeviceCode)"
    )
    round_to_tf32: bool = False


class PeerTableArgument(Frozen):
    """A device array of 64-bit addresses, one a rank in rank order, the own rank's included."""

    kind: Literal["peers"] = "peers"
    buffers: tuple[BufferArgument, ...]


Argument = Annotated[
    BufferArgument | ScalarArgument | TensorMapArgument | PeerTableArgument, Field(discriminator="kind")
]


class DTypeConstant(Frozen):
    """A constexpr that is one of Triton's element types: `tl.bfloat16` as {"dtype": "bf16"}."""

    dtype: str


Scalar = bool | int | float | str | None | DTypeConstant
Constant = Scalar | tuple[Scalar, ...]


class KernelVariant(Frozen):
    """One specialisation of one kernel: enough to compile it, or (Triton) to interpret it, from its source.

    Triton: parameters go by name; their order is the source's (canonical JSON does not keep the order of keys). Parts
    of a tuple argument are parameters of their own, called `name.0`, `name.1`, ...

    CUDA C++: `file` is a `.cu` file, `function` an `extern "C" __global__` function. Parameters are called `p0`, `p1`,
    ... by position. `constexprs` are macros (`-DNAME=value`), not parameters; nothing is specialised.
    """

    language: Language = Language.TRITON
    file: str = Field(description="candidate file that defines the kernel")
    function: str = Field(description="name of the kernel in that file")
    signature: dict[str, str] = Field(
        description="parameter -> Triton type (*bf16, i32, constexpr, tensordesc<fp16[64, 64]>, ...); for CUDA kernels "
        "the same names, and tensor_map and peers"
    )
    constexprs: dict[str, Constant] = Field(description="parameter (CUDA: macro) -> baked value")
    divisible_by_16: tuple[str, ...] = Field(description="parameters specialised as divisible by 16")
    options: dict[str, bool | int | float | str | None] = Field(
        description="compile options: num_warps, num_stages, num_ctas, maxnreg, ...; CUDA: threads, max_registers, "
        "cluster (blocks along x); both: launch_pdl, launch_cooperative_grid"
    )

    @property
    def ordered(self) -> tuple[str, ...]:
        """The parameters of a CUDA kernel in order."""
        return tuple(f"p{number}" for number in range(len(self.signature)))


class Launch(Frozen):
    """One kernel launch, in program order.

    Launches of one stream run in order; across streams only `waits` orders them. The step ends when all have finished.
    """

    kernel: str = Field(description="key into KernelPack.kernels")
    grid: tuple[Int, Int, Int] = Field(description="programs (Triton) or blocks (CUDA)")
    arguments: dict[str, Argument] = Field(description="parameter -> argument; constexprs left out")
    stream: str = "main"
    waits: tuple[str, ...] = Field(
        default=(), description="streams whose earlier launches must have finished before this one starts"
    )
    role: Role = Role.COMPUTE
    shared_bytes: Int = Field(default=0, description="dynamic shared memory; Triton's comes from its compiler")


class ScratchBuffer(Frozen):
    """Scratch that the candidate declared: refilled at will by the judge between launches of a step."""

    shape: tuple[Annotated[int, Field(strict=True, ge=1)], ...]
    dtype: DType


class PersistentBuffer(ScratchBuffer):
    """A mailbox or counter that lives across steps. It starts with every byte equal to `initial`.

    after: "restored" means that each step leaves the initial image behind, bit for bit. "epoch" means that a counter
    may go on counting: contents are not compared, but results must not depend on the number of steps before.
    """

    initial: Byte = 0
    after: Literal["restored", "epoch"] = "restored"


class KernelPack(Frozen):
    """The plan of one candidate for one workload."""

    schema_version: Literal[1] = SCHEMA
    op: str
    workload: str
    candidate_digest: str
    kernels: dict[str, KernelVariant]
    launches: tuple[Launch, ...]
    scratch: dict[str, ScratchBuffer]
    prepared: dict[str, ScratchBuffer] = Field(description="buffers that `prepare` returns, filled by the judge")
    persistent: dict[str, PersistentBuffer] = {}
    toolchain: dict[str, str]

    @property
    def languages(self) -> frozenset[Language]:
        """The languages of its kernels."""
        return frozenset(variant.language for variant in self.kernels.values())


def variant_key(variant: KernelVariant) -> str:
    """A name for one specialisation that is the same in every pack."""
    return f"{variant.function}-{variant.digest()[:12]}"
