"""The op graph of one decode step on one rank: which op reads what of which other, down to `layer` and `step`.

A candidate covers one node or a connected part of the graph; what it is judged on is the part's outer inputs and
outputs (`OpGraph.interface`). Imports no tensor library.
"""

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from functools import cached_property

from ...errors import UserError
from ...records import Frozen
from .architecture import Architecture

EMBEDDING = "embedding"
"""[rows, d]: the rows of the embedding table, gathered before the step begins."""
LOGITS = "head.logits"


class Via(StrEnum):
    """How a value reaches a reader. All but `here` and `columns` wait for other ranks."""

    HERE = "here"
    """As this rank holds it"""
    COLUMNS = "columns"
    """This rank's columns of it: d / tp channels of a whole stream"""
    GATHERED = "gathered"
    """The columns of all ranks side by side: the whole of what each rank finished a part of"""
    PEERS = "peers"
    """What every other rank sent, stacked in rank order"""
    RANKS = "ranks"
    """What every rank sent, stacked in rank order"""
    RANK_COLUMNS = "rank_columns"
    """This rank's columns of what every rank sent, stacked in rank order"""


_EXCHANGED = {Via.GATHERED, Via.PEERS, Via.RANKS, Via.RANK_COLUMNS}


class Source(Frozen):
    """One value as one reader takes it."""

    value: str
    via: Via = Via.HERE


class Node(Frozen):
    """One op at one place of the step."""

    name: str
    op: str
    reads: dict[str, tuple[Source, ...]]
    """Tensor of the op -> where it comes from; several sources are stacked"""
    writes: dict[str, str]
    """Tensor of the op -> value. A state that is updated in place is another value afterwards"""
    weights: str
    """Attributes from the model's weights to those of this node: `layers.3.attention`"""
    axes: dict[str, int] = {}
    """Axes that the place decides: `blocks` of a mix, `restart` of a projection, `tokens` of a step to verify"""

    @property
    def sources(self) -> tuple[Source, ...]:
        """Everything that is read, weights apart."""
        return tuple(source for sources in self.reads.values() for source in sources)


class Edge(Frozen):
    """A value from the node that writes it to one that reads it."""

    value: str
    producer: str
    consumer: str
    via: Via


class Interface(Frozen):
    """What a part of the graph has to do with the rest: values, in the order of the step."""

    inputs: tuple[str, ...]
    """Read here, written elsewhere or given with the step (state, page tables, the embedding)"""
    outputs: tuple[str, ...]
    """Written here, and read elsewhere on this rank, by other ranks, or left when the step ends"""
    received: tuple[str, ...]
    """Read from other ranks, whoever writes this rank's own share"""
    weights: tuple[str, ...]


class OpGraph:
    """Nodes in an order in which each finds its inputs written. `results` are the values left at the end."""

    def __init__(self, nodes: Iterable[Node], results: Iterable[str]) -> None:
        self.nodes: Mapping[str, Node] = {node.name: node for node in nodes}
        self.results = tuple(results)
        self.producer = {value: node.name for node in self.nodes.values() for value in node.writes.values()}

    @cached_property
    def beside(self) -> tuple[tuple[str, str], ...]:
        """Pairs of nodes of one module that read what one other node leaves, in the order of the step.

        No value passes between them, and yet one kernel can serve both as soon as what they read is there.
        """
        readers: dict[tuple[str, str], list[str]] = {}
        for edge in self.edges:
            found = readers.setdefault((edge.producer, self.nodes[edge.consumer].weights), [])
            if edge.consumer not in found and self.nodes[edge.producer].weights == self.nodes[edge.consumer].weights:
                found.append(edge.consumer)
        return tuple(pair for found in readers.values() for pair in zip(found, found[1:], strict=False))

    @cached_property
    def readers(self) -> Mapping[str, tuple[tuple[str, Via], ...]]:
        """Value -> who reads it, and how."""
        found: dict[str, list[tuple[str, Via]]] = {}
        for node in self.nodes.values():
            for source in node.sources:
                found.setdefault(source.value, []).append((node.name, source.via))
        return {value: tuple(readers) for value, readers in found.items()}

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """Every edge inside this graph. A rank's own share that only others read is no edge: it crosses ranks."""
        return tuple(
            Edge(value=source.value, producer=self.producer[source.value], consumer=node.name, via=source.via)
            for node in self.nodes.values()
            for source in node.sources
            if self.producer.get(source.value, node.name) != node.name
        )

    def layer(self, number: int) -> tuple[str, ...]:
        """The nodes of one layer, in order. Raises UserError for a layer that the graph lacks."""
        names = tuple(name for name in self.nodes if name.startswith(f"{number}."))
        if not names:
            raise UserError(f"the graph has no layer {number}", "layers count from zero")
        return names

    def interface(self, names: Iterable[str]) -> Interface:
        """The outer inputs and outputs of the nodes `names`.

        Raises UserError where a name is unknown, the nodes do not hang together (by edges of their own, or `beside` each
        other), or a node between them is left out: a kernel cannot wait for what waits for it.
        """
        part = self._part(names)
        nodes = [node for name, node in self.nodes.items() if name in part]
        written = {value for node in nodes for value in node.writes.values()}
        read_outside = {
            source.value
            for node in self.nodes.values()
            for source in node.sources
            if node.name not in part or source.via in _EXCHANGED
        }
        sources = [source for node in nodes for source in node.sources]
        return Interface(
            inputs=_once(source.value for source in sources if source.value not in written),
            outputs=_once(
                value
                for node in nodes
                for value in node.writes.values()
                if value in read_outside or value in self.results
            ),
            received=_once(source.value for source in sources if source.via in _EXCHANGED),
            weights=_once(node.weights for node in nodes),
        )

    def _part(self, names: Iterable[str]) -> set[str]:
        part = set(names)
        unknown = sorted(part - set(self.nodes))
        if unknown or not part:
            raise UserError(
                f"the graph has no node {unknown[0]!r}" if unknown else "a part of a graph needs a node",
                f"nodes are called {', '.join(list(self.nodes)[:3])}, ...",
            )
        inside = [edge for edge in self.edges if {edge.producer, edge.consumer} <= part]
        first = next(name for name in self.nodes if name in part)
        beside = [pair for pair in self.beside if part.issuperset(pair)]
        reached = _closure({first}, [*((e.producer, e.consumer) for e in inside), *beside], both=True)
        apart = [name for name in self.nodes if name in part - reached]
        if apart:
            raise UserError(f"{apart[0]} has no edge to {first} among the nodes given", "add the nodes between them")
        pairs = [(edge.producer, edge.consumer) for edge in self.edges]
        after = _closure(part, pairs)
        before = _closure(part, [(consumer, producer) for producer, consumer in pairs])
        between = [name for name in self.nodes if name in (after & before) - part]
        if between:
            raise UserError(f"{between[0]} lies between the nodes given and is left out", "add it, or split the part")
        return part


def step(architecture: Architecture, replicated: Collection[str] = (), *, tokens: int = 1) -> OpGraph:
    """The whole step from the gathered embedding rows to this rank's logits, with the state that it leaves.

    Router, latent down- and latent up-projection are divided by rows over the ranks, and what comes out is gathered.
    `replicated` names the ops (`front`, `latent_up`) whose rows every rank computes all, as checkpoints keep them and
    stock engines do: nothing is gathered then, and what the experts send is the last that a layer exchanges.

    In a step to verify, requests have several rows each: `tokens`. The cores of KDA and MLA, where rows of a request share
    a state and cached rows, are other ops there; the others work row by row.
    """
    walk = _Walk(architecture, frozenset(replicated), tokens)
    for number in range(architecture.layers):
        walk.layer(number)
    walk.end()
    return OpGraph(walk.nodes, (*walk.states, LOGITS))


class _Walk:
    """Writes the nodes down from top to bottom, with the stream and its banks."""

    def __init__(self, architecture: Architecture, replicated: frozenset[str], tokens: int) -> None:
        self.architecture, self.replicated, self.tokens = architecture, replicated, tokens
        self.nodes: list[Node] = []
        self.states: list[str] = []
        self.banks: list[Source] = []
        self.stream = Source(value=EMBEDDING)

    def layer(self, number: int) -> None:
        kda = number in self.architecture.kda_layers
        begins = number % self.architecture.attn_res_block_size == 0
        x = self._mix(f"{number}.attention_mix", f"layers.{number}.attention_mix")
        if begins:
            self.banks.append(self.stream)
        out = self._kda(number, x) if kda else self._mla(number, x)
        axes = {"restart": int(begins)}
        name, weights = f"{number}.o_proj_residual", f"layers.{number}.attention"
        self._reduced(name, "o_proj_residual", weights, out, None if begins else self.stream, axes)
        x = self._mix(f"{number}.mlp_mix", f"layers.{number}.mlp_mix")
        if number < self.architecture.moe.first_layer:
            self._dense(number, x)
        else:
            self._moe(number, x)

    def end(self) -> None:
        x = self._mix("final_mix", "final_mix")
        self._node("head", "head", "", {"x": x}, ("logits",))

    def _mix(self, name: str, weights: str) -> str:
        reads = {"stream": (self.stream,)}
        if self.banks:
            reads["blocks"] = tuple(self.banks)
        return self._node(name, "attn_res_norm", weights, reads, ("x",), {"blocks": len(self.banks)})["x"]

    def _kda(self, number: int, x: str) -> str:
        weights = f"layers.{number}.attention"
        projected = self._node(f"{number}.in_projection", "in_projection", weights, {"x": x}, ("projected",))
        states = {name: f"{number}.{name}" for name in ("conv_state", "recurrent_state")}
        reads = {**projected, "slots": "slots", **states}
        core = "kda_decode" if self.tokens == 1 else "kda_verify"
        written = self._node(f"{number}.{core}", core, weights, reads, (*states, "out"))
        self.states += [written[name] for name in states]
        return written["out"]

    def _mla(self, number: int, x: str) -> str:
        weights = f"layers.{number}.attention"
        projected = self._node(f"{number}.mla_projection", "mla_projection", weights, {"x": x}, ("projected",))
        paged = {"page_table": "page_table", "lengths": "lengths"}
        reads = {**projected, **paged, "cache": f"{number}.cache"}
        query = self._node(f"{number}.mla_query", "mla_query", weights, reads, ("query", "cache"))
        self.states.append(query["cache"])
        core, axes = ("mla_core", {}) if self.tokens == 1 else ("mla_verify", {"tokens": self.tokens})
        context = self._node(f"{number}.{core}", core, weights, {**paged, **query}, ("context",), axes)
        return self._node(f"{number}.mla_value", "mla_value", weights, {**context, **projected}, ("out",))["out"]

    def _dense(self, number: int, x: str) -> None:
        weights = f"layers.{number}.mlp"
        out = self._node(f"{number}.dense_up", "dense_up", weights, {"x": x}, ("activation",))["activation"]
        self._reduced(f"{number}.dense_down", "dense_down", weights, out, self.stream, {"restart": 0})

    def _moe(self, number: int, x: str) -> None:
        weights = f"layers.{number}.mlp"
        whole = "front" in self.replicated
        axes, via = ({"shards": 1}, Via.HERE) if whole else ({}, Via.GATHERED)
        front = self._node(f"{number}.front", "front", weights, {"x": x}, ("logits", "latent", "shared"), axes)
        logits, latent = ((Source(value=front[name], via=via),) for name in ("logits", "latent"))
        routing = self._node(f"{number}.routing", "routing", weights, {"logits": logits}, ("ids", "weights"))
        experts = self._node(f"{number}.experts", "experts", weights, {"x": latent, **routing}, ("routed",))
        shared = self._node(
            f"{number}.shared_down", "shared_down", weights, {"x": front["shared"]}, ("partial",)
        )
        whole, width = "latent_up" in self.replicated, self.architecture.hidden_size
        reads = {
            "routed": (Source(value=experts["routed"], via=Via.RANKS),),
            "shared": (Source(value=shared["partial"], via=Via.RANKS if whole else Via.RANK_COLUMNS),),
            "residual": (self.stream if whole else self._columns(),),
        }
        axes = {"columns": width, "shared_row_stride": width, "residual_stride": width} if whole else {}
        stream = self._node(f"{number}.latent_up", "latent_up", weights, reads, ("stream",), axes)["stream"]
        self.stream = Source(value=stream, via=Via.HERE if whole else Via.GATHERED)

    def _columns(self) -> Source:
        """This rank's columns of the stream: its own share where the ranks hold it split."""
        split = self.stream.via is Via.GATHERED
        return Source(value=self.stream.value, via=Via.HERE if split else Via.COLUMNS)

    def _reduced(
        self, name: str, op: str, weights: str, x: str, residual: Source | None, axes: dict[str, int]
    ) -> None:
        reads = {"x": x, "peers": (Source(value=f"{name}.partial", via=Via.PEERS),)}
        if residual:
            reads["residual"] = (residual,)
        stream = self._node(name, op, weights, reads, ("partial", "stream"), axes)["stream"]
        self.stream = Source(value=stream)

    def _node(
        self,
        name: str,
        op: str,
        weights: str,
        reads: Mapping,
        writes: Iterable[str],
        axes: dict[str, int] | None = None,
    ) -> dict[str, str]:
        """Appends a node and gives what it writes: tensor -> value."""
        written = {tensor: f"{name}.{tensor}" for tensor in writes}
        sources = {
            tensor: (Source(value=read),) if isinstance(read, str) else tuple(read) for tensor, read in reads.items()
        }
        self.nodes.append(
            Node(name=name, op=op, reads=sources, writes=written, weights=weights, axes=axes or {})
        )
        return written


def _once(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def _closure(start: set[str], pairs: Iterable[tuple[str, str]], *, both: bool = False) -> set[str]:
    """What can be reached from `start` along `pairs`, itself included."""
    neighbours: dict[str, set[str]] = {}
    for left, right in pairs:
        neighbours.setdefault(left, set()).add(right)
        if both:
            neighbours.setdefault(right, set()).add(left)
    reached, todo = set(start), list(start)
    while todo:
        for name in neighbours.get(todo.pop(), set()) - reached:
            reached.add(name)
            todo.append(name)
    return reached
