"""What a compilation leaves behind."""

from pydantic import ConfigDict, Field

from ...records import Frozen

TARGETS = (90, 103)
# Shared memory that one block may use on both targets (cudaDevAttrMaxSharedMemoryPerBlockOptin), and the columns of
# tensor memory of one multiprocessor.
MAX_SHARED_BYTES = 232448
MAX_TENSOR_MEMORY_COLUMNS = 512


def target_name(target: int) -> str:
    """`sm_90` for 90."""
    return f"sm_{target}"


class DeviceCode(Frozen):
    """One kernel variant compiled for one target: what an executor loads and what the audit reads.

    Real grid.x is the plan's times `ctas`, in clusters of (ctas, 1, 1). Two pointers follow the plan's arguments:
    global scratch (`global_scratch_bytes` for each block of the real grid) and profile scratch.
    """

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    kernel: str = Field(description="key of the variant in the pack")
    target: str = Field(description="sm_90 or sm_103")
    entry: str = Field(description="name of the entry function in the cubin")
    parameters: tuple[str, ...] = Field(description="the plan's arguments in the order of the entry's parameters")
    warps: int = Field(ge=1, description="as compiled: warp specialisation adds some to num_warps")
    ctas: int = Field(ge=1)
    shared_bytes: int = Field(ge=0, description="dynamic shared memory")
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
