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


class Role(StrEnum):
    """What a launch is for. A prefetch launch must write nothing."""

    COMPUTE = "compute"
    PREFETCH = "prefetch"


class BufferArgument(Frozen):
    """A pointer into a named buffer: a contract tensor, a prepared buffer or scratch."""

    kind: Literal["buffer"] = "buffer"
    buffer: str
    offset: Annotated[int, Field(strict=True, ge=0)] = Field(description="bytes from the start of the buffer")
    dtype: DType


class ScalarArgument(Frozen):
    """A run-time scalar. `type` is Triton's name (i32, i64, u1, fp32, ...)."""

    kind: Literal["scalar"] = "scalar"
    type: str
    value: bool | int | float


Argument = Annotated[BufferArgument | ScalarArgument, Field(discriminator="kind")]


class KernelVariant(Frozen):
    """One specialisation of one Triton kernel: enough to compile it, or to interpret it, from its source.

    Parameters go by name; their order is the source's (canonical JSON does not keep the order of keys).
    """

    file: str = Field(description="candidate file that defines the kernel")
    function: str = Field(description="name of the @triton.jit function in that file")
    signature: dict[str, str] = Field(description="parameter -> Triton type (*bf16, i32, constexpr, ...)")
    constexprs: dict[str, bool | int | float | str | None] = Field(description="parameter -> baked value")
    divisible_by_16: tuple[str, ...] = Field(description="parameters specialised as divisible by 16")
    options: dict[str, bool | int | float | str | None] = Field(
        description="compile options: num_warps, num_stages, num_ctas, maxnreg, launch_pdl, ..."
    )


class Launch(Frozen):
    """One kernel launch, in program order.

    Launches of one stream run in order; across streams only `waits` orders them. The step ends when all have finished.
    """

    kernel: str = Field(description="key into KernelPack.kernels")
    grid: tuple[Int, Int, Int]
    arguments: dict[str, Argument] = Field(description="parameter -> argument; constexprs left out")
    stream: str = "main"
    waits: tuple[str, ...] = Field(
        default=(), description="streams whose earlier launches must have finished before this one starts"
    )
    role: Role = Role.COMPUTE


class ScratchBuffer(Frozen):
    """Scratch that the candidate declared: refilled at will by the judge between launches of a step."""

    shape: tuple[Annotated[int, Field(strict=True, ge=1)], ...]
    dtype: DType


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
    toolchain: dict[str, str]


def variant_key(variant: KernelVariant) -> str:
    """A name for one specialisation that is the same in every pack."""
    return f"{variant.function}-{variant.digest()[:12]}"
