"""What a compilation leaves behind."""

from pydantic import ConfigDict, Field

from ...records import Frozen
from ..pack import Language

TARGETS = (90, 103)
NO_CUDA_COMPILER = "compile.no_cuda_compiler"
"""The one reason that says nothing about a kernel: this machine has no compiler for its language."""
# Columns of tensor memory of one multiprocessor.
MAX_TENSOR_MEMORY_COLUMNS = 512


def target_name(target: int) -> str:
    """`sm_90` for 90."""
    return f"sm_{target}"


class TensorMapLayout(Frozen):
    """How Triton's compiler wants one tensor map encoded, as cuTensorMapEncodeTiled takes it."""

    swizzle: int = Field(ge=0, le=3, description="CUtensorMapSwizzle: none, 32, 64 or 128 bytes")
    element: int = Field(ge=0, le=15, description="CUtensorMapDataType")
    element_bytes: int = Field(ge=1, le=8)
    box: tuple[int, ...] = Field(description="elements along each axis, as the source orders them; may divide a block")
    doubled: bool = Field(default=False, description="packed 4-bit elements: the innermost axis counts twice")


class DeviceCode(Frozen):
    """One kernel variant compiled for one target: what an executor loads and what the audit reads.

    Triton: real grid.x is the plan's times `ctas`, in clusters of (ctas, 1, 1). A tensor map among `parameters` is
    followed by its shape (i32 each) and strides (i64 each), which are parameters of the entry as well. Two pointers
    follow the plan's arguments: global scratch (`global_scratch_bytes` for each block of the real grid) and profile
    scratch.

    CUDA (`trailing_scratch` is False): the grid counts blocks, `ctas` of which along x form a cluster; nothing follows
    the arguments; dynamic shared memory is the launch's `shared_bytes`. A tensor map is one parameter.
    """

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    kernel: str = Field(description="key of the variant in the pack")
    language: Language = Language.TRITON
    target: str = Field(description="sm_90 or sm_103")
    entry: str = Field(description="name of the entry function in the cubin")
    parameters: tuple[str, ...] = Field(description="the plan's arguments in the order of the entry's parameters")
    warps: int = Field(ge=1, description="as compiled: warp specialisation adds some to num_warps")
    ctas: int = Field(ge=1)
    shared_bytes: int = Field(ge=0, description="dynamic shared memory as the compiler says; 0 for CUDA")
    trailing_scratch: bool = Field(default=True, description="whether the two scratch pointers follow the arguments")
    tensor_maps: dict[str, TensorMapLayout] = Field(default={}, description="Triton: parameter -> encoding")
    tensor_memory_columns: int = Field(ge=0)
    global_scratch_bytes: int = Field(ge=0)
    global_scratch_align: int = Field(ge=1)
    profile_scratch_bytes: int = Field(ge=0)
    launch_pdl: bool
    launch_cooperative_grid: bool
    compiler: str
    ptx: str
    cubin: bytes
    sass: str
    ptxas_log: str
    resource_usage: str


class CompileProblem(Frozen):
    """Why one variant has no device code. `reason` is a stable id (`compile.*`)."""

    reason: str
    message: str
    kernel: str
    target: str
