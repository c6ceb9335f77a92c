"""The FlashInfer Trace records (as of flashinfer-bench 0.1.2), read strictly: unknown keys are errors.

A *definition* says what is computed (axes, tensors, reference code), a *workload* at which sizes and on what values, a
*solution* how. One line of a workload file is a *trace* that has neither solution nor evaluation.
"""

import ast
from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from ...records import Frozen
from ...tensors import DType

Text = Annotated[str, Field(min_length=1)]
Size = Annotated[int, Field(ge=0)]

# The format's element types, and ours where there is one.
DTYPES: dict[str, DType | None] = {
    "float32": DType.F32, "float16": DType.F16, "bfloat16": DType.BF16,
    "float8_e4m3fn": None, "float8_e5m2": None, "float4_e2m1": None,
    "int64": DType.I64, "int32": DType.I32, "int16": DType.I16, "int8": DType.I8, "bool": None,
}  # fmt: skip
DTYPE_NAMES = {ours: name for name, ours in DTYPES.items() if ours is not None}


class _Record(Frozen):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class AxisConst(_Record):
    """An axis with one size."""

    type: Literal["const"]
    value: Size
    description: str | None = None


class AxisVar(_Record):
    """An axis whose size comes with the inputs."""

    type: Literal["var"]
    description: str | None = None


Axis = Annotated[AxisConst | AxisVar, Field(discriminator="type")]


class Tensor(_Record):
    """A tensor, dense, with named axes; a Python scalar where `shape` is null."""

    shape: tuple[Text, ...] | None
    dtype: str
    description: str | None = None

    @field_validator("dtype")
    @classmethod
    def _known(cls, dtype: str) -> str:
        if dtype not in DTYPES:
            raise ValueError(f"is not a type of the format; known: {', '.join(DTYPES)}")
        return dtype


class Definition(_Record):
    """What is computed: `reference` defines `run`, which takes the inputs in order and returns the outputs in order."""

    name: Text
    op_type: Text
    axes: dict[Text, Axis]
    inputs: dict[Text, Tensor]
    outputs: dict[Text, Tensor]
    reference: Text
    tags: tuple[Text, ...] = ()
    description: str | None = None
    constraints: tuple[Text, ...] = ()

    @field_validator("reference")
    @classmethod
    def _runs(cls, reference: str) -> str:
        try:
            body = ast.parse(reference).body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ValueError(f"is not Python: {error}") from error
        if not any(isinstance(node, ast.FunctionDef) and node.name == "run" for node in body):
            raise ValueError("defines no top-level function `run`")
        return reference

    @field_validator("constraints")
    @classmethod
    def _expressions(cls, constraints: tuple[str, ...]) -> tuple[str, ...]:
        for text in constraints:
            try:
                ast.parse(text, mode="eval")
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                raise ValueError(f"{text!r} is not a Python expression") from error
        return constraints

    @model_validator(mode="after")
    def _fits(self) -> "Definition":
        both = sorted(set(self.inputs) & set(self.outputs))
        if both:
            raise ValueError(f"outputs.{both[0]}: is the name of an input as well")
        if not self.outputs:
            raise ValueError("outputs: there is none")
        for kind in ("inputs", "outputs"):
            for name, tensor in getattr(self, kind).items():
                for axis in tensor.shape or ():
                    if axis not in self.axes:
                        raise ValueError(f"{kind}.{name}.shape: axis {axis!r} is not among the axes {list(self.axes)}")
        run = next(n for n in ast.parse(self.reference).body if isinstance(n, ast.FunctionDef) and n.name == "run")
        count, wanted = len(run.args.posonlyargs) + len(run.args.args), len(self.inputs)
        least = count - len(run.args.defaults)
        if not least <= wanted or (wanted > count and not run.args.vararg):
            raise ValueError(f"reference: run takes {count} arguments, the definition has {wanted} inputs")
        return self

    @property
    def variable(self) -> tuple[str, ...]:
        """Names of the variable axes."""
        return tuple(name for name, axis in self.axes.items() if isinstance(axis, AxisVar))

    def sizes(self, variable: dict[str, int]) -> dict[str, int]:
        """The size of every axis, given those of the variable ones."""
        return {name: variable[name] if isinstance(axis, AxisVar) else axis.value for name, axis in self.axes.items()}


class RandomInput(_Record):
    """Standard normal values (or whole-range integers, which is why integers are better given)."""

    type: Literal["random"]


class ScalarInput(_Record):
    """A Python number."""

    type: Literal["scalar"]
    value: bool | int | float


class SafetensorsInput(_Record):
    """A tensor in a file; `path` is relative to the root of the trace set."""

    type: Literal["safetensors"]
    path: Text
    tensor_key: Text

    @field_validator("path")
    @classmethod
    def _inside(cls, path: str) -> str:
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts:
            raise ValueError("is not a path inside the trace set")
        return path


Input = Annotated[RandomInput | ScalarInput | SafetensorsInput, Field(discriminator="type")]


class Workload(_Record):
    """Sizes of the variable axes, and where each input's values come from."""

    axes: dict[Text, Size]
    inputs: dict[Text, Input]
    uuid: Text


class Trace(_Record):
    """A workload of a definition; with solution and evaluation where something was measured (kept as it is)."""

    definition: Text
    workload: Workload
    solution: str | None = None
    evaluation: dict | None = None


class Source(_Record):
    """One file of a solution."""

    path: Text
    content: Text

    @field_validator("path")
    @classmethod
    def _inside(cls, path: str) -> str:
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts:
            raise ValueError("is not a path inside the solution")
        return path


class BuildSpec(_Record):
    """How a solution is built and called: with outputs as last arguments (destination passing), or returning them."""

    language: Literal["python", "triton", "cpp", "cuda", "tilelang"]
    target_hardware: tuple[Text, ...] = Field(min_length=1)
    entry_point: str = Field(pattern=r"^[^:]+::[^:]+$", description="file::function")
    dependencies: tuple[Text, ...] = ()
    destination_passing_style: bool = True
    binding: Literal["tvm-ffi", "torch"] | None = None


class Solution(_Record):
    """One implementation of a definition."""

    name: Text
    definition: Text
    author: Text
    spec: BuildSpec
    sources: tuple[Source, ...] = Field(min_length=1)
    description: str | None = None

    @model_validator(mode="after")
    def _entry(self) -> "Solution":
        paths = [source.path for source in self.sources]
        twice = sorted({path for path in paths if paths.count(path) > 1})
        if twice:
            raise ValueError(f"sources: {twice[0]!r} is there twice")
        entry = self.spec.entry_point.split("::")[0]
        if entry not in paths:
            raise ValueError(f"spec.entry_point: {entry!r} is not among the sources {paths}")
        return self
