"""The executor of a machine without a GPU: the recorded kernel sources, interpreted in the sandbox."""

from collections.abc import Mapping

from ..sandbox import JobStatus, Limits, Sandbox
from .arena import Arena
from .kernel_source import KernelSource
from .pack import KernelPack, Language

ENTRY = "fasttrack_validation.judge.interpreter.job:run"


class Interpreter:
    """Interprets one candidate's allow-listed kernel sources on the judge's arenas."""

    languages = frozenset({Language.TRITON})

    def __init__(self, sandbox: Sandbox, source: KernelSource, limits: Limits) -> None:
        self._sandbox, self._source, self._limits = sandbox, source, limits

    @property
    def description(self) -> str:
        """What ran the plan, for the verdict."""
        return "interpreter"

    def execute(
        self, pack: KernelPack, arena: Arena, order: str, shifts: Mapping[str, int]
    ) -> Mapping[str, object]:
        """Runs every launch of `pack`, programs in `order`. A job that dies is an outcome, not an exception."""
        payload = {
            "source": self._source.model_dump(mode="json"),
            "pack": pack.model_dump(mode="json"),
            "buffers": {name: place | {"shift": shifts.get(name, 0)} for name, place in arena.table().items()},
            "order": order,
        }
        result = self._sandbox.run(ENTRY, payload, memory=(arena.fd,), limits=self._limits)
        if result.status is not JobStatus.OK:
            message = result.error.strip().splitlines()[-1:] or [f"the interpreter was stopped: {result.status}"]
            if result.status is JobStatus.TIMEOUT:
                message = [f"did not finish within {self._limits.wall_seconds:g} s of interpretation"]
            return {"status": result.status.value, "message": message[0], "seconds": result.seconds}
        return result.value
