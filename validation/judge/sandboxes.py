"""The judge's sandboxes, each opened when it is first needed: for recording, for `prepare`, and for interpreting."""

import threading
from importlib.metadata import version

from ..errors import UserError
from ..sandbox import Profile, Sandbox
from . import stages
from .executor import ENTRY as INTERPRET_ENTRY
from .prepare import PREPARE_ENTRY
from .recorder import SUPPORTED_TRITON, triton_is_supported

_RECORD, _PREPARE, _COMPILE, _INTERPRET = (
    entry.partition(":")[0] for entry in (stages.RECORD_ENTRY, PREPARE_ENTRY, stages.COMPILE_ENTRY, INTERPRET_ENTRY)
)


class Sandboxes:
    """Up to `concurrency` jobs at a time run in each, and `preparing` in one that only prepares."""

    def __init__(self, *, unsafe: bool, concurrency: int, preparing: int) -> None:
        self._unsafe, self._concurrency, self._preparing = unsafe, concurrency, preparing
        self._made: dict[str, Sandbox] = {}
        self._opening = threading.Lock()

    def recorder(self) -> Sandbox:
        """Records, prepares and compiles. Raises UserError for a Triton that it does not know."""
        if not triton_is_supported():
            known = " and ".join(SUPPORTED_TRITON)
            raise UserError(
                f"Triton {version('triton')} is installed; candidates can be recorded with {known}",
                "record on a machine with one of these (`fasttrack record`) and rule on the file here",
            )
        return self._open("recorder", Profile.RECORDER, ("torch", "triton", _RECORD, _PREPARE, _COMPILE), {})

    def preparer(self) -> Sandbox:
        """Prepares, whatever Triton there is."""
        if triton_is_supported():
            return self.recorder()
        return self._open("preparer", Profile.RECORDER, ("torch", "triton", _PREPARE), {})

    def interpreter(self) -> Sandbox:
        """Interprets."""
        return self._open("interpreter", Profile.INTERPRETER, ("triton", _INTERPRET), {"TRITON_INTERPRET": "1"})

    def close(self) -> None:
        """Ends them all."""
        for sandbox in self._made.values():
            sandbox.close()
        self._made.clear()

    def _open(self, name: str, kind: Profile, preload: tuple[str, ...], environ: dict[str, str]) -> Sandbox:
        with self._opening:
            if name not in self._made:
                count = self._preparing if name == "preparer" else self._concurrency
                self._made[name] = Sandbox(kind, preload=preload, environ=environ, concurrency=count, unsafe=self._unsafe)
            return self._made[name]
