"""A part of the op graph as one exam: its outer tensors, oracle and plain path by a second way, its refusals."""

import op_exam
import pytest
import torch
from fasttrack_validation import contracts
from fasttrack_validation.contracts.base import TensorRole
from fasttrack_validation.contracts.kimi_k3.architecture import NANO, Architecture
from fasttrack_validation.contracts.kimi_k3.layers import LAYERS
from fasttrack_validation.contracts.kimi_k3.op import Layout
from fasttrack_validation.contracts.kimi_k3.connected import Part
from fasttrack_validation.contracts.kimi_k3.part import subgraph
from fasttrack_validation.errors import UserError
from fasttrack_validation.judge.sanity import check_task
from fasttrack_validation.judge.verdict import Outcome

OPS = {name: op_exam.nano(name) for name in op_exam.REAL.ops }
MIX = "o_proj_residual+attn_res_norm"
NORM = "attn_res_norm+in_projection"
KDA = "in_projection+kda_decode"
VERIFY = KDA.replace("decode", "verify")
FRONT_HALF = "attn_res_norm+in_projection+kda_decode+o_proj_residual+attn_res_norm+front"
VERIFY_HALF = FRONT_HALF.replace("decode", "verify")


def nano(name):
    return subgraph(Architecture.from_config(NANO), OPS, name)


def at(part, rows, tp=8):
    return next(w for w in part.workloads() if (w.axes["tp"], w.axes["rows"]) == (tp, rows))


def roles(part, rows=4):
    return {spec.name: spec.role.value for spec in part.tensors(at(part, rows))}


def test_what_is_inside_has_no_name_outside():
    # The stream goes on to the next sublayer, so it leaves; both ops call their input x, so those are told apart.
    assert roles(nano(MIX)) == {
        "o_proj": "static", "o_proj_residual_x": "input", "peers": "input", "residual": "input",
        "partial": "output", "stream": "output", "res_norm": "static", "res_proj": "static", "out_norm": "static",
        "blocks": "input", "attn_res_norm_x": "output",
    }  # fmt: skip
    # The normed row goes nowhere else.
    assert roles(nano(NORM)) == {
        "res_norm": "static", "res_proj": "static", "out_norm": "static", "stream": "input", "blocks": "input",
        "in_proj": "static", "projected": "output",
    }  # fmt: skip
    assert roles(nano(KDA)) == {
        "in_proj": "static", "x": "input", "f_b": "static", "conv_weight": "static", "a_log": "static",
        "dt_bias": "static", "o_norm": "static", "slots": "input", "conv_state": "state", "recurrent_state": "state",
        "out": "output",
    }  # fmt: skip


def test_a_value_that_two_ops_read_is_one_tensor():
    part = nano("attn_res_norm+in_projection+kda_decode+o_proj_residual")
    given = roles(part)
    # The stream is mixed, and added to again at the end: one input; the output of the same name is another.
    assert given["attn_res_norm_stream"] == "input" and given["o_proj_residual_stream"] == "output"
    assert "residual" not in given and "x" not in given and "projected" not in given and "out" not in given


def by_hand(inputs, rounded):
    """residual + sum over ranks, then the softmax mix and its norm, from the equations."""

    def stored(x):
        return x.bfloat16().to(x.dtype) if rounded else x

    wide = torch.float32 if rounded else torch.float64
    v = {name: value.to(wide) for name, value in inputs.items()}
    partial = stored(v["o_proj_residual_x"] @ v["o_proj"].T)
    total = stored(partial + v["peers"].sum(0))
    stream = stored(total + v["residual"])
    sources = [*v["blocks"], stream]
    query = v["res_norm"] * v["res_proj"]
    logits = torch.stack([(s @ query) / (s.square().mean(-1) + 1e-5).sqrt() for s in sources])
    h = stored(sum(w[:, None] * s for w, s in zip(logits.softmax(0), sources, strict=True)))
    x = stored(stored(h / (h.square().mean(-1, keepdim=True) + 1e-5).sqrt()) * v["out_norm"])
    return {"partial": partial, "stream": stream, "attn_res_norm_x": x}


def test_the_oracle_rounds_nothing_in_between():
    part = nano(MIX)
    workload = at(part, 4)
    inputs = part.make_inputs(workload, "typical", 1)
    found, expected = part.oracle(inputs, workload), by_hand(inputs, rounded=False)
    assert set(found) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-11, atol=1e-11)


def test_the_plain_path_rounds_as_published():
    part = nano(MIX)
    workload = at(part, 4)
    inputs = part.make_inputs(workload, "typical", 2)
    found, expected = part.plain(inputs, workload), by_hand(inputs, rounded=True)
    for name, value in expected.items():
        assert found[name].dtype == torch.bfloat16
        # Sums in another order tip a value next to a boundary now and then, by one unit in the last place.
        same = found[name] == value.bfloat16()
        assert same.float().mean() > 0.97, name
        torch.testing.assert_close(found[name].float(), value, rtol=2.0**-6, atol=2.0**-6)
    wide = part.oracle(inputs, workload)["stream"]
    assert (found["stream"].double() - wide).abs().max() > 1e-4, "the two differ by the roundings"


def test_the_cost_leaves_out_what_is_inside():
    part = nano(MIX)
    cost = part.cost(at(part, 4))
    # d 128, p 64 channels at TP8, 4 rows, 7 peers, 3 banks (13 layers, 5 a block); bf16. The stream is written (it
    # leaves), not read again.
    d, p, rows, peers, banks = 128, 64, 4, 7, 3
    assert cost.bytes_read == 2 * (d * p + rows * p + peers * rows * d + rows * d + 3 * d + banks * rows * d)
    assert cost.bytes_written == 2 * (rows * d + rows * d + rows * d)
    apart = [OPS[name].cost(workload(OPS[name], 4)) for name in MIX.split("+")]
    assert cost.flops == sum(one.flops for one in apart)
    norm = nano(NORM)
    width = norm.tensors(at(norm, 4))[-1].shape[1]
    assert norm.cost(at(norm, 4)).bytes_written == 2 * rows * width


def workload(op, rows, tp=8):
    return next(w for w in op.workloads() if (w.axes["tp"], w.axes["rows"]) == (tp, rows))


@pytest.mark.parametrize("name", [MIX, NORM, KDA])
def test_varied_layouts_agree_on_the_rows(name):
    part = nano(name)
    seen = set()
    for seed in range(12):
        varied = part.vary(at(part, 8), seed)
        rows = varied.axes["rows"]
        assert 4 < rows <= 8 and varied.axes["tp"] == 8
        seen.add(rows)
        inputs = part.make_inputs(varied, "typical", seed)
        for spec in part.tensors(varied):
            if spec.role is not TensorRole.OUTPUT:
                assert tuple(inputs[spec.name].shape) == spec.shape
            if spec.name in ("x", "o_proj_residual_x", "peers", "out", "projected"):
                assert spec.shape[-2] == rows
        assert set(part.oracle(inputs, varied)) == set(part.produced)
    assert len(seen) > 1


@pytest.mark.parametrize("name", [MIX, NORM, KDA])
def test_a_redrawn_row_changes_that_row_alone(name):
    part = nano(name)
    workload = at(part, 4)
    inputs = part.make_inputs(workload, "typical", 3)
    changed = part.perturb_row(inputs, workload, 2, 4)
    before, after = part.oracle(inputs, workload), part.oracle(changed, workload)
    for tensor in part.produced:
        differs = (before[tensor].double() != after[tensor].double()).flatten(1).any(1)
        rest = (0,) * (before[tensor].dim() - 1)
        owners = {part.row_of(tensor, (index, *rest), inputs) for index in differs.nonzero().flatten().tolist()}
        assert owners == {2}, tensor


@pytest.mark.parametrize("name", [MIX, NORM, KDA, VERIFY, VERIFY_HALF])
def test_the_exam_is_sane(name):
    result = check_task(nano(name), at(nano(name), 4), 7)
    assert result.outcome is Outcome.PASS, result.message


# A step to verify: requests have several rows, which depend on each other


@pytest.mark.parametrize("name", [VERIFY, VERIFY_HALF])
def test_a_redrawn_request_changes_that_request_alone(name):
    part = nano(name)
    workload = at(part, 16)
    assert workload.axes["tokens"] == 8
    inputs = part.make_inputs(workload, "typical", 3)
    changed = part.perturb_row(inputs, workload, 1, 4)
    before, after = part.oracle(inputs, workload), part.oracle(changed, workload)
    for tensor in part.produced:
        differs = (before[tensor].double() != after[tensor].double()).flatten(1).any(1).nonzero().flatten().tolist()
        rest = (0,) * (before[tensor].dim() - 1)
        assert {part.row_of(tensor, (index, *rest), inputs) for index in differs} == {1}, tensor
        assert len(differs) == 8, (tensor, "every token of it, and a page behind each")
    # There is no third one.
    nobody = part.perturb_row(inputs, workload, 2, 4)
    assert all(torch.equal(nobody[tensor], inputs[tensor]) for tensor in inputs)


def test_rows_belong_to_their_request_and_pages_to_who_writes_them():
    part = nano(VERIFY_HALF)
    inputs = part.make_inputs(at(part, 16), "typical", 3)
    assert [part.row_of("partial", (row, 0), inputs) for row in (0, 7, 8, 15)] == [0, 0, 1, 1]
    for request, pages in enumerate(inputs["slots"].tolist()):
        owners = [part.row_of("recurrent_state", (page, 0, 0, 0), inputs) for page in pages]
        assert owners == [None, *[request] * 8], "the page that is read keeps every bit"


def test_tokens_to_verify_are_single_steps_of_the_part():
    """The part with `kda_decode`, a token at a time in float64, on the pages that the one before it left."""
    part, single = nano(VERIFY), nano(KDA)
    workload = at(part, 8)
    inputs = part.make_inputs(workload, "typical", 5)
    exact = part.oracle(inputs, workload)
    one = single.joined("one", [OPS["in_projection"].at(8, 1, Layout(), "p"), at(OPS["kda_decode"], 1)])
    one = one.model_copy(update={"axes": {**one.axes, "slots": workload.axes["slots"]}})
    (pages,) = inputs["slots"].tolist()
    # What enters the window is rounded, by the oracle as well: the page is bfloat16.
    state = {"conv_state": inputs["conv_state"].clone(), "recurrent_state": inputs["recurrent_state"].double()}
    for token in range(8):
        mine = {**inputs, **state, "x": inputs["x"][token : token + 1], "slots": torch.tensor(pages[:1], dtype=torch.int32)}
        left = single.oracle(mine, one)
        assert torch.allclose(left["out"], exact["out"][token : token + 1], rtol=1e-12, atol=1e-15)
        for name in state:
            state[name][pages[0]] = left[name][pages[0]]
            assert torch.allclose(exact[name][pages[1 + token]].double(), state[name][pages[0]].double(), rtol=1e-12, atol=1e-15)


def test_distributions_of_every_op_take_part():
    part = nano(MIX)
    names = list(part.distributions)
    assert names[0] == "typical" and "o_proj_residual_cancelling" in names and "attn_res_norm_padded" in names
    workload = at(part, 4)
    for name in names:
        inputs = part.make_inputs(workload, name, 5)
        oracle, plain = part.oracle(inputs, workload), part.plain(inputs, workload)
        assert all(torch.equal(plain[t].isfinite(), oracle[t].isfinite()) for t in part.produced), name


def test_what_was_exact_alone_is_calibrated_where_it_is_computed():
    kinds = {c.tensor: c.kind for c in nano(KDA).comparisons}
    assert kinds == {"conv_state": "calibrated", "recurrent_state": "calibrated", "out": "calibrated"}
    assert {c.tensor: c.kind for c in OPS["kda_decode"].comparisons}["conv_state"] == "exact"


def test_pools_of_a_member_can_be_far_away():
    part = nano(KDA)
    far = part.far(at(part, 4))
    assert far.pages == "slots" and set(far.pools) == {"conv_state", "recurrent_state"}
    assert far.workload.axes["slots"] == at(part, 4).axes["slots"] + far.shift
    assert nano(MIX).far(at(nano(MIX), 4)) is None


def test_a_value_left_out_is_among_the_known_mistakes():
    part = nano(MIX)
    workload = at(part, 4)
    inputs = part.make_inputs(workload, "typical", 6)
    wrong = part.hypotheses["what o_proj_residual leaves in stream has no effect"](inputs, workload)
    right = part.oracle(inputs, workload)
    assert torch.equal(wrong["stream"], right["stream"])
    v = {name: value.double() for name, value in inputs.items()}
    # The mix of the banks and of a stream of zeros, whose logit is zero.
    query = v["res_norm"] * v["res_proj"]
    logits = torch.stack(
        [(s @ query) / (s.square().mean(-1) + 1e-5).sqrt() for s in v["blocks"]] + [torch.zeros(4).double()]
    )
    h = sum(w[:, None] * s for w, s in zip(logits.softmax(0), v["blocks"], strict=False))
    x = h / (h.square().mean(-1, keepdim=True) + 1e-5).sqrt() * v["out_norm"]
    torch.testing.assert_close(wrong["attn_res_norm_x"], x, rtol=1e-11, atol=1e-11)
    assert any(name.startswith("attn_res_norm: the mix is not normalised") for name in part.hypotheses)


REFUSED = {
    "front+nothing": ("no op of kimi_k3 is called 'nothing'", "known: "),
    "front+": ("no op of kimi_k3 is called ''", "o_proj_residual+attn_res_norm"),
    "in_projection+experts": ("connected nowhere", "in_projection reads from attn_res_norm, is read by kda_decode"),
    "front+latent_up": ("connected nowhere", "latent_up reads from experts, o_proj_residual, shared_down"),
    "front+front": ("connected nowhere", "front reads from attn_res_norm"),
    "mla_projection+mla_value": ("lies between", "add it"),
    "+".join(["attn_res_norm", "in_projection"] * 7): ("2 to 12 ops", "known"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_parts_that_cannot_be_judged_are_refused_with_the_reason(name):
    what, how = REFUSED[name]
    with pytest.raises(UserError) as caught:
        nano(name)
    assert what in str(caught.value) and how in str(caught.value)


class Unsettled(Part):
    """A part that routes, without the planted choice."""


def test_an_exact_integer_behind_sums_is_refused_where_nothing_settles_it():
    part = nano("front+routing")
    with pytest.raises(UserError, match="ids is exact, and here it would depend on sums"):
        Unsettled(part.op, part.graph, part.nodes, part.members, OPS)


def test_members_that_share_a_tensor_agree_on_its_shape_in_every_layout():
    part = nano(FRONT_HALF)
    for seed in range(40):
        varied = part.vary(at(part, 8), seed)
        assert varied.axes["attn_res_norm_1_blocks"] == varied.axes["attn_res_norm_2_blocks"]
        part.tensors(varied)  # raises where two of them disagree


def test_attention_over_pages_is_one_part_with_the_longer_table():
    part = nano("mla_query+mla_core+mla_value")
    given = roles(part)
    assert given["cache"] == "state" and given["projected"] == "input" and "query" not in given
    workload = at(part, 4)
    core = next(w for w in OPS["mla_core"].workloads() if (w.axes["tp"], w.axes["rows"]) == (8, 4))
    for axis in ("page_size", "table_width", "pages"):
        assert workload.axes[f"mla_query_{axis}"] == workload.axes[f"mla_core_{axis}"] == core.axes[axis]
    inputs = part.make_inputs(workload, "typical", 3)
    # Each op leaves columns of the projection alone; the part reads all of them. Nobody may read behind a length.
    assert inputs["projected"].isfinite().all() and inputs["cache"].isnan().any()
    seen = inputs["cache"].clone()
    oracle = part.oracle(inputs, workload)
    newest = 0
    for row, length in enumerate(inputs["lengths"].tolist()):
        size = seen.shape[1]
        page, place = int(inputs["page_table"][row, (length - 1) // size]), (length - 1) % size
        newest += int((oracle["cache"][page, place] != seen[page, place].double()).any())
    assert newest == 4 and oracle["out"].isfinite().all()


@pytest.mark.parametrize("name", ["mla_query+mla_core", "mla_query+mla_core+mla_value"])
def test_pages_that_nobody_owns_are_held_bit_for_bit_by_an_honest_path(name):
    part = nano(name)
    assert check_task(part, at(part, 4), 3).outcome is Outcome.PASS
    workload = at(part, 4)
    inputs = part.make_inputs(workload, "typical", 3)
    got = part.plain(inputs, workload)
    assert not op_exam.failures(part, workload, inputs, got)
    got["cache"].view(torch.int16)[0, 0, 0] ^= 1  # one bit of a NaN in the null page
    assert "no live row owns it" in op_exam.failures(part, workload, inputs, got)[0]


def test_a_part_has_an_exam_of_its_own():
    part = op_exam.REAL.op(MIX)
    assert part.op == MIX and at(part, 1).name == "tp8-b1"
    files = contracts.contract_files("kimi_k3", MIX)
    assert {"contracts/joined.py", "contracts/kimi_k3/connected.py", "contracts/kimi_k3/choice.py"} <= set(files)
    assert {"contracts/subgraph.py", "contracts/kimi_k3/part.py", "contracts/kimi_k3/graph.py"} <= set(files)
    for name in MIX.split("+"):
        assert set(contracts.contract_files("kimi_k3", name)) < set(files)
    digests = {contracts.contract_digest("kimi_k3", name) for name in (MIX, NORM, *MIX.split("+"))}
    assert len(digests) == 4
    assert not any("subgraph" in file for file in contracts.contract_files("kimi_k3", "attn_res_norm"))


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_a_part_and_is_all_of_a_layer(name):
    part = nano(name)
    graph, numbers = part.graph, {node.name.partition(".")[0] for node in part.nodes}
    assert [node.name for node in part.nodes] == list(graph.layer(int(*numbers)))
    assert check_task(part, at(part, 4), 5).outcome is Outcome.PASS
    assert contracts.contract_digest("kimi_k3", name) == contracts.contract_digest("kimi_k3", "+".join(LAYERS[name]))
    inputs = part.make_inputs(at(part, 4), "typical", 5)
    assert not op_exam.failures(part, at(part, 4), inputs, part.plain(inputs, at(part, 4)))
    other = {**part.hypotheses}["what o_proj_residual leaves in stream has no effect"](inputs, at(part, 4))
    assert op_exam.failures(part, at(part, 4), inputs, other)


def test_a_rank_reads_its_own_columns_of_the_stream_inside():
    part = nano("layer:kda")
    assert at(part, 4).axes["rank"] == 4 and {part.vary(at(part, 4), seed).axes["rank"] for seed in range(60)} == {*range(8)}
    workload = at(part, 4)
    inputs = part.make_inputs(workload, "typical", 5)
    ends = {}
    for rank in range(8):
        moved = workload.model_copy(update={"axes": workload.axes | {"rank": rank}})
        ends[rank] = part.oracle(inputs, moved)["latent_up_stream"]
    # The rest of the sum is the same for each; what differs are the columns of the stream after attention.
    stream = part._written(inputs, workload, lambda _, m: m.contract.oracle)[3]["stream"]
    for rank in range(8):
        columns = stream[:, 16 * rank : 16 * rank + 16] - stream[:, :16]
        torch.testing.assert_close(ends[rank] - ends[0], columns, rtol=1e-9, atol=1e-9)


def test_a_dense_layer_is_a_part():
    """Layer 0 as far as the graph goes: what other ranks send is given, twice."""
    part = nano("layer:dense")
    given = roles(part)
    assert {name for name, role in given.items() if role == "input"} >= {
        "slots",
        "o_proj_residual_peers",
        "dense_down_peers",
    }
    workload = at(part, 2)
    inputs = part.make_inputs(workload, "typical", 1)
    assert set(part.oracle(inputs, workload)) == set(part.plain(inputs, workload)) == set(part.produced)
