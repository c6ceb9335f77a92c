"""Calls an exported solution in Triton's interpreter on exported values and saves what it produced.

    python interpreted_solution.py ROOT SOLUTION.json UUID OUT.safetensors

A script of its own: whether kernels are interpreted is decided when triton is imported. It reads nothing but the files
of the trace set, as a foreign tool would.
"""

import importlib
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from fasttrack_validation.judge.interpreter import arithmetic, device_library  # noqa: E402

# bfloat16 arithmetic and casts of Triton's interpreter, corrected; memory as it comes.
arithmetic.install()
device_library.install()

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "int32": torch.int32}


def main(root: Path, solution: Path, uuid: str, out: Path) -> None:
    solution = json.loads(solution.read_text())
    (path,) = (root / "definitions").rglob(f"{solution['definition']}.json")
    definition = json.loads(path.read_text())
    (path,) = (root / "workloads").rglob(f"{solution['definition']}.jsonl")
    workloads = [json.loads(line)["workload"] for line in path.read_text().splitlines()]
    workload = next(workload for workload in workloads if workload["uuid"] == uuid)
    sizes = {name: axis.get("value", workload["axes"].get(name)) for name, axis in definition["axes"].items()}
    inputs = {name: load_file(root / at["path"])[at["tensor_key"]] for name, at in workload["inputs"].items()}
    outputs = {
        name: torch.empty([sizes[axis] for axis in spec["shape"]], dtype=DTYPES[spec["dtype"]])
        for name, spec in definition["outputs"].items()
    }
    before = {name: tensor.clone() for name, tensor in inputs.items()}
    with tempfile.TemporaryDirectory() as directory:
        for source in solution["sources"]:
            file = Path(directory, "solution", source["path"])
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source["content"])
        sys.path.insert(0, directory)
        file, function = solution["spec"]["entry_point"].split("::")
        run = getattr(importlib.import_module(f"solution.{Path(file).stem}"), function)
        ordered = [inputs[name] for name in definition["inputs"]]
        run(*ordered, *outputs.values())
        run(*ordered, *outputs.values())  # once more: what was prepared is used again, and states start afresh
    bits = {name: tensor.contiguous().view(torch.uint8) for name, tensor in inputs.items()}
    changed = [name for name in bits if not torch.equal(bits[name], before[name].contiguous().view(torch.uint8))]
    assert not changed, f"inputs {changed} were changed"
    save_file(outputs, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
