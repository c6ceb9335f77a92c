"""One door to the corrected interpreter: `install()`."""

from ...errors import UserError

SUPPORTED = ((3, 8), (3, 9))


def install() -> None:
    """Corrects Triton's interpreter in this process: arithmetic, reductions, memory checks, language, device library.

    Irreversible and idempotent; the process must have been started with TRITON_INTERPRET=1. Raises UserError for
    another Triton, or when Triton was imported to compile.
    """
    import triton

    version = tuple(int(part) for part in triton.__version__.split("+")[0].split(".")[:2])
    if version not in SUPPORTED:
        first, last = (".".join(map(str, v)) for v in (SUPPORTED[0], SUPPORTED[-1]))
        raise UserError(
            f"Triton {triton.__version__}: its interpreter is not one of those whose faults are known and corrected",
            f"install Triton {first} to {last}",
        )
    import triton.language as tl
    from triton.runtime.interpreter import InterpretedFunction

    if not isinstance(tl.sum, InterpretedFunction):
        raise UserError(
            "Triton was imported for compiling: kernels cannot be interpreted in this process",
            "set TRITON_INTERPRET=1 before Triton is imported",
        )
    from . import accesses, arithmetic, descriptors, device_library, fast_path, hints, language, reductions

    if getattr(tl, "_interpreter_corrected", False):
        return
    for part in (arithmetic, reductions, accesses, descriptors, device_library, language, hints, fast_path):
        part.install()
    tl._interpreter_corrected = True
