"""Captured steps: replay, and the inventory of what one replay launches, read from the graph itself."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from cuda.bindings import driver

from .nvrtc import checked

_WARM_UPS = 2


@dataclass(frozen=True)
class Captured:
    """A CUDA graph and its nodes."""

    graph: torch.cuda.CUDAGraph
    kernels: tuple[str, ...]
    """Mangled name of each kernel node, in the order of the graph's nodes"""
    others: tuple[str, ...]
    """Kind of every other node that does something: copies, fills"""

    def replay(self) -> None:
        """Once, on the current stream."""
        self.graph.replay()


def capture(run: Callable[[], object]) -> Captured:
    """`run`, after warm-ups on a stream of its own, as a graph. Tensors that `run` makes belong to the graph's pool.

    A `run` that updates state does so at every warm-up and replay, not at capture.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UPS):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph, stream=stream):
        run()
    kernels, others = _nodes(driver.CUgraph(graph.raw_cuda_graph()))
    graph.instantiate()
    return Captured(graph, kernels, others)


_SILENT = {driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_EMPTY}


def _nodes(graph: driver.CUgraph) -> tuple[tuple[str, ...], tuple[str, ...]]:
    _, count = checked(driver.cuGraphGetNodes(graph))
    nodes, _ = checked(driver.cuGraphGetNodes(graph, count))
    kernels, others = [], []
    for node in nodes:
        kind = checked(driver.cuGraphNodeGetType(node))
        if kind == driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL:
            kernels.append(_name(checked(driver.cuGraphKernelNodeGetParams(node))))
        elif kind not in _SILENT:
            others.append(kind.name)
    return tuple(kernels), tuple(others)


def _name(parameters: driver.CUDA_KERNEL_NODE_PARAMS) -> str:
    # Libraries launch context-free kernels, which have no function.
    if int(parameters.func):
        return checked(driver.cuFuncGetName(parameters.func)).decode()
    return checked(driver.cuKernelGetName(parameters.kern)).decode()
