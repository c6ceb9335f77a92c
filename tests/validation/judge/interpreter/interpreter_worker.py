"""Child of the interpreter tests: TRITON_INTERPRET=1, one shared memory file, pickled requests on stdin.

A request is (mode, payload, scratch): mode "corrected" calls the sandbox's job; "stock" runs the same launches with
Triton's interpreter as it comes.
"""

import mmap
import pathlib
import pickle
import sys
import traceback


def stock(payload: dict, memory: mmap.mmap, scratch: pathlib.Path) -> dict:
    import importlib

    import torch

    dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "i32": torch.int32,
              "i64": torch.int64, "u8": torch.uint8, "i8": torch.int8}  # fmt: skip
    package = f"stock_{len(sys.modules)}"
    for name, text in payload["source"]["files"].items():
        path = scratch / package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    sys.path.insert(0, str(scratch))
    pack = payload["pack"]
    for launch in pack["launches"]:
        variant = pack["kernels"][launch["kernel"]]
        module = importlib.import_module(f"{package}.{variant['file'].removesuffix('.py')}")
        arguments = dict(variant["constexprs"])
        for name, argument in launch["arguments"].items():
            if argument["kind"] == "scalar":
                arguments[name] = argument["value"]
                continue
            buffer = payload["buffers"][argument["buffer"]]
            arguments[name] = torch.frombuffer(
                memory, dtype=dtypes[argument["dtype"]], offset=buffer["offset"],
                count=buffer["bytes"] // dtypes[argument["dtype"]].itemsize,
            )  # fmt: skip
        getattr(module, variant["function"])[launch["grid"]](**arguments)
    return {"status": "ok"}


def main() -> None:
    fd, size, mode = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    memory = mmap.mmap(fd, size)
    replies = sys.stdout.buffer
    sys.stdout = sys.stderr
    if mode == "corrected":
        from fasttrack_validation.judge.interpreter import job
    while True:
        try:
            payload, scratch = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            if mode == "corrected":
                reply = job.run(payload, [memory], pathlib.Path(scratch))
            else:
                reply = stock(payload, memory, pathlib.Path(scratch))
        except Exception:
            reply = {"status": "crash", "message": traceback.format_exc()}
        pickle.dump(reply, replies)
        replies.flush()


if __name__ == "__main__":
    main()
