"""Which parts of the op graph can be one kernel, by the names of their ops: `o_proj_residual+attn_res_norm`."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from ...errors import UserError
from ..base import OpContract, TensorRole
from ..joined import Member, tensor_names
from ..subgraph import SEPARATOR
from .architecture import Architecture
from .connected import VERIFIES, Part, RoutedPart, VerifyPart
from .graph import Node, OpGraph, Via, step
from .layers import LAYERS

_MOST = 12
# Cores of a step in which requests have several rows each: how many decides nothing here.
_VERIFYING = {"kda_verify", "mla_verify"}
_STACK = "blocks"
# What a rank reads without waiting for another.
_LOCAL = (Via.HERE, Via.COLUMNS)
# Edges within a layer. What crosses ranks is given to the reader all the same; see `subgraph`.
_JOINING = (*_LOCAL, Via.RANKS, Via.RANK_COLUMNS)
_EXAMPLES = "for example o_proj_residual+attn_res_norm"


def subgraph(architecture: Architecture, ops: Mapping[str, OpContract], name: str) -> Part:
    """The contract of the ops in `name`, joined by `+`, where the step has them connected; or of a layer (`LAYERS`).

    Of several places the most frequent kind counts (by what goes in and comes out). Ops are connected by what one
    leaves on this rank for another, by reading what one other op leaves, and in a layer by what one sends for another. What crosses ranks is an input, as for
    a single op: everybody's shares are given, this rank's own among them, and what it sends is an output. Raises
    UserError for unknown ops, for ops that are connected nowhere, and for ops that cannot be judged as one.
    """
    names = list(LAYERS.get(name, name.split(SEPARATOR)))
    unknown = [op for op in names if op not in ops]
    if unknown or not 2 <= len(names) <= _MOST:
        raise UserError(
            f"no op of kimi_k3 is called {unknown[0]!r}"
            if unknown
            else f"a part has 2 to {_MOST} ops, not {len(names)}",
            f"known: {', '.join((*ops, *LAYERS))}; {_EXAMPLES}",
        )
    # Whoever chooses by logits of its own has computed them all.
    own_logits = name not in LAYERS and {"front", "routing"} <= set(names)
    graph = _graph(architecture, ("front",) if own_logits else (), 2 if _VERIFYING & set(names) else 1)
    if own_logits:
        ops = {**ops, "front": ops["front"].whole()}
    places = list(_layers(graph, architecture, names) if name in LAYERS else _places(graph, names))
    if not places:
        raise UserError(f"{name}: these ops are connected nowhere in the step", _connections(graph, names))
    kinds = Counter(_kind(graph, place) for place in places)
    ((kind, _),) = kinds.most_common(1)
    place = next(place for place in places if _kind(graph, place) == kind)
    graph.interface(place)  # raises where something between them is left out
    nodes = [graph.nodes[node] for node in place]
    if {"routing", "experts"} <= set(names):
        ops = {**ops, "experts": ops["experts"].with_all()}
    members = list(members_of(graph, nodes, ops))
    routed = any(member.contract.op == "routing" and _decides(member, members) for member in members)
    kind = RoutedPart if routed else VerifyPart if VERIFIES in names else Part
    if routed and VERIFIES in names:
        raise UserError(f"{name}: what routes and what verifies cannot be judged as one", "judge the layer's halves apart")
    return kind(name, graph, nodes, members, ops)


def _decides(routing: Member, members: Sequence[Member]) -> bool:
    """Whether the part computes the logits, or reads the choice."""
    return "logits" in routing.inside or any("ids" in member.inside for member in members)


def _layers(graph: OpGraph, architecture: Architecture, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Whole layers that consist of these ops."""
    for number in range(architecture.layers):
        place = graph.layer(number)
        if Counter(graph.nodes[node].op for node in place) == Counter(names):
            yield place


@cache
def _graph(architecture: Architecture, replicated: tuple[str, ...], tokens: int) -> OpGraph:
    return step(architecture, replicated, tokens=tokens)


def _places(graph: OpGraph, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Sets of nodes with these ops, connected on this rank, each in the order of the step; all there are."""
    near = _neighbours(graph)
    seen: set[frozenset[str]] = set()
    for start, node in graph.nodes.items():
        if node.op == names[0]:
            for found in _grown(graph, near, frozenset((start,)), Counter(names[1:]), seen):
                yield tuple(name for name in graph.nodes if name in found)


def _grown(
    graph: OpGraph, near: Mapping[str, set[str]], part: frozenset[str], missing: Counter[str], seen: set[frozenset[str]]
) -> Iterator[frozenset[str]]:
    if part in seen:
        return
    seen.add(part)
    if not missing:
        yield part
        return
    around = sorted({other for name in part for other in near[name]} - part)
    for other in around:
        if missing[graph.nodes[other].op]:
            yield from _grown(graph, near, part | {other}, missing - Counter((graph.nodes[other].op,)), seen)


@cache
def _neighbours(graph: OpGraph) -> dict[str, set[str]]:
    near: dict[str, set[str]] = {name: set() for name in graph.nodes}
    for edge in graph.edges:
        if edge.via in _JOINING:
            near[edge.producer].add(edge.consumer)
            near[edge.consumer].add(edge.producer)
    for one, other in graph.beside:
        near[one].add(other)
        near[other].add(one)
    return near


def _connections(graph: OpGraph, names: Sequence[str]) -> str:
    """What each of the ops is connected to, in words."""
    lines = []
    for op in dict.fromkeys(names):
        after = {
            graph.nodes[e.consumer].op for e in graph.edges if e.via in _JOINING and graph.nodes[e.producer].op == op
        }
        before = {
            graph.nodes[e.producer].op for e in graph.edges if e.via in _JOINING and graph.nodes[e.consumer].op == op
        }
        lines.append(
            f"{op} reads from {', '.join(sorted(before)) or 'no op'}, is read by {', '.join(sorted(after)) or 'no op'}"
        )
    return "; ".join(lines)


def _kind(graph: OpGraph, place: Sequence[str]) -> tuple:
    """What tells places apart that are judged differently: which tensors are inside, shared, and left."""
    nodes = [graph.nodes[name] for name in place]
    given = list(dict.fromkeys(sources for node in nodes for sources in node.reads.values()))
    shared = tuple(tuple((tensor, given.index(node.reads[tensor])) for tensor in sorted(node.reads)) for node in nodes)
    wiring = tuple(tuple(sorted(_inside(nodes, index).items())) for index in range(len(nodes)))
    leaving = tuple(tuple(sorted(_leaving(graph, nodes, node))) for node in nodes)
    return tuple(node.op for node in nodes), wiring, shared, leaving


def _inside(nodes: Sequence[Node], index: int) -> dict[str, tuple[int, str]]:
    """Tensors of a node that another node of the part writes on this rank."""
    writers = {
        value: (i, tensor) for i, node in enumerate(nodes) if i != index for tensor, value in node.writes.items()
    }
    return {
        tensor: writers[sources[0].value]
        for tensor, sources in nodes[index].reads.items()
        if len(sources) == 1 and sources[0].via in _LOCAL and sources[0].value in writers
    }


def _leaving(graph: OpGraph, nodes: Sequence[Node], node: Node) -> set[str]:
    """Tensors that the node writes for somebody outside of the part, other ranks included, or to stay."""
    names = {other.name for other in nodes}
    return {
        tensor for tensor, value in node.writes.items()
        if value in graph.results
        or any(name not in names or via not in _LOCAL for name, via in graph.readers.get(value, ()))
    }  # fmt: skip


def members_of(graph: OpGraph, nodes: Sequence[Node], ops: Mapping[str, OpContract]) -> Iterator[Member]:
    counts = Counter(node.op for node in nodes)
    numbers: Counter[str] = Counter()
    aliases = []
    for node in nodes:
        numbers[node.op] += 1
        aliases.append(node.op if counts[node.op] == 1 else f"{node.op}_{numbers[node.op]}")
    keys = [_keys(graph, nodes, index, ops[node.op]) for index, node in enumerate(nodes)]
    # A name that means one thing only is kept; others are told apart by their op.
    meanings: dict[str, set] = {}
    for found in keys:
        for tensor, key in found.items():
            meanings.setdefault(tensor, set()).add(key)
    named: dict[tuple, str] = {}
    for alias, found in zip(aliases, keys, strict=True):
        for tensor, key in found.items():
            named.setdefault(key, tensor if len(meanings[tensor]) == 1 else f"{alias}_{tensor}")
    for index, (alias, node) in enumerate(zip(aliases, nodes, strict=True)):
        outer = {tensor: named[key] for tensor, key in keys[index].items()}
        inside = _inside(nodes, index)
        columns = frozenset(tensor for tensor in inside if node.reads[tensor][0].via is Via.COLUMNS)
        yield Member(alias=alias, contract=ops[node.op], inside=inside, outer=outer, columns=columns)


def _keys(graph: OpGraph, nodes: Sequence[Node], index: int, contract: OpContract) -> dict[str, tuple]:
    """Tensor -> what it is in the step, for every tensor of the node that is not inside."""
    node, inside, leaving = nodes[index], _inside(nodes, index), _leaving(graph, nodes, nodes[index])
    mixed = [
        tensor for tensor, sources in node.reads.items()
        if tensor not in inside and any(s.via is Via.HERE and s.value in _written(nodes) for s in sources)
    ]  # fmt: skip
    if mixed:
        raise UserError(
            f"{node.op} stacks {mixed[0]} from values inside and outside of the part", "judge these ops apart"
        )
    keys: dict[str, tuple] = {}
    for tensor, role in tensor_names(contract).items():
        if tensor in inside or (role is TensorRole.OUTPUT and tensor not in leaving):
            continue
        if role is TensorRole.STATIC:
            keys[tensor] = ("weight", node.weights, tensor)
        elif role is TensorRole.OUTPUT:
            keys[tensor] = ("value", node.writes[tensor])
        else:
            sources = node.reads.get(tensor)
            # An input that this place lacks (`residual` where a block begins) is the op's own. A stack of one value is
            # another tensor than the value.
            shape = "stack" if tensor == _STACK else "value"
            keys[tensor] = (shape, *((s.value, s.via) for s in sources)) if sources else ("input", node.name, tensor)
    return keys


def _written(nodes: Sequence[Node]) -> set[str]:
    return {value for node in nodes for value in node.writes.values()}
