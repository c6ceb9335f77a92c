"""The CUDA C++ experts on a GPU, held to the op's own exam: for benchmarks and tests."""

from types import SimpleNamespace

import op_exam
import torch
from fasttrack_models.kimi_k3.kernels import experts_cuda

from fasttrack_validation.contracts.base import TensorRole
from fasttrack_validation.tensors import torch_dtype

OP = op_exam.REAL.op("experts")


def placed(spec, value):
    """A copy of `value` on the GPU with the strides of `spec`."""
    storage = torch.zeros(max(spec.storage_elements, 1), dtype=value.dtype, device="cuda")
    return storage.as_strided(spec.shape, spec.strides).copy_(value)


def bind(context, workload, tensors, config, prepared=None):
    """A launch of the kernel on `tensors`, its output, and what it prepared."""
    axes = workload.axes
    if prepared is None:
        prepared = experts_cuda.prepare(context, SimpleNamespace(**tensors), axes, config)
    spaces = experts_cuda.scratch(axes, config)
    buffers = {
        name: torch.full(shape, float("nan"), dtype=dtype, device="cuda") for name, (shape, dtype) in spaces.items()
    }
    for name, (shape, dtype, *_) in experts_cuda.persistent(axes, config).items():
        buffers[name] = torch.zeros(shape, dtype=dtype, device="cuda")
    spec = next(spec for spec in OP.tensors(workload) if spec.role is TensorRole.OUTPUT)
    buffers["routed"] = torch.full(spec.shape, float("nan"), dtype=torch_dtype(spec.dtype), device="cuda")
    bound = SimpleNamespace(**(tensors | prepared | buffers))
    return (lambda: experts_cuda.launch(context, bound, axes, config)), bound, prepared


def whole(workload):
    """The same with all experts."""
    axes = workload.axes | {"experts": OP.architecture.moe.experts}
    return workload.model_copy(update={"axes": axes})


def fitting(configs, rows):
    """Those that serve so many rows."""
    return [config for config in configs if config["structure"] != "resident" or rows <= 16]


def exam(context, workload, distribution, configs):
    """(configuration, messages of what is wrong), with the oracle and the plain path computed on the CPU."""
    inputs = OP.make_inputs(workload, distribution, workload.axes["rows"])
    specs = [spec for spec in OP.tensors(workload) if spec.role is not TensorRole.OUTPUT]
    tensors = {spec.name: placed(spec, inputs[spec.name]) for spec in specs}
    yield from ruled(context, workload, tensors, configs)


def ruled(context, workload, tensors, configs, prepared=None):
    """The same on tensors that are there."""
    given = {name: value.cpu() for name, value in tensors.items()}
    host = OP.oracle(given, workload), OP.plain(given, workload)
    for config in configs:
        run, bound, prepared = bind(context, workload, tensors, config, prepared)
        found, wrong = [], []
        for _ in range(4):
            run()
            torch.cuda.synchronize()
            found.append(bound.routed.clone())
        if not all(torch.equal(one.view(torch.int16), found[0].view(torch.int16)) for one in found):
            wrong.append("reruns differ")
        if bound.barrier[1]:
            wrong.append("a block gave up")
        rulings = op_exam.rulings(OP, workload, tensors, *host, {"routed": found[0].cpu()})
        yield config, wrong + [one.message for one in rulings if one.decision is not op_exam.Decision.PASS]
