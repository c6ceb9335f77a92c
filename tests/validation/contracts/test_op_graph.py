"""The graph of ops is the model: its oracles, one after the other, give what the whole step gives."""

from functools import cache

import graph_run
import k3_weights
import pytest
import torch
from fasttrack_validation import contracts
from fasttrack_validation.contracts.kimi_k3 import graph as op_graph
from fasttrack_validation.contracts.kimi_k3.graph import EMBEDDING, LOGITS, Via
from fasttrack_validation.contracts.kimi_k3.step.model import Model
from fasttrack_validation.contracts.kimi_k3.step.precision import EXACT
from fasttrack_validation.contracts.kimi_k3.step.state import Batch
from fasttrack_validation.contracts.kimi_k3.step.unpack import unpack
from fasttrack_validation.errors import UserError

NANO = k3_weights.nano()
NANO_GRAPH = op_graph.step(NANO)
REAL = op_graph.step(contracts.load("kimi_k3").architecture)


@cache
def walked(tp: int):
    """Three requests after prompts of 3, 4 and 9 tokens: by the step, layer by layer, and along the graph."""
    weights = [unpack(rank, EXACT) for rank in k3_weights.shard_model(k3_weights.nano_weights(), NANO, tp)]
    model = Model(NANO, weights, EXACT)
    state = model.new_state(3, 16, page_size=4)
    prompts = (3, 4, 9)
    for request, count in enumerate(prompts):
        model.prefill(Batch(k3_weights.tokens(NANO, count, seed=request), (request,), (count,)), state)
    batch = Batch(k3_weights.tokens(NANO, 3, seed=7), (0, 1, 2), (1, 1, 1))
    given = []
    for caches in state.ranks:
        values = {
            EMBEDDING: weights[0].embedding[batch.tokens].double(),
            "slots": state.slots[:, 0].int(),
            "page_table": state.pages.int(),
            "lengths": torch.tensor(prompts, dtype=torch.int32) + 1,
        }
        for layer, kept in caches.items():
            if layer in NANO.kda_layers:
                values |= {
                    f"{layer}.conv_state": kept.conv.clone(), f"{layer}.recurrent_state": kept.recurrent.clone()
                }  # fmt: skip
            else:
                values[f"{layer}.cache"] = kept.rows.clone()
        given.append(values)
    attention, stream, streams = model.decoding(batch, state), model.embed(batch.tokens), []
    for layer in range(NANO.layers):
        model.layer(layer, stream, [rank.layers[layer] for rank in weights], attention)
        streams.append(stream.prefix)
    return streams, model.head(stream), state, graph_run.walk(NANO_GRAPH, NANO, weights, given)


def close(left, right):
    torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("layer", range(13))
def test_the_ops_of_a_layer_are_the_layer(tp, layer):
    """Layer 0 is KDA and dense; 3, 7, 11 and 12 are MLA and MoE; the others KDA and MoE. Blocks begin at 0, 5, 10."""
    streams, _, _, ranks = walked(tp)
    last = NANO_GRAPH.nodes[NANO_GRAPH.layer(layer)[-1]]
    split = last.op == "latent_up"
    stream = [rank[last.writes["stream"]] for rank in ranks]
    for whole in [torch.cat(stream, 1)] if split else stream:
        close(whole, streams[layer])


@pytest.mark.parametrize("tp", [1, 2])
def test_the_ops_of_a_step_are_the_step(tp):
    _, logits, state, ranks = walked(tp)
    close(torch.cat([rank[LOGITS] for rank in ranks], 1), logits)
    first, second = state.slots[:, 0], state.slots[:, 1]
    for rank, caches in zip(ranks, state.ranks, strict=True):
        for layer, kept in caches.items():
            if layer in NANO.kda_layers:
                # The step leaves its candidate in the next slot; the op updates in place.
                close(rank[f"{layer}.kda_decode.conv_state"][first], kept.conv[second])
                close(rank[f"{layer}.kda_decode.recurrent_state"][first], kept.recurrent[second])
            else:
                close(rank[f"{layer}.mla_query.cache"], kept.rows)


def test_nodes_of_the_real_step():
    """By hand: 69 KDA and 24 MLA layers, one of them dense; two mixes a layer and a last one."""
    counts = {op: sum(node.op == op for node in REAL.nodes.values()) for op in contracts.load("kimi_k3").ops}
    assert counts == {
        "kda_decode": 69, "in_projection": 69, "mla_projection": 24, "mla_query": 24, "mla_core": 24, "mla_value": 24,
        "o_proj_residual": 93, "attn_res_norm": 187, "front": 92, "routing": 92, "experts": 92, "shared_down": 92,
        "latent_up": 92, "dense_up": 1, "dense_down": 1, "head": 1, "kda_verify": 0, "mla_verify": 0,
    }  # fmt: skip
    # A verify step differs in the two cores alone, and MLA's is told the tokens of a request.
    verify = [(node.op, node.axes) for node in op_graph.step(contracts.load("kimi_k3").architecture, tokens=3).nodes.values()]
    cores = {"kda_decode": ("kda_verify", {}), "mla_core": ("mla_verify", {"tokens": 3})}
    assert verify == [cores.get(node.op, (node.op, node.axes)) for node in REAL.nodes.values()]
    assert len(REAL.layer(1)) == 10 and len(REAL.layer(3)) == 12 and len(REAL.layer(0)) == 7
    restarts = [int(n.name.split(".")[0]) for n in REAL.nodes.values() if n.axes.get("restart")]
    assert restarts == [0, 12, 24, 36, 48, 60, 72, 84]
    blocks = {name: REAL.nodes[f"{name}_mix"].axes["blocks"] for name in ("0.attention", "0.mlp", "12.attention",
              "12.mlp", "92.mlp", "final")}  # fmt: skip
    assert blocks == {"0.attention": 0, "0.mlp": 1, "12.attention": 1, "12.mlp": 2, "92.mlp": 8, "final": 8}


def test_every_node_reads_and_writes_what_its_contract_names():
    model = contracts.load("kimi_k3")
    for node in REAL.nodes.values():
        op = model.op(node.op)
        workload = op.workloads()[0]
        workload = workload.model_copy(update={"axes": {**workload.axes, **node.axes}})
        by_role = {}
        for spec in op.tensors(workload):
            by_role.setdefault(spec.role.value, set()).add(spec.name)
        states = by_role.get("state", set())
        assert set(node.reads) == by_role["input"] | states, node.name
        assert set(node.writes) == by_role["output"] | states == set(op.produced), node.name


def test_the_router_with_the_experts():
    """What a fused route-and-compute kernel is judged on: logits in, this rank's latent sum out; ids stay inside."""
    part = REAL.interface(["5.routing", "5.experts"])
    assert part.inputs == ("5.front.logits", "5.front.latent")
    assert part.outputs == ("5.experts.routed",)
    assert part.received == ("5.front.logits", "5.front.latent"), "every rank has computed a part of them"
    whole = op_graph.step(contracts.load("kimi_k3").architecture, ("front",)).interface(["5.routing", "5.experts"])
    assert whole.inputs == part.inputs and whole.received == ()
    assert part.weights == ("layers.5.mlp",)


def test_an_output_projection_with_the_mix_behind_it():
    """Layer 12 begins a block: no residual, and the bank is the stream that layer 11 left."""
    part = REAL.interface(["12.mlp_mix", "12.o_proj_residual"])
    assert part.inputs == ("12.kda_decode.out", EMBEDDING, "11.latent_up.stream")
    # The partial sum is for the other ranks; the stream is read again by the layer's end and later mixes.
    assert part.outputs == ("12.o_proj_residual.partial", "12.o_proj_residual.stream", "12.mlp_mix.x")
    assert part.received == ("12.o_proj_residual.partial", "11.latent_up.stream")
    assert part.weights == ("layers.12.attention", "layers.12.mlp_mix")


def test_a_whole_mla_layer():
    part = REAL.interface(REAL.layer(3))
    assert part.inputs == ("2.latent_up.stream", EMBEDDING, "page_table", "lengths", "3.cache")
    assert part.outputs == ("3.mla_query.cache", "3.o_proj_residual.partial", "3.front.logits", "3.front.latent",
                            "3.experts.routed", "3.shared_down.partial", "3.latent_up.stream")  # fmt: skip
    assert part.received == ("2.latent_up.stream", "3.o_proj_residual.partial", "3.front.logits", "3.front.latent",
                             "3.experts.routed", "3.shared_down.partial")  # fmt: skip


def test_a_whole_layer_whose_weights_are_replicated():
    """What stock engines exchange of a layer: the projection's shares, the experts' and the shared expert's."""
    stock = op_graph.step(contracts.load("kimi_k3").architecture, ("front", "latent_up"))
    part = stock.interface(stock.layer(13))
    assert part.received == ("13.o_proj_residual.partial", "13.experts.routed", "13.shared_down.partial")
    assert part.inputs[0] == "12.latent_up.stream"
    assert stock.nodes["13.latent_up"].reads["shared"][0].via is Via.RANKS
    assert stock.nodes["13.front"].axes == {"shards": 1}


def test_the_whole_step_reads_what_is_given_and_leaves_what_lasts():
    part = REAL.interface(REAL.nodes)
    states = [f"{layer}.{name}" for layer in range(93) for name in
              (("cache",) if layer % 4 == 3 or layer == 92 else ("conv_state", "recurrent_state"))]  # fmt: skip
    assert set(part.inputs) == {EMBEDDING, "slots", "page_table", "lengths", *states}
    local = {edge.value for edge in REAL.edges}
    assert LOGITS in part.outputs
    assert all(value in REAL.results or value in part.received for value in part.outputs)
    assert not {"5.routing.ids", "5.front.shared"} & set(part.outputs) and "5.routing.ids" in local


@pytest.mark.parametrize(
    ("names", "what"),
    [
        (["5.routing", "6.shared_down"], "6.shared_down has no edge to 5.routing"),
        (["5.front", "5.experts", "5.latent_up", "5.shared_down"], "5.routing lies between"),
        (["5.attention_mix", "5.o_proj_residual"], "5.o_proj_residual has no edge to 5.attention_mix"),
        (["5.fronts"], "no node '5.fronts'"),
        ([], "needs a node"),
    ],
)
def test_a_part_that_no_kernel_could_be_is_refused(names, what):
    with pytest.raises(UserError, match=what):
        REAL.interface(names)


def test_edges_of_a_moe_layer():
    inside = {(edge.value, edge.consumer): edge.via for edge in REAL.edges if edge.producer.startswith("5.")}
    assert inside[("5.front.logits", "5.routing")] is inside[("5.front.latent", "5.experts")] is Via.GATHERED
    assert inside[("5.front.shared", "5.shared_down")] is Via.HERE
    assert {("5.routing", "5.experts"), ("5.experts", "5.shared_down")} <= set(REAL.beside)
    assert inside[("5.experts.routed", "5.latent_up")] is Via.RANKS
    assert inside[("5.shared_down.partial", "5.latent_up")] is Via.RANK_COLUMNS
    assert inside[("5.o_proj_residual.stream", "5.latent_up")] is Via.COLUMNS
    assert inside[("5.latent_up.stream", "6.attention_mix")] is Via.GATHERED
    assert ("5.o_proj_residual.partial", "5.o_proj_residual") not in inside


def test_a_layer_that_is_not_there():
    with pytest.raises(UserError, match="no layer 93"):
        REAL.layer(93)
