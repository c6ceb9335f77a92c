import mmap
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fasttrack_validation.judge.kernel_source import extract

SIZE = 64 << 20
NAMES = {
    torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64", torch.int32: "i32",
    torch.int64: "i64", torch.int8: "i8", torch.uint8: "u8", torch.float8_e4m3fn: "fp8e4nv", torch.float8_e5m2: "fp8e5",
}  # fmt: skip
HEADER = "import triton\nimport triton.language as tl\n"


class Interpreter:
    """A process in which kernels are interpreted, and the memory shared with it."""

    def __init__(self, scratch: Path, mode: str) -> None:
        fd = os.memfd_create("buffers")
        os.ftruncate(fd, SIZE)
        self.memory = mmap.mmap(fd, SIZE)
        self.scratch = scratch
        worker = Path(__file__).with_name("interpreter_worker.py")
        environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, str(worker), str(fd), str(SIZE), mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=environment, pass_fds=(fd,),
        )  # fmt: skip
        os.close(fd)

    def job(self, payload: dict) -> dict:
        pickle.dump((payload, str(self.scratch)), self.process.stdin)
        self.process.stdin.flush()
        return pickle.load(self.process.stdout)

    def run(self, source, buffers, *, function="kernel", constexprs=None, scalars=None, grid=(1, 1, 1), read_only=(),
            order="ascending", role="compute", files=None, offsets=None, views=None, arguments=None):  # fmt: skip
        """Runs one kernel of `source` on copies of `buffers`; returns the job's reply and the buffers afterwards.

        Each buffer is a pointer argument of its name, unless `arguments` says what the kernel gets.
        """
        given = arguments
        offsets, views = offsets or {}, views or {}
        files = {"k.py": HEADER + source} | (files or {})
        layout, at = {}, 256
        for name, tensor in buffers.items():
            data = tensor.contiguous().view(torch.uint8).reshape(-1).numpy().tobytes()
            layout[name] = {"offset": at, "bytes": len(data), "writable": name not in read_only}
            self.memory[at : at + len(data)] = data
            at += (len(data) + 511) // 256 * 256
        arguments = {
            name: {"kind": "buffer", "buffer": name, "offset": offsets.get(name, 0),
                   "dtype": views.get(name, NAMES[tensor.dtype])}
            for name, tensor in buffers.items()
        }  # fmt: skip
        arguments |= {n: {"kind": "scalar", "type": t, "value": v} for n, (t, v) in (scalars or {}).items()}
        if given is not None:
            arguments = given
        kernel = {"file": "k.py", "function": function, "signature": {}, "constexprs": constexprs or {},
                  "divisible_by_16": (), "options": {}}  # fmt: skip
        pack = {"op": "op", "workload": "w", "candidate_digest": "0", "kernels": {"k": kernel}, "scratch": {},
                "launches": [{"kernel": "k", "grid": grid, "arguments": arguments, "role": role}],
                "prepared": {}, "toolchain": {}}  # fmt: skip
        payload = {"source": extract(files, "k.py").model_dump(), "pack": pack, "buffers": layout, "order": order}
        reply = self.job(payload)
        after = {}
        for name, tensor in buffers.items():
            start, length = layout[name]["offset"], layout[name]["bytes"]
            raw = torch.frombuffer(bytearray(self.memory[start : start + length]), dtype=torch.uint8)
            after[name] = raw.view(tensor.dtype).reshape(tensor.shape)
        return reply, after

    def elementwise(self, body, inputs, output):
        """Runs `body`, an expression or statements that set y from a, b, c, over equally long `inputs`."""
        loads = "".join(f"    {n} = tl.load({n.upper()} + i)\n" for n in inputs)
        statements = body if "\n" in body or body.startswith("y =") else f"y = {body}"
        source = (
            f"@triton.jit\ndef kernel({', '.join(n.upper() for n in inputs)}, Y, BLOCK: tl.constexpr):\n"
            f"    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n{loads}"
            + "".join(f"    {line}\n" for line in statements.split("\n"))
            + "    tl.store(Y + i, y)\n"
        )
        count = next(iter(inputs.values())).numel()
        buffers = {n.upper(): t for n, t in inputs.items()} | {"Y": torch.zeros(count, dtype=output)}
        reply, after = self.run(source, buffers, constexprs={"BLOCK": count})
        assert reply["status"] == "ok", reply
        return after["Y"]

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=30)


@pytest.fixture(scope="session")
def interpreter(tmp_path_factory):
    child = Interpreter(tmp_path_factory.mktemp("corrected"), "corrected")
    yield child
    child.close()


@pytest.fixture(scope="session")
def stock_interpreter(tmp_path_factory):
    child = Interpreter(tmp_path_factory.mktemp("stock"), "stock")
    yield child
    child.close()
