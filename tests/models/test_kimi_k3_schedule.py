"""The decode path's own view of the step against the contract's: graph, tensors, axes, fused ops, launch order."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import decoded
import pytest
import torch
from fasttrack import model_dir
from fasttrack.confinement.python_source import check_python
from fasttrack_models.kimi_k3 import factory, graph, parts, shape, tensors
from fasttrack_models.kimi_k3.dispatch import Directory
from fasttrack_models.kimi_k3.environment import Claim
from fasttrack_models.kimi_k3.schedule import NoKernel, schedule
from fasttrack_validation import contracts
from fasttrack_validation.contracts.base import TensorRole
from fasttrack_validation.contracts.grid import Span
from fasttrack_validation.contracts.kimi_k3.architecture import Architecture
from fasttrack_validation.contracts.kimi_k3.graph import step
from fasttrack_validation.contracts.kimi_k3.kda_decode import layout
from fasttrack_validation.contracts.kimi_k3.kda_verify import layout as verify_layout
from fasttrack_validation.contracts.kimi_k3.op import Layout
from fasttrack_validation.performance.directory import load
from fasttrack_validation.tensors import torch_dtype

MODEL = contracts.load("kimi_k3")
OF = Architecture.from_config()
PLACES = graph.step(shape.PUBLISHED).places
PARTS = parts.Parts(PLACES)
MANIFEST = model_dir.load("kimi_k3")


def test_the_shape_is_the_published_models():
    import json

    config = json.loads((Path(contracts.__file__).parent / "kimi_k3/config.json").read_text())["text_config"]
    assert shape.Shape.of(config) == shape.PUBLISHED == decoded.small_shape(OF)


@pytest.mark.parametrize("count", [1, 5], ids=["decode", "verify"])
@pytest.mark.parametrize("of", [OF, decoded.k3_weights.nano(), decoded.tiny()], ids=["published", "nano", "tiny"])
def test_the_walk_is_the_contracts_op_graph(of, count):
    theirs, own = step(of, tokens=count).nodes, graph.step(decoded.small_shape(of), count).places
    verified, others = ("kda_verify", "mla_verify"), ("kda_decode", "mla_core")
    assert {place.op for place in own} & {*verified, *others} == set(verified if count > 1 else others)
    assert [place.name for place in own] == list(theirs)
    for place in own:
        node = theirs[place.name]
        assert (place.op, place.weights, dict(place.axes), dict(place.writes)) == (
            node.op, node.weights, node.axes, node.writes
        )  # fmt: skip
        read = {tensor: [(s.value, str(s.via)) for s in sources] for tensor, sources in place.reads.items()}
        assert read == {tensor: [(s.value, str(s.via)) for s in sources] for tensor, sources in node.reads.items()}


@pytest.mark.parametrize("tp", [8, 16])
@pytest.mark.parametrize("op", MODEL.ops)
def test_weights_outputs_and_axes_are_those_of_the_contract(op, tp):
    """Axes follow from how the contract lays tensors out: odd rows, in a layout of its own."""
    contract = MODEL.op(op)
    found = [w for w in contract.workloads(held_out=True) if w.axes["tp"] == tp and not w.name.endswith("-all")]
    for workload in found[:3]:
        rows, rank = workload.axes["rows"], tensors.Rank(shape.PUBLISHED, tp)
        specs = {spec.name: spec for spec in contract.tensors(workload)}
        static = [name for name, spec in specs.items() if spec.role is TensorRole.STATIC]
        assert tensors.STATIC[op] == tuple(static)
        for name, spec in specs.items():
            if spec.role is TensorRole.OUTPUT:
                assert rank.output(op, name, rows) == (spec.shape, torch_dtype(spec.dtype))
        lying = {name: tensors.Layout(spec.shape, spec.strides) for name, spec in specs.items()}
        placed = ("blocks", "restart", *(["tokens"] if op == "mla_verify" else []))
        given = {name: workload.axes[name] for name in placed if name in workload.axes}
        own = tensors.axes(op, lying, rank, rows, given)
        expected = dict(workload.axes)
        if op == "experts":
            expected["experts"] = OF.moe.experts
        if given.get("blocks") == 0:
            # Nothing lies anywhere: any strides will do.
            own |= {name: expected[name] for name in ("block_stride", "block_row_stride")}
        if given.get("restart"):
            own["residual_stride"] = expected["residual_stride"]
        assert own == expected


FUSED = [
    "in_projection+kda_decode", "o_proj_residual+attn_res_norm", "attn_res_norm+in_projection+kda_decode",
    "attn_res_norm+in_projection+kda_decode+o_proj_residual+attn_res_norm", "dense_up+dense_down", "routing+experts",
    "routing+experts+shared_down", "routing+experts+shared_down+latent_up", "o_proj_residual+attn_res_norm+front",
    "attn_res_norm+in_projection+kda_decode+o_proj_residual+attn_res_norm+front",
    "attn_res_norm+mla_projection+mla_query+mla_core+mla_value+o_proj_residual+attn_res_norm+front",
]  # fmt: skip


@pytest.mark.parametrize("op", FUSED)
def test_fused_ops_name_tensors_and_axes_as_their_contract_does(op):
    contract = MODEL.op(op)
    runs = PARTS.found(op)
    assert runs
    own = PARTS.members(runs[0])
    assert [m.alias for m in own] == [m.alias for m in contract.members]
    for mine, theirs in zip(own, contract.members, strict=True):
        assert dict(mine.outer) == dict(theirs.outer)
        assert set(mine.inside) == set(theirs.inside)
    # An axis that an op has in a part alone says what another member's own axis says.
    each = [
        (member.alias, {name: value for name, value in contract._part(index, contract.workloads()[0]).axes.items()
                        if name not in member.contract.optional_axes})
        for index, member in enumerate(contract.members)
    ]  # fmt: skip
    axes = dict(contract.workloads()[0].axes)
    assert any(m.takes_columns for m in own) == ("rank" in axes)
    axes.pop("rank", None)
    assert parts.fused_axes(each) == axes


@pytest.mark.parametrize("op", FUSED)
def test_a_fused_op_is_bound_to_the_tensors_and_axes_of_its_contract(op):
    contract, seen = MODEL.op(op), {}
    at = next(w for w in contract.workloads() if w.axes["tp"] == 8 and w.axes["rows"] == 4)
    places = PARTS.found(op)[-1]  # with all banks, as in the workload
    specs = {spec.name: spec for spec in contract.tensors(at)}
    given = {
        f"{member.place.name}.{tensor}": torch.empty_strided(
            specs[name].shape, specs[name].strides, dtype=torch_dtype(specs[name].dtype), device="meta"
        )
        for member in PARTS.members(places) for tensor, name in member.outer.items()
    }  # fmt: skip

    def launch(context, buffers, axes, config):
        seen.update(axes=axes, shapes={name: tuple(tensor.shape) for name, tensor in buffers._asdict().items()})

    tables = {op: table(op), **{name: table(name) for name in MODEL.ops}}
    kernel = SimpleNamespace(launch=launch)
    bound = factory.part(
        [place.name for place in places], given, Directory((Claim("h200", 8, (1, 64), 1),), tables, lambda file: kernel), None,
        hardware="h200", tp=8, rows=4, rank=at.axes.get("rank", 0),
    )  # fmt: skip
    bound.run()
    assert bound.calls == ((op, "kernels/x.py"),)
    known = {name: value for name, value in at.axes.items() if name in seen["axes"]}
    assert seen["axes"] == known
    assert seen["shapes"] == {name: specs[name].shape for name in seen["shapes"]}
    assert set(seen["shapes"]) == set(specs)


def test_a_fused_op_replaces_only_places_that_are_wired_as_most_are():
    """Layers that begin a block restart the stream: there the residual is no input, and the members stay."""
    runs = PARTS.found("attn_res_norm+in_projection+kda_decode+o_proj_residual")
    layers = [run[0].layer for run in runs]
    assert layers == [n for n in shape.PUBLISHED.kda_layers if n % 12]


def table(op, tp=8, rows=(1, 64), kernel="kernels/x.py"):
    return ({"hardware": "h200", "tp": tp, "rows": list(rows), "kernel": kernel, "config": {"a": 1}, "basis": "modelled"},)


def directory(*fused: str, rows=(1, 64)) -> Directory:
    tables = {op: table(op) for op in MODEL.ops} | {op: table(op, rows=rows, kernel="kernels/fused.py") for op in fused}
    return Directory((Claim("h200", 8, (1, 64), 1),), tables, lambda file: None)


def of_layer(number):
    return tuple(place for place in PLACES if place.layer == number)


def test_the_shared_expert_starts_beside_routing_and_is_joined_at_the_end():
    calls = schedule(PLACES, of_layer(13), directory(), "h200", 8, 4)
    order = [(call.op, call.stream, call.waits) for call in calls]
    assert order[5:] == [
        ("front", "main", ()), ("shared_down", "shared", ()), ("routing", "main", ()), ("experts", "main", ()),
        ("latent_up", "main", ("shared",)),
    ]  # fmt: skip


def test_a_fused_op_takes_over_where_its_table_names_the_rows_and_the_longest_wins():
    front = "attn_res_norm+in_projection+kda_decode+o_proj_residual+attn_res_norm+front"
    back = "routing+experts+shared_down+latent_up"
    both = directory(front, back, "in_projection+kda_decode", rows=(1, 8))
    assert [call.op for call in schedule(PLACES, of_layer(13), both, "h200", 8, 8)] == [front, back]
    assert len(schedule(PLACES, of_layer(13), both, "h200", 8, 9)) == 10
    # A layer that begins a block has no such place, but a shorter part of it fits.
    assert [call.op for call in schedule(PLACES, of_layer(12), both, "h200", 8, 8)][1] == "in_projection+kda_decode"
    assert len(schedule(PLACES, PLACES, both, "h200", 8, 1)) < len(schedule(PLACES, PLACES, directory(), "h200", 8, 1))


def test_what_other_ranks_read_is_sent():
    sends = [value for call in schedule(PLACES, of_layer(13), directory(), "h200", 8, 4) for value in call.sends]
    assert sends == [
        "13.o_proj_residual.partial", "13.front.logits", "13.front.latent", "13.shared_down.partial",
        "13.experts.routed", "13.latent_up.stream",
    ]


def test_a_place_without_a_kernel_is_named():
    bare = replace(directory(), tables={**directory().tables, "front": table("front", rows=(1, 2))})
    with pytest.raises(NoKernel, match="front: no entry for h200, TP 8, 4 rows"):
        schedule(PLACES, of_layer(13), bare, "h200", 8, 4)


def test_every_place_of_the_envelope_has_a_kernel_in_the_shipped_tables():
    """Held to the reader of the lane: what the serving side chooses is what the table says."""
    _, shipped = load(MANIFEST.path)
    table_of = cache(MANIFEST.table)  # reads a file
    for claim in shipped.claims:
        for rows in (1, 3, 33):
            for call in schedule(PLACES, PLACES, shipped, claim.hardware, claim.tp, rows):
                entry = table_of(call.op).at(claim.hardware, claim.tp, rows)
                assert (call.kernel, call.config) == (entry.kernel, entry.config)


def test_steps_that_nobody_measured_are_the_stock_path_s_on_hardware_that_the_table_names():
    entries = ({"hardware": "h200", "tp": 8, "tokens": 1, "rows": 4}, {"hardware": "h200", "tp": 8, "tokens": 8, "rows": 0})
    found = Directory((), {}, lambda file: None, {}, entries)
    assert found.faster_up_to("h200", 8) == {1: 4, 8: 0} and found.faster_up_to("h200", 16) == {}
    assert found.faster_up_to("gb300", 8) is None, "nothing is known of this hardware"


def test_the_shipped_table_is_what_the_lane_reads():
    _, shipped = load(MANIFEST.path)
    for entry in MANIFEST.faster().entry:
        assert shipped.faster_up_to(entry.hardware, entry.tp)[entry.tokens] == entry.rows


def test_the_manifest_lists_every_file_of_the_decode_path():
    found = {path.name for path in MANIFEST.path.glob("*.py")} - {"__init__.py"}
    assert set(MANIFEST.manifest.decode.sources) == found and MANIFEST.manifest.decode.factory in found


def test_the_decode_path_says_nothing_that_a_proposal_may_not():
    for name in MANIFEST.manifest.decode.sources:
        assert list(check_python(name, (MANIFEST.path / name).read_text())) == []


@pytest.mark.parametrize("op", MODEL.ops)
def test_repacked_weights_do_not_depend_on_rows(op):
    """They are shared by all row counts that have the same configuration."""
    module = decoded.kernel(f"kernels/{op}.py")
    if not hasattr(module, "prepare"):
        pytest.skip("repacks nothing")
    of = decoded.tiny()
    contract = type(MODEL.op(op))(of, MODEL.op(op).policy)
    config = dict(decoded.directory(of).tables[op][0]["config"])
    if op == "kda_decode":
        workload = layout.workload(of.kda_shard(2), "w", 1)
    elif op == "kda_verify":
        workload = verify_layout.workload(of.kda_shard(2), "w", 1, 1)
    else:
        workload = contract.at(2, 1, Layout(), "w")
    inputs = contract.make_inputs(workload, "typical", 3)
    static = type("Static", (), {name: inputs[name] for name in tensors.STATIC[op]})
    one, many = (module.prepare(None, static, {**workload.axes, "rows": rows}, config) for rows in (1, 64))
    assert set(one) == set(many)
    for name in one:
        assert torch.equal(one[name], many[name]), name


def test_the_grid_measures_layers_that_the_schedule_has():
    for spec in MODEL.grid.cells("h200"):
        if spec.span is Span.LAYER:
            assert set(MODEL.grid.ops(spec)) <= set(MANIFEST.manifest.ops)
