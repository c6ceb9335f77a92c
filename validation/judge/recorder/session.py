"""From bound launches to the plan."""

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import NoReturn

import torch
from pydantic import ValidationError

from ..pack import Argument, KernelVariant, Language, Launch
from ..plan import MAX_LAUNCHES
from .arguments import Arguments
from .context import RecordingContext
from .cuda import CudaLaunch
from .refusal import CandidateFiles, Refused
from .triton_hook import BoundLaunch


class Recording:
    """The launches of one call of `launch`, with the storages that its pointers may point into.

    `cuda_files` names the candidate's CUDA sources.
    """

    def __init__(
        self, buffers: Mapping[str, torch.Tensor], context: RecordingContext, files: CandidateFiles,
        cuda_files: Collection[str] = (),
    ) -> None:  # fmt: skip
        self.context = context
        self.files = files
        self.kernels: dict[str, KernelVariant] = {}
        self.launches: list[Launch] = []
        self.refusal: Refused | None = None
        self._cuda_files = cuda_files
        self._arguments = Arguments(buffers, self.refuse)
        self.addresses = self._arguments.addresses
        context.on_cuda, context.on_peers = self.add_cuda, self._peers

    def refuse(self, reason: str, message: str) -> NoReturn:
        """Ends the recording. Kept as well, in case a bare `except:` in the candidate swallows it."""
        refusal = Refused(reason, message, self.files.where(sys._getframe(1)))
        self.refusal = self.refusal or refusal
        raise refusal

    def add(self, bound: BoundLaunch) -> None:
        """Takes one launch of a Triton kernel into the plan."""
        file = self._file_of(bound)
        name = bound.function.fn.__name__
        variant = KernelVariant(
            file=file,
            function=name,
            signature=dict(bound.signature),
            constexprs={key: self._arguments.constant(name, key, value) for key, value in bound.constexprs.items()},
            divisible_by_16=bound.divisible_by_16,
            options=dict(bound.options),
        )
        self._launch(
            variant,
            bound.grid,
            {
                parameter: self._arguments.triton(name, parameter, kind, bound.arguments[parameter])
                for parameter, kind in bound.signature.items()
                if kind != "constexpr"
            },
        )

    def add_cuda(self, bound: CudaLaunch) -> None:
        """Takes one launch of a CUDA kernel into the plan."""
        name = bound.function
        if bound.file not in self._cuda_files:
            known = ", ".join(sorted(self._cuda_files)) or "none"
            self.refuse("record.no_cuda_file", f"the candidate has no CUDA source {bound.file!r}; it has: {known}")
        typed = {f"p{n}": self._arguments.cuda(name, f"p{n}", value) for n, value in enumerate(bound.arguments)}
        try:
            variant = KernelVariant(
                language=Language.CUDA,
                file=bound.file,
                function=name,
                signature={parameter: kind for parameter, (kind, _) in typed.items()},
                constexprs={key: self._arguments.constant(name, key, value) for key, value in bound.constants.items()},
                divisible_by_16=(),
                options=dict(bound.options),
            )
        except ValidationError as error:
            self.refuse("record.option", f"{name}: {error.errors(include_url=False)[0]['msg']}: {bound.options}")
        arguments = {parameter: argument for parameter, (_, argument) in typed.items()}
        self._launch(variant, bound.grid, arguments, bound.shared_bytes)

    def _launch(
        self, variant: KernelVariant, grid: tuple[int, int, int], arguments: dict[str, Argument], shared_bytes: int = 0
    ) -> None:
        if len(self.launches) == MAX_LAUNCHES:
            self.refuse("record.too_many_launches", f"more than {MAX_LAUNCHES} launches in one call of launch()")
        key = f"{variant.function}_{variant.digest()[:12]}"
        self.kernels[key] = variant
        self.launches.append(
            Launch(
                kernel=key,
                grid=grid,
                arguments=arguments,
                stream=self.context.current,
                waits=self.context.take_waits(),
                role=self.context.role,
                shared_bytes=shared_bytes,
            )
        )

    def _peers(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        return self._arguments.peers(tensors)

    def _file_of(self, bound: BoundLaunch) -> str:
        jit = bound.function
        name, code = jit.fn.__qualname__, jit.fn.__code__
        file = self.files.relative(code.co_filename)
        if type(jit).__name__ == "GluonJITFunction":
            self.refuse("record.gluon", f"kernel {name!r} is written in Gluon, which has no interpreted form: use Triton")
        if type(jit).__name__ != "JITFunction":
            self.refuse("record.kernel_type", f"kernel {name!r} is a {type(jit).__name__}; use @triton.jit")
        if file is None:
            self.refuse("record.foreign_kernel", f"kernel {name!r} is not defined in the candidate's files")
        if not name.isidentifier() or jit.fn.__closure__ is not None:
            self.refuse("record.nested_kernel", f"kernel {name!r} must be a plain function at the top of {file}")
        # @heuristics and @autotune wrap the kernel that the name stands for.
        visible = jit.fn.__globals__.get(name)
        while visible is not jit and hasattr(visible, "fn"):
            visible = visible.fn
        if visible is not jit or code.co_name != name or jit.src not in "".join(jit.raw_src):
            self.refuse("record.kernel_identity", f"{file} does not show kernel {name!r} as it is launched")
        return file
