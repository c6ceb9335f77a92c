"""CUDA's driver API, through cuda-bindings. No torch, no Triton: device code comes as a cubin or as PTX."""

import ctypes
from collections.abc import Sequence

from cuda.bindings import driver as cuda

from .driver import Captured, DeviceError, Facts, Handle, Shape, TensorMap

# The driver reads parameters from these places; an encoded tensor map must lie at a multiple of 64 bytes.
_PLACE = 128
# Static shared memory counts towards it; a launch above it needs the function's leave.
_PLAIN_SHARED_BYTES = 48 << 10
# Clusters above this size are not portable and need the function's leave.
_PORTABLE_CLUSTER = 8
_ATTRIBUTE = cuda.CUdevice_attribute
_LAUNCH = cuda.CUlaunchAttributeID
_FUNCTION = cuda.CUfunction_attribute


def make(specification: str) -> "CudaDriver":
    """The driver of one device; `specification` is its number."""
    return CudaDriver(int(specification or 0))


class CudaDriver:
    """One GPU and its primary context. See driver.Driver."""

    def __init__(self, ordinal: int) -> None:
        _checked("cuInit", cuda.cuInit(0))
        device = _checked("cuDeviceGet", cuda.cuDeviceGet(ordinal))
        context = _checked("cuDevicePrimaryCtxRetain", cuda.cuDevicePrimaryCtxRetain(device))
        _checked("cuCtxSetCurrent", cuda.cuCtxSetCurrent(context))

        def attribute(name: str) -> int:
            number = getattr(_ATTRIBUTE, f"CU_DEVICE_ATTRIBUTE_{name}")
            return _checked(f"cuDeviceGetAttribute {name}", cuda.cuDeviceGetAttribute(number, device))

        self.facts = Facts(
            name=_checked("cuDeviceGetName", cuda.cuDeviceGetName(128, device)).split(b"\0")[0].decode(),
            capability=10 * attribute("COMPUTE_CAPABILITY_MAJOR") + attribute("COMPUTE_CAPABILITY_MINOR"),
            driver=_checked("cuDriverGetVersion", cuda.cuDriverGetVersion()),
            memory=_checked("cuDeviceTotalMem", cuda.cuDeviceTotalMem(device)),
            multiprocessors=attribute("MULTIPROCESSOR_COUNT"),
        )

    def load(self, image: bytes) -> Handle:
        return _checked("cuModuleLoadData", cuda.cuModuleLoadData(image))

    def unload(self, module: Handle) -> None:
        _checked("cuModuleUnload", cuda.cuModuleUnload(module))

    def function(self, module: Handle, name: str) -> Handle:
        return _checked(f"cuModuleGetFunction {name}", cuda.cuModuleGetFunction(module, name.encode()))

    def parameters(self, function: Handle) -> tuple[tuple[int, int], ...]:
        found = []
        while True:
            status, offset, size = cuda.cuFuncGetParamInfo(function, len(found))
            if status == cuda.CUresult.CUDA_ERROR_INVALID_VALUE:  # one past the last
                return tuple(found)
            _checked("cuFuncGetParamInfo", (status,))
            found.append((int(offset), int(size)))

    def prepare(self, function: Handle, shared_bytes: int, cluster: int) -> None:
        def allow(name: str, value: int) -> None:
            attribute = getattr(_FUNCTION, f"CU_FUNC_ATTRIBUTE_{name}")
            _checked(f"cuFuncSetAttribute {name}", cuda.cuFuncSetAttribute(function, attribute, value))

        static = _FUNCTION.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
        fixed = _checked("cuFuncGetAttribute", cuda.cuFuncGetAttribute(static, function))
        if shared_bytes + fixed > _PLAIN_SHARED_BYTES:
            allow("MAX_DYNAMIC_SHARED_SIZE_BYTES", shared_bytes)
        if cluster > _PORTABLE_CLUSTER:
            allow("NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1)

    def allocate(self, size: int) -> int:
        return int(_checked(f"cuMemAlloc of {size} bytes", cuda.cuMemAlloc(size)))

    def free(self, address: int) -> None:
        _checked("cuMemFree", cuda.cuMemFree(address))

    def upload(self, address: int, host: int, size: int) -> None:
        _checked("cuMemcpyHtoD", cuda.cuMemcpyHtoD(address, host, size))
        # It returns when the bytes are staged; kernels on other streams would not wait for the rest.
        _checked("cuStreamSynchronize", cuda.cuStreamSynchronize(cuda.CUstream(0)))

    def download(self, host: int, address: int, size: int) -> None:
        _checked("cuMemcpyDtoH", cuda.cuMemcpyDtoH(host, address, size))

    def copy(self, target: int, source: int, size: int, stream: Handle) -> None:
        _checked("cuMemcpyDtoDAsync", cuda.cuMemcpyDtoDAsync(target, source, size, stream))

    def stream(self) -> Handle:
        flags = cuda.CUstream_flags.CU_STREAM_NON_BLOCKING
        return _checked("cuStreamCreate", cuda.cuStreamCreate(flags))

    def event(self) -> Handle:
        return _checked("cuEventCreate", cuda.cuEventCreate(cuda.CUevent_flags.CU_EVENT_DEFAULT))

    def record(self, event: Handle, stream: Handle) -> None:
        _checked("cuEventRecord", cuda.cuEventRecord(event, stream))

    def wait(self, stream: Handle, event: Handle) -> None:
        _checked("cuStreamWaitEvent", cuda.cuStreamWaitEvent(stream, event, 0))

    def elapsed_ns(self, start: Handle, end: Handle) -> float:
        return 1e6 * _checked("cuEventElapsedTime", cuda.cuEventElapsedTime(start, end))

    def synchronize(self) -> None:
        _checked("cuCtxSynchronize", cuda.cuCtxSynchronize())

    def begin_capture(self, stream: Handle) -> None:
        mode = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        _checked("cuStreamBeginCapture", cuda.cuStreamBeginCapture(stream, mode))

    def end_capture(self, stream: Handle) -> Captured:
        graph = _checked("cuStreamEndCapture", cuda.cuStreamEndCapture(stream))
        try:
            kernels = _kernels_of(graph)
            return Captured(_checked("cuGraphInstantiate", cuda.cuGraphInstantiate(graph, 0)), kernels)
        finally:
            _checked("cuGraphDestroy", cuda.cuGraphDestroy(graph))

    def launch_graph(self, graph: Handle, stream: Handle) -> None:
        _checked("cuGraphLaunch", cuda.cuGraphLaunch(graph, stream))

    def destroy_graph(self, graph: Handle) -> None:
        _checked("cuGraphExecDestroy", cuda.cuGraphExecDestroy(graph))

    def launch(self, function: Handle, shape: Shape, arguments: Sequence[bytes], stream: Handle) -> None:
        config = cuda.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = shape.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = shape.threads, 1, 1
        config.sharedMemBytes, config.hStream = shape.shared_bytes, stream
        attributes = _attributes(shape)
        config.attrs, config.numAttrs = attributes, len(attributes)
        storage = ctypes.create_string_buffer(_PLACE * (len(arguments) + 1))
        start = -(-ctypes.addressof(storage) // _PLACE) * _PLACE
        pointers = (ctypes.c_void_p * max(1, len(arguments)))()
        for number, argument in enumerate(arguments):
            pointers[number] = start + _PLACE * number
            ctypes.memmove(start + _PLACE * number, argument, len(argument))
        _checked("cuLaunchKernelEx", cuda.cuLaunchKernelEx(config, function, ctypes.addressof(pointers), 0))

    def reset_persisting_l2(self) -> None:
        _checked("cuCtxResetPersistingL2Cache", cuda.cuCtxResetPersistingL2Cache())

    def tensor_map(self, request: TensorMap) -> bytes:
        fills = cuda.CUtensorMapFloatOOBfill
        zero, nan = (
            fills.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE, fills.CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA,
        )  # fmt: skip
        encoded = _checked(
            "cuTensorMapEncodeTiled",
            cuda.cuTensorMapEncodeTiled(
                cuda.CUtensorMapDataType(request.element),
                len(request.sizes),
                request.address,
                [cuda.cuuint64_t(size) for size in request.sizes],
                [cuda.cuuint64_t(stride) for stride in request.strides],
                [cuda.cuuint32_t(size) for size in request.box],
                [cuda.cuuint32_t(1)] * len(request.box),
                cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
                cuda.CUtensorMapSwizzle(request.swizzle),
                cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                nan if request.nan_outside else zero,
            ),
        )
        return ctypes.string_at(encoded.getPtr(), 128)


def _attributes(shape: Shape) -> list[cuda.CUlaunchAttribute]:
    found = []

    def attribute(name: str) -> cuda.CUlaunchAttribute:
        found.append(cuda.CUlaunchAttribute())
        found[-1].id = getattr(_LAUNCH, f"CU_LAUNCH_ATTRIBUTE_{name}")
        return found[-1]

    if shape.programmatic:
        attribute("PROGRAMMATIC_STREAM_SERIALIZATION").value.programmaticStreamSerializationAllowed = 1
    if shape.cooperative:
        attribute("COOPERATIVE").value.cooperative = 1
    if shape.cluster > 1:
        size = attribute("CLUSTER_DIMENSION").value.clusterDim
        size.x, size.y, size.z = shape.cluster, 1, 1
    return found


def _kernels_of(graph: Handle) -> tuple[str, ...]:
    """Names of all kernel nodes of a graph, and of the graphs inside of it."""
    _, count = _checked("cuGraphGetNodes", cuda.cuGraphGetNodes(graph))
    nodes, _ = _checked("cuGraphGetNodes", cuda.cuGraphGetNodes(graph, count)) if count else ((), 0)
    found: list[str] = []
    for node in nodes:
        kind = _checked("cuGraphNodeGetType", cuda.cuGraphNodeGetType(node))
        if kind == cuda.CUgraphNodeType.CU_GRAPH_NODE_TYPE_GRAPH:
            found += _kernels_of(_checked("cuGraphChildGraphNodeGetGraph", cuda.cuGraphChildGraphNodeGetGraph(node)))
        if kind == cuda.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL:
            given = _checked("cuGraphKernelNodeGetParams", cuda.cuGraphKernelNodeGetParams(node))
            if int(given.func):
                name = _checked("cuFuncGetName", cuda.cuFuncGetName(given.func))
            else:
                name = _checked("cuKernelGetName", cuda.cuKernelGetName(given.kern))
            found.append(name.decode())
    return tuple(found)


def _checked(call: str, result: tuple):
    """What a call returned beside its status. Raises DeviceError."""
    status, *values = result
    if status != cuda.CUresult.CUDA_SUCCESS:
        raise DeviceError(cuda.CUresult(status).name, call)
    return values[0] if len(values) == 1 else tuple(values) or None
