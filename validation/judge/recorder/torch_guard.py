"""Inside `launch` a tensor is an address with a shape: views are fine, computing, allocating and reading are not."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NoReturn

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# Methods that reach the data without an ATen operation that a dispatch mode would see.
READS = frozenset(
    ("item", "tolist", "numpy", "cpu", "cuda", "pin_memory", "__array__", "__dlpack__")
    + ("__bool__", "__int__", "__float__", "__index__", "__complex__")
)
# Functions that make tensors of host data, below the operations that a dispatch mode sees.
MAKES = frozenset(("tensor", "as_tensor", "asarray", "from_dlpack", "frombuffer", "from_numpy", "from_file"))
READING_OPERATIONS = frozenset(("_local_scalar_dense", "equal", "is_nonzero", "_to_copy"))
CUDA_CLASSES = ("Stream", "Event", "ExternalStream", "CUDAGraph", "graph", "stream", "device")

Refuse = Callable[[str, str], NoReturn]


@contextmanager
def guarded(refuse: Refuse) -> Iterator[None]:
    """Refuses everything but metadata and views while active. `refuse(reason, message)` must raise."""
    with ExitStack() as stack:
        stack.enter_context(_cuda_refused(refuse))
        stack.enter_context(_Functions(refuse))
        stack.enter_context(_Operations(refuse))
        yield


class _Functions(TorchFunctionMode):
    def __init__(self, refuse: Refuse) -> None:
        super().__init__()
        self.refuse = refuse

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name in READS and args and isinstance(args[0], torch.Tensor):
            self.refuse("record.data_read", f"launch calls Tensor.{name}(): a plan must not depend on data")
        if name in MAKES and getattr(func, "__objclass__", None) is None:
            self.refuse("record.allocation", f"launch makes a tensor (torch.{name}): declare it in scratch()")
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: shielding this mode from torch.compile would import torch._dynamo, which takes two seconds."""
        return False

    def __init__(self, refuse: Refuse) -> None:
        super().__init__()
        self.refuse = refuse

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.is_view:
            return func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if name in READING_OPERATIONS:
            self.refuse("record.data_read", f"launch reads tensor data ({name}): a plan must not depend on data")
        if not any(isinstance(argument, torch.Tensor) for argument in args) or name.startswith("new_"):
            self.refuse("record.allocation", f"launch allocates a tensor ({name}): declare it in scratch()")
        self.refuse(
            "record.torch_operation",
            f"launch runs the torch operation {name}: only the candidate's own kernels may compute; views are fine",
        )


@contextmanager
def _cuda_refused(refuse: Refuse) -> Iterator[None]:
    def stub(name: str) -> Callable[..., NoReturn]:
        how = "device facts and streams come from ctx; launch never synchronises"
        return lambda *args, **kwargs: refuse("record.torch_cuda", f"launch calls torch.cuda.{name}: {how}")

    names = [n for n, value in vars(torch.cuda).items() if n[0] != "_" and inspect.isfunction(value)]
    originals = {name: getattr(torch.cuda, name) for name in (*names, *CUDA_CLASSES) if hasattr(torch.cuda, name)}
    try:
        for name in originals:
            setattr(torch.cuda, name, stub(name))
        yield
    finally:
        for name, value in originals.items():
            setattr(torch.cuda, name, value)
