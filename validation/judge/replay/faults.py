"""How a run on a device can go wrong, by stable names. Pure."""

from ...errors import UserError

STATUS = {
    "CUDA_ERROR_ILLEGAL_ADDRESS": "illegal_access",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE": "illegal_access",
    "CUDA_ERROR_INVALID_PC": "illegal_access",
    "CUDA_ERROR_MISALIGNED_ADDRESS": "misaligned",
    "CUDA_ERROR_OUT_OF_MEMORY": "device_out_of_memory",
    "CUDA_ERROR_ASSERT": "launch_failed",
    "CUDA_ERROR_HARDWARE_STACK_ERROR": "launch_failed",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": "launch_failed",
    "CUDA_ERROR_LAUNCH_FAILED": "launch_failed",
    "CUDA_ERROR_LAUNCH_TIMEOUT": "hang",
    "CUDA_ERROR_DEVICE_UNAVAILABLE": "device_lost",
    "CUDA_ERROR_DEVICE_NOT_LICENSED": "device_lost",
    "CUDA_ERROR_ECC_UNCORRECTABLE": "device_lost",
    "CUDA_ERROR_CONTAINED": "device_lost",
    "CUDA_ERROR_NVLINK_UNCORRECTABLE": "device_lost",
    "CUDA_ERROR_NO_DEVICE": "device_lost",
    "CUDA_ERROR_SYSTEM_NOT_READY": "device_lost",
}
"""CUDA's name of an error -> status of an outcome. What is not here is a launch that the driver refused."""

REASONS = {
    "illegal_access": "execution.illegal_access",
    "misaligned": "execution.misaligned",
    "device_out_of_memory": "execution.device_out_of_memory",
    "launch_failed": "execution.launch_failed",
    "refused_launch": "execution.refused_launch",
    "hang": "execution.hang",
    "worker_death": "execution.worker_death",
    "device_lost": "execution.device_lost",
    "parameters": "execution.parameters",
    "not_reproducible": "determinism.not_reproducible",
    "order_dependent": "determinism.missing_wait",
    "prefetch_writes": "prefetch.writes",
    "prefetch_needed": "prefetch.needed",
    "launch_audit": "audit.launches",
}
"""Status of an outcome -> reason id of a verdict."""

CHECKS = {"determinism": "C14", "prefetch": "C4", "audit": "C8"}
"""Check of the reasons that are not about execution, by what their id starts with."""


class DeviceFault(Exception):
    """A run went wrong on the device. `status` is a key of REASONS."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


class DeviceLost(UserError):
    """The device does not answer as it should, or not at all; nothing more can be judged on it."""


def classify(code: str) -> str:
    """The status that follows from the driver's error."""
    return STATUS.get(code, "refused_launch")
