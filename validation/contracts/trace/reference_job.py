"""The sandbox's job: run the reference of a definition once. What it returns is foreign data."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .wide import Widened

_FLOATS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}
TORCH = {**_FLOATS, "int64": torch.int64, "int32": torch.int32, "int16": torch.int16, "int8": torch.int8}

# Products in the narrower types look the processor up in /proc, once a process. A job cannot read there, so its parent
# does it while it imports this module.
for _dtype in _FLOATS.values():
    torch.ones(8, 8, dtype=_dtype) @ torch.ones(8, 8, dtype=_dtype)


def run(payload: Mapping[str, Any], memory: Sequence[Any], scratch: object) -> tuple[dict, list[bytes]]:
    """Calls `run` of `payload["reference"]` on tensors in memory[0].

    payload: {"reference": text, "inputs": [{"dtype", "shape", "offset", "bytes"} or {"scalar"}], "outputs": count,
    "wide": whether in float64}. Answers ({"outputs": [{"dtype", "shape"}]}, one blob of dense bytes each), or
    ({"failed": line}, []) where the reference raises or returns something else.
    """
    values = [_value(entry, memory, payload["wide"]) for entry in payload["inputs"]]
    space: dict[str, Any] = {"__name__": "reference"}
    try:
        with torch.no_grad():
            exec(compile(payload["reference"], "<reference>", "exec"), space)
            if payload["wide"]:
                with Widened():
                    result = space["run"](*values)
            else:
                result = space["run"](*values)
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"[:1000]}, []
    results = list(result) if isinstance(result, tuple | list) else [result]
    names = {dtype: name for name, dtype in TORCH.items()}
    if len(results) != payload["outputs"]:
        return {"failed": f"returned {len(results)} values, the definition has {payload['outputs']} outputs"}, []
    for number, tensor in enumerate(results):
        if not isinstance(tensor, torch.Tensor) or tensor.dtype not in names:
            kind = getattr(tensor, "dtype", type(tensor).__name__)
            return {"failed": f"value {number} is {kind}, no tensor of a type that can be judged"}, []
    dense = [tensor.detach().contiguous().reshape(-1) for tensor in results]
    described = [{"dtype": names[tensor.dtype], "shape": list(tensor.shape)} for tensor in results]
    return {"outputs": described}, [flat.view(torch.uint8).numpy().tobytes() for flat in dense]


def _value(entry: Mapping[str, Any], memory: Sequence[Any], wide: bool) -> Any:
    if "scalar" in entry:
        return entry["scalar"]
    raw = bytearray(memoryview(memory[0])[entry["offset"] : entry["offset"] + entry["bytes"]])
    dtype = TORCH[entry["dtype"]]
    flat = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    tensor = flat.reshape(entry["shape"])
    return tensor.double() if wide and dtype.is_floating_point else tensor
