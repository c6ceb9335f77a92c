import pytest
import torch
from fasttrack_validation import contracts
from fasttrack_validation.contracts.kimi_k3.kda_decode import layout
from fasttrack_validation.errors import UserError
from fasttrack_validation.tensors import torch_dtype


@pytest.fixture(scope="module")
def op():
    return contracts.load("kimi_k3").op("kda_decode")


def tensor(op, workload, name):
    return next(spec for spec in op.tensors(workload) if spec.name == name)


def test_workloads_cover_every_tp_and_bucket(op):
    assert [w.name for w in op.workloads()] == [f"tp{tp}-b{b}" for tp in (8, 16) for b in (1, 2, 4, 8, 16, 32, 64)]
    assert not any(w.held_out for w in op.workloads())
    held_out = op.workloads(held_out=True)
    assert all(w.held_out for w in held_out)
    assert {w.axes["rows"] for w in held_out} == {1, 3, 7, 13, 29, 61}
    axes = [tuple(w.axes.values()) for w in (*op.workloads(), *held_out)]
    assert len(set(axes)) == len(axes)


def test_shapes_at_tp8(op):
    workload = next(w for w in op.workloads() if w.name == "tp8-b4")
    assert {spec.name: (str(spec.dtype), spec.role.value, spec.shape) for spec in op.tensors(workload)} == {
        "f_b": ("bf16", "static", (1536, 128)),
        "conv_weight": ("fp32", "static", (4608, 4)),
        "a_log": ("fp32", "static", (12,)),
        "dt_bias": ("fp32", "static", (1536,)),
        "o_norm": ("bf16", "static", (128,)),
        "projected": ("bf16", "input", (4, 6288)),
        "slots": ("i32", "input", (4,)),
        "conv_state": ("bf16", "state", (9, 3, 4608)),
        "recurrent_state": ("fp32", "state", (9, 12, 128, 128)),
        "out": ("bf16", "output", (4, 1536)),
    }


def test_pages_never_lie_side_by_side_and_stay_aligned(op):
    for workload in (*op.workloads(), *op.workloads(held_out=True), *(op.vary(w, 1) for w in op.workloads())):
        assert workload.axes["slots"] > workload.axes["rows"]
        for name, page in (("conv_state", 9 * 12288), ("recurrent_state", 96 * 128**2)):
            spec = tensor(op, workload, name)
            assert spec.strides[0] > page // workload.axes["tp"]
        for spec in op.tensors(workload):
            if len(spec.shape) > 1:
                assert spec.strides[0] * spec.dtype.bytes % 16 == 0 and spec.strides[-1] == 1


def test_vary_stays_in_the_bucket_and_moves_everything(op):
    buckets = (0, 1, 2, 4, 8, 16, 32, 64)
    for base in op.workloads():
        varied = [op.vary(base, seed) for seed in range(12)]
        bucket = base.axes["rows"]
        below = buckets[buckets.index(bucket) - 1]
        assert all(below < w.axes["rows"] <= bucket and w.axes["tp"] == base.axes["tp"] for w in varied)
        assert varied[3] == op.vary(base, 3)
        for axis in ("slots", "projected_stride", "conv_page_stride", "state_page_stride", "slots_stride"):
            assert len({w.axes[axis] for w in varied}) > 1, axis
        if bucket > 4:
            rows = {w.axes["rows"] for w in varied}
            assert bucket not in rows and {n % 2 for n in rows} == {0, 1}


def test_far_pages_need_64_bit_offsets(op):
    for tp in (8, 16):
        workload = layout.far(op.architecture.kda_shard(tp))
        for name in ("conv_state", "recurrent_state"):
            spec = tensor(op, workload, name)
            assert 2 * spec.strides[0] > 2**31 > spec.strides[0]
            assert spec.strides[0] * spec.dtype.bytes % 16 == 0


def test_inputs_have_the_shapes_and_types_of_the_contract(op):
    workload = op.vary(op.workloads()[2], 4)
    specs = {spec.name: spec for spec in op.tensors(workload)}
    for distribution in op.distributions:
        inputs = op.make_inputs(workload, distribution, 1)
        assert set(inputs) == set(specs) - {"out"}
        for name, value in inputs.items():
            assert value.shape == specs[name].shape and value.dtype == torch_dtype(specs[name].dtype), name
            assert value.is_contiguous()
        slots = inputs["slots"][inputs["slots"] > 0]
        assert len(set(slots.tolist())) == len(slots) and slots.max() < workload.axes["slots"]
        again = op.make_inputs(workload, distribution, 1)
        other = op.make_inputs(workload, distribution, 2)
        assert all(torch.equal(inputs[n].nan_to_num(), again[n].nan_to_num()) for n in inputs)
        assert not torch.equal(inputs["recurrent_state"], other["recurrent_state"])


def test_rows_own_their_pages(op):
    inputs = {"slots": torch.tensor([5, 0, 2, -1], dtype=torch.int32)}
    assert [op.row_of("out", (row, 7), inputs) for row in range(4)] == [0, None, 2, None]
    for name in ("conv_state", "recurrent_state"):
        assert [op.row_of(name, (slot, 0, 0), inputs) for slot in range(7)] == [None, None, 2, None, None, 0, None]
    with pytest.raises(UserError, match="does not produce 'projected'"):
        op.row_of("projected", (0, 0), inputs)


def test_perturbing_a_row_touches_nothing_that_another_reads(op):
    workload = next(w for w in op.workloads() if w.name == "tp16-b4")
    inputs = op.make_inputs(workload, "typical", 3)
    inputs["slots"][1] = 0
    for row in range(4):
        changed = op.perturb_row(inputs, workload, row, 9)
        slot = int(inputs["slots"][row])
        moved = {name: (inputs[name] != changed[name]).flatten(1).any(1).nonzero().flatten().tolist()
                 for name in ("projected", "conv_state", "recurrent_state")}  # fmt: skip
        # NaN padding columns differ from themselves in every row.
        columns = op.architecture.kda_shard(16).columns["pad"].start
        differs = (inputs["projected"] != changed["projected"])[:, :columns].any(1)
        moved["projected"] = differs.nonzero().flatten().tolist()
        page = [slot] if slot > 0 else []
        assert moved == {"projected": [row], "conv_state": page, "recurrent_state": page}
        assert all(torch.equal(inputs[n], changed[n]) for n in ("slots", "f_b", "conv_weight", "a_log", "dt_bias"))
        before, after = op.oracle(inputs, workload), op.oracle(changed, workload)
        others = [r for r in range(4) if r != row]
        assert torch.equal(before["out"][others], after["out"][others])


def test_cost_by_hand(op):
    # TP8, one row: state 12 x 64 KiB each way; window 3 x 4608 bf16 each way; row 6284 bf16; slot 4 B;
    # output 1536 bf16; weights 1536 x 128 bf16 + 4608 x 4 f32 + 12 f32 + 1536 f32 + 128 bf16.
    weights = 393_216 + 73_728 + 48 + 6_144 + 256
    cost = op.cost(op.workloads()[0])
    assert cost.bytes_read == weights + 786_432 + 27_648 + 12_568 + 4
    assert cost.bytes_written == 786_432 + 27_648 + 3_072
    assert cost.flops == 12 * 9 * 16_384
    four = op.cost(op.workloads()[2])
    assert four.bytes_read - weights == 4 * (cost.bytes_read - weights)
    assert four.bytes_written == 4 * cost.bytes_written
