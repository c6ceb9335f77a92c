"""Plans of the judge's own kernels, as if a candidate had them: their PTX needs no compiler."""

from fake_kernels import OPTIONS
from fasttrack_validation.judge.device_code.records import DeviceCode
from fasttrack_validation.judge.pack import (
    BufferArgument,
    KernelPack,
    KernelVariant,
    Language,
    Launch,
    ScalarArgument,
    variant_key,
)  # fmt: skip
from fasttrack_validation.judge.replay.kernels import image
from fasttrack_validation.tensors import DType

WORDS = 1000
SEED = 77


def noise_plan(*launches) -> KernelPack:
    """Launches of judge_noise(data, bytes, seed) and judge_delay(ns), as a CUDA candidate's plan."""
    kernels = {
        "noise": KernelVariant(
            language=Language.CUDA, file="k.cu", function="judge_noise", constexprs={}, divisible_by_16=(),
            signature={"p0": "*i64", "p1": "i64", "p2": "i64"}, options=OPTIONS,
        ),
        "delay": KernelVariant(
            language=Language.CUDA, file="k.cu", function="judge_delay", constexprs={}, divisible_by_16=(),
            signature={"p0": "i64"}, options=OPTIONS,
        ),
    }  # fmt: skip
    used = {launch.kernel for launch in launches}
    return KernelPack(
        op="noise", workload="w", candidate_digest="0" * 64, launches=launches, scratch={}, prepared={}, toolchain={},
        kernels={name: kernel for name, kernel in kernels.items() if name in used},
    )  # fmt: skip


def noise(seed: int = SEED, buffer: str = "out", size: int = 8 * WORDS, **fields) -> Launch:
    arguments = {
        "p0": BufferArgument(buffer=buffer, offset=0, dtype=DType.I64), "p1": ScalarArgument(type="i64", value=size),
        "p2": ScalarArgument(type="i64", value=seed),
    }  # fmt: skip
    return Launch(kernel="noise", grid=(4, 1, 1), arguments=arguments, **fields)


def delay(nanoseconds: int, **fields) -> Launch:
    return Launch(
        kernel="delay", grid=(1, 1, 1), arguments={"p0": ScalarArgument(type="i64", value=nanoseconds)}, **fields
    )


def codes(plan: KernelPack, **fields) -> dict[str, DeviceCode]:
    return {
        variant_key(v): DeviceCode(**{
            "kernel": "k", "language": "cuda", "target": "sm_90", "entry": v.function, "parameters": v.ordered,
            "warps": 4 if v.function == "judge_noise" else 1, "ctas": 1, "shared_bytes": 0, "trailing_scratch": False,
            "tensor_memory_columns": 0, "global_scratch_bytes": 0, "global_scratch_align": 1,
            "profile_scratch_bytes": 0, "launch_pdl": False, "launch_cooperative_grid": False, "compiler": "none",
            "ptx": "", "cubin": image(), "sass": "", "ptxas_log": "", "resource_usage": "", **fields,
        })
        for v in plan.kernels.values()
    }  # fmt: skip
