"""Device memory of another process: CUDA IPC through cuda-bindings."""

import ctypes
from dataclasses import dataclass

import torch
from cuda.bindings import driver


HANDLE_BYTES = 64
"""CU_IPC_HANDLE_SIZE"""


@dataclass(frozen=True)
class Mapped:
    """A peer's memory: where its allocation begins here, and where the tensor does."""

    base: driver.CUdeviceptr
    start: int


def export(memory: torch.Tensor) -> tuple[bytes, int]:
    """(handle of the allocation that `memory` lies in, its place there in bytes). RuntimeError where it has none: memory
    of an expandable segment cannot be exported."""
    address = driver.CUdeviceptr(memory.data_ptr())
    base, _ = _checked(driver.cuMemGetAddressRange(address), "no allocation")
    handle = _checked(driver.cuIpcGetMemHandle(base), "the allocation cannot be exported (expandable segments?)")
    return ctypes.string_at(handle.getPtr(), HANDLE_BYTES), memory.data_ptr() - int(base)


def opened(handle: bytes, place: int) -> Mapped:
    """What `export` gave in another process of this host, mapped here with access from the current device."""
    given = driver.CUipcMemHandle()
    ctypes.memmove(given.getPtr(), handle, HANDLE_BYTES)
    flag = driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.value
    base = _checked(driver.cuIpcOpenMemHandle(given, flag), "a peer's allocation cannot be opened")
    return Mapped(base, int(base) + place)


def _checked(result: tuple, what: str):
    status, *values = result
    if status.value:
        raise RuntimeError(f"{what}: {status.name}")
    return values[0] if len(values) == 1 else values
