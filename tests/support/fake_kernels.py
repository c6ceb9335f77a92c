"""Plans and device code for the fake device: the toy op's kernel, right and wrong, as Python that a worker runs."""

from fasttrack_validation.judge.device_code.records import DeviceCode
from fasttrack_validation.judge.pack import (
    BufferArgument, KernelPack, KernelVariant, Launch, Role, ScalarArgument, ScratchBuffer, variant_key,
)  # fmt: skip
from fasttrack_validation.judge.replay.fake import CODE_MARK
from fasttrack_validation.tensors import DType

# acc[slot] += x * w in float32, out = bf16(acc), as tests/support/toy_contract.py says.
TOY = '''
def bf16(values):
    bits = values.view("u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("u2")

def accumulate(call, x: "Q", w: "Q", slots: "Q", acc: "Q", out: "Q", x_stride: "i", page_stride: "i", g: "Q", p: "Q"):
    weights = call.array(w, "f4", 64)
    for row in range(call.grid[0]):
        slot = int(call.array(slots + 4 * row, "i4", 1)[0])
        result = call.array(out + 2 * 64 * row, "u2", 64)
        if slot <= 0:
            result[:] = 0
            continue
        page = call.array(acc + 4 * slot * page_stride, "f4", 64)
        values = (call.array(x + 2 * row * x_stride, "u2", 64).astype("u4") << 16).view("f4")
        page[:] = page + values * weights
        result[:] = bf16(page)
'''

# Two steps over scratch: half writes x + 1, then finish writes twice that. Both take one input of n float32.
CHAIN = '''
def half(call, x: "Q", mid: "Q", n: "i", g: "Q", p: "Q"):
    call.array(mid, "f4", n)[:] = call.array(x, "f4", n) + 1

def finish(call, mid: "Q", out: "Q", n: "i", g: "Q", p: "Q"):
    call.array(out, "f4", n)[:] = call.array(mid, "f4", n) * 2

def warm(call, x: "Q", n: "i", g: "Q", p: "Q"):
    call.array(x, "f4", n).sum()
'''

PARAMETERS = {
    "accumulate": ("x", "w", "slots", "acc", "out", "x_stride", "page_stride"),
    "half": ("x", "mid", "n"), "finish": ("mid", "out", "n"), "warm": ("x", "n"),
}  # fmt: skip
OPTIONS = {
    "num_warps": 4, "num_stages": 3, "num_ctas": 1, "maxnreg": None, "enable_fp_fusion": True, "launch_pdl": False,
    "launch_cooperative_grid": False,
}  # fmt: skip


def variant(function: str, **signature: str) -> KernelVariant:
    """A kernel variant of a candidate whose one file is kernel.py."""
    return KernelVariant(
        file="kernel.py", function=function, signature=signature, constexprs={}, divisible_by_16=(), options=OPTIONS
    )


def device_code(text: str, entry: str, key: str = "k", target: str = "sm_90", **fields: object) -> DeviceCode:
    """Fake device code with the given Python text."""
    return DeviceCode(**{
        "kernel": key, "target": target, "entry": entry, "parameters": PARAMETERS.get(entry, ()), "warps": 4, "ctas": 1,
        "shared_bytes": 0, "tensor_memory_columns": 0, "global_scratch_bytes": 0, "global_scratch_align": 1,
        "profile_scratch_bytes": 0, "launch_pdl": False, "launch_cooperative_grid": False, "compiler": "none",
        "ptx": "", "cubin": CODE_MARK + text.encode(), "sass": "", "ptxas_log": "", "resource_usage": "", **fields,
    })  # fmt: skip


def toy_pack(workload) -> KernelPack:
    """The toy op's plan at a workload."""
    buffers = {"x": DType.BF16, "w": DType.F32, "slots": DType.I32, "acc": DType.F32, "out": DType.BF16}
    arguments = {name: BufferArgument(buffer=name, offset=0, dtype=dtype) for name, dtype in buffers.items()}
    for name, axis in (("x_stride", "x_stride"), ("page_stride", "page_stride")):
        arguments[name] = ScalarArgument(type="i32", value=workload.axes[axis])
    kernel = variant("accumulate", **{n: f"*{d}" for n, d in buffers.items()}, x_stride="i32", page_stride="i32")
    launch = Launch(kernel="k", grid=(workload.axes["rows"], 1, 1), arguments=arguments)
    return pack({"k": kernel}, [launch], workload=workload.name, op="accumulate")


def chain_pack(n: int, *, wait: bool = True, prefetch: bool = False) -> KernelPack:
    """half on stream side, finish on main, which waits for side or (the fault) does not; a prefetch before both."""
    pointer = lambda name: BufferArgument(buffer=name, offset=0, dtype=DType.F32)  # noqa: E731
    count = ScalarArgument(type="i32", value=n)
    kernels = {
        "half": variant("half", x="*fp32", mid="*fp32", n="i32"),
        "finish": variant("finish", mid="*fp32", out="*fp32", n="i32"),
    }  # fmt: skip
    launches = [
        Launch(kernel="half", grid=(1, 1, 1), stream="side", arguments={"x": pointer("x"), "mid": pointer("mid"), "n": count}),
        Launch(
            kernel="finish", grid=(1, 1, 1), arguments={"mid": pointer("mid"), "out": pointer("out"), "n": count},
            waits=("side",) if wait else (),
        ),
    ]  # fmt: skip
    if prefetch:
        kernels["warm"] = variant("warm", x="*fp32", n="i32")
        warm = Launch(kernel="warm", grid=(1, 1, 1), arguments={"x": pointer("x"), "n": count}, role=Role.PREFETCH)
        launches.insert(0, warm)
    return pack(kernels, launches, scratch={"mid": ScratchBuffer(shape=(n,), dtype=DType.F32)})


def chain_codes(text: str = CHAIN, plan: KernelPack | None = None) -> dict[str, DeviceCode]:
    """Code of every kernel of a chain plan, by variant key."""
    kernels = (plan or chain_pack(1, prefetch=True)).kernels
    return {variant_key(v): device_code(text, v.function) for v in kernels.values()}


def pack(kernels, launches, *, workload: str = "w", op: str = "chain", scratch=None, **fields) -> KernelPack:
    """A plan around these launches."""
    return KernelPack(
        op=op, workload=workload, candidate_digest="0" * 64, kernels=kernels, launches=tuple(launches),
        scratch=scratch or {}, prepared={}, toolchain={}, **fields,
    )  # fmt: skip
