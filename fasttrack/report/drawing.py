"""A plan as a drawing: launches in program order, one lane a stream. Width means nothing: time is not drawn."""

from typing import NamedTuple

from fasttrack_validation.judge.pack import BufferArgument, KernelPack, Role

STEP, BOX, LANE, LEFT, TOP = 176, 148, 84, 72, 14


class Box(NamedTuple):
    """One launch. Coordinates in SVG user units."""

    x: int
    y: int
    number: int
    name: str
    grid: str
    warps: str
    prefetch: bool


class Lane(NamedTuple):
    """One stream."""

    y: int
    stream: str


class Drawing(NamedTuple):
    """All that the SVG template needs; `description` says the same in words."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    lanes: tuple[Lane, ...]
    edges: tuple[tuple[int, int, int, int], ...]
    description: str


def draw(plan: KernelPack) -> Drawing:
    """Places the launches of a plan; an edge joins a launch to the last earlier one on another stream it shares a
    buffer with, and to its predecessor on its own stream."""
    streams = list(dict.fromkeys(launch.stream for launch in plan.launches))
    lanes = tuple(Lane(TOP + row * LANE, stream) for row, stream in enumerate(streams))
    boxes, edges, words = [], [], []
    buffers = [
        {a.buffer for a in launch.arguments.values() if isinstance(a, BufferArgument)} for launch in plan.launches
    ]
    for index, launch in enumerate(plan.launches):
        kernel = plan.kernels[launch.kernel]
        warps = kernel.options.get("num_warps")
        grid = " × ".join(map(str, launch.grid))
        box = Box(
            LEFT + index * STEP,
            TOP + streams.index(launch.stream) * LANE,
            index + 1,
            kernel.function,
            grid,
            f"{warps} warps" if warps else "",
            launch.role is Role.PREFETCH,
        )
        boxes.append(box)
        words.append(f"{index + 1}: {kernel.function}, grid {grid}, stream {launch.stream}, {launch.role}")
        earlier = range(index - 1, -1, -1)
        own = next((at for at in earlier if plan.launches[at].stream == launch.stream), None)
        other = next(
            (at for at in earlier if plan.launches[at].stream != launch.stream and buffers[at] & buffers[index]), None
        )
        for at in {own, other} - {None}:
            edges.append((boxes[at].x + BOX, boxes[at].y + 30, box.x, box.y + 30))
    return Drawing(
        LEFT + len(boxes) * STEP, TOP + len(lanes) * LANE, tuple(boxes), lanes, tuple(sorted(edges)), "; ".join(words)
    )
