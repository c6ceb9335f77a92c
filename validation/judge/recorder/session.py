"""From bound launches to the plan: names for pointers, plain values for the rest, a refusal for anything else."""

import math
import operator
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import torch

from ...tensors import DType
from ..pack import BufferArgument, KernelVariant, Launch, ScalarArgument
from ..plan import MAX_LAUNCHES
from .context import RecordingContext
from .refusal import CandidateFiles, Refused
from .triton_hook import BoundLaunch

_POINTEES = frozenset(dtype.value for dtype in DType)


class Recording:
    """The launches of one call of `launch`, with the storages that its pointers may point into."""

    def __init__(self, buffers: Mapping[str, torch.Tensor], context: RecordingContext, files: CandidateFiles) -> None:
        self.context = context
        self.files = files
        self.kernels: dict[str, KernelVariant] = {}
        self.launches: list[Launch] = []
        self.refusal: Refused | None = None
        storages = {name: tensor.untyped_storage() for name, tensor in buffers.items()}
        self.addresses = {name: storage.data_ptr() for name, storage in storages.items()}
        self._storages = {storage.data_ptr(): (name, storage.nbytes()) for name, storage in storages.items()}

    def refuse(self, reason: str, message: str) -> NoReturn:
        """Ends the recording. Kept as well, in case a bare `except:` in the candidate swallows it."""
        refusal = Refused(reason, message, self.files.where(sys._getframe(1)))
        self.refusal = self.refusal or refusal
        raise refusal

    def add(self, bound: BoundLaunch) -> None:
        """Takes one launch into the plan."""
        if len(self.launches) == MAX_LAUNCHES:
            self.refuse("record.too_many_launches", f"more than {MAX_LAUNCHES} launches in one call of launch()")
        file = self._file_of(bound)
        name = bound.function.fn.__name__
        for parameter, kind in bound.signature.items():
            if not isinstance(kind, str):
                self.refuse("record.tuple_argument", f"{name}: argument {parameter!r} is a tuple; pass its parts")
        variant = KernelVariant(
            file=file,
            function=name,
            signature=dict(bound.signature),
            constexprs={key: self._constexpr(name, key, value) for key, value in bound.constexprs.items()},
            divisible_by_16=bound.divisible_by_16,
            options=dict(bound.options),
        )
        arguments = {
            parameter: self._argument(name, parameter, kind, bound.arguments[parameter])
            for parameter, kind in bound.signature.items()
            if kind != "constexpr"
        }
        key = f"{name}_{variant.digest()[:12]}"
        self.kernels[key] = variant
        self.launches.append(
            Launch(
                kernel=key,
                grid=bound.grid,
                arguments=arguments,
                stream=self.context.current,
                waits=self.context.take_waits(),
                role=self.context.role,
            )
        )

    def _file_of(self, bound: BoundLaunch) -> str:
        jit = bound.function
        name, code = jit.fn.__qualname__, jit.fn.__code__
        file = self.files.relative(code.co_filename)
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

    def _constexpr(self, kernel: str, parameter: str, value: Any) -> bool | int | float | str | None:
        value = getattr(value, "value", value) if type(value).__name__ == "constexpr" else value
        if type(value) not in (bool, int, float, str, type(None)):
            self.refuse(
                "record.constexpr",
                f"{kernel}: constexpr {parameter!r} is a {type(value).__name__} ({value!r}); plans hold numbers, "
                "strings, booleans and None (take a dtype from a pointer: x_ptr.dtype.element_ty)",
            )
        if isinstance(value, float) and not math.isfinite(value):
            self.refuse("record.constexpr", f"{kernel}: constexpr {parameter!r} is {value}; write it in the kernel")
        return value

    def _argument(self, kernel: str, parameter: str, kind: str, value: Any) -> BufferArgument | ScalarArgument:
        if kind.startswith("*"):
            return self._pointer(kernel, parameter, kind, value)
        if kind.startswith("tensordesc"):
            self.refuse(
                "record.host_descriptor",
                f"{kernel}: {parameter!r} is a host TensorDescriptor, which is not supported yet; "
                "use tl.make_tensor_descriptor in the kernel",
            )
        if kind == "u1":
            return ScalarArgument(type=kind, value=bool(value))
        if kind.startswith(("fp", "bf")):
            number = float(value)
            if not math.isfinite(number):
                self.refuse("record.scalar", f"{kernel}: {parameter!r} is {number}; write it in the kernel")
            return ScalarArgument(type=kind, value=number)
        number = operator.index(value)
        for base, (name, size) in self._storages.items():
            if base <= number < base + size:
                self.refuse(
                    "record.raw_pointer",
                    f"{kernel}: {parameter!r} is the address of buffer {name!r} as an integer; pass the tensor",
                )
        return ScalarArgument(type=kind, value=number)

    def _pointer(self, kernel: str, parameter: str, kind: str, value: Any) -> BufferArgument:
        tensor = getattr(value, "base", value) if type(value).__name__ == "TensorWrapper" else value
        if not isinstance(tensor, torch.Tensor):
            self.refuse("record.not_a_tensor", f"{kernel}: {parameter!r} is a {type(value).__name__}, not a tensor")
        if type(tensor) is not torch.Tensor or tensor.device.type != "cpu":
            self.refuse(
                "record.fake_tensor",
                f"{kernel}: {parameter!r} is a {type(tensor).__name__} on {tensor.device.type!r}, not an op's buffer",
            )
        pointee = kind.removeprefix("*").removeprefix("k")
        if pointee not in _POINTEES:
            self.refuse("record.dtype", f"{kernel}: {parameter!r} points to {pointee}; known: {sorted(_POINTEES)}")
        base = tensor.untyped_storage().data_ptr()
        if base not in self._storages:
            self.refuse(
                "record.unknown_storage",
                f"{kernel}: {parameter!r} points to memory that is no buffer of the op; declare it in scratch()",
            )
        return BufferArgument(buffer=self._storages[base][0], offset=tensor.data_ptr() - base, dtype=DType(pointee))
