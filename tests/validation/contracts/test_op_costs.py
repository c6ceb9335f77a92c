"""Bytes and flops of every op at one place each, worked out by hand from the published shapes."""

import op_exam
import pytest
from fasttrack_validation.contracts.base import Cost

MB = 1_000_000


def cost(op, name):
    contract = op_exam.REAL.op(op)
    workloads = (*contract.workloads(), *contract.workloads(held_out=True))
    return contract.cost(next(workload for workload in workloads if workload.name == name))


@pytest.mark.parametrize(
    ("op", "name", "by_hand"),
    [
        # Three vectors, nine sources of two rows; out. Nine times six operations and four an element.
        ("attn_res_norm", "tp8-b2", Cost(bytes_read=14336 * 3 + 14336 * 18, bytes_written=14336 * 2,
                                         flops=2 * 7168 * 58)),
        # 4 * 1536 + 128 + 12 = 6284, padded to 6288.
        ("in_projection", "tp8-b1", Cost(bytes_read=2 * 6288 * 7168 + 14336, bytes_written=12576,
                                         flops=2 * 6288 * 7168)),
        # 4 * 768 + 128 + 6 = 3206, padded to 3216.
        ("in_projection", "tp16-b4", Cost(bytes_read=2 * 3216 * 7168 + 4 * 14336, bytes_written=4 * 6432,
                                          flops=8 * 3216 * 7168)),
        # 7 peers and the residual are read; the partial sum and the stream are written; 7 + 1 additions.
        ("o_proj_residual", "tp8-b1", Cost(bytes_read=2 * 7168 * 1536 + 3072 + 8 * 14336, bytes_written=28672,
                                           flops=2 * 7168 * 1536 + 8 * 7168)),
        # An eighth of 896 + 3584, and 2 * 768: 2096 rows of weights; logits are float32.
        ("front", "tp8-b1", Cost(bytes_read=2 * 7168 * 2097, bytes_written=448 + 896 + 1536,
                                 flops=2 * 2096 * 7168)),
        ("routing", "tp8-b4", Cost(bytes_read=3584 * 5, bytes_written=4 * 128, flops=4 * (5376 + 32))),
        # 16 of 896: 3 * 384 * 3584 elements at 17 / 32 bytes each.
        ("experts", "tp8-b1-all", Cost(bytes_read=16 * 4128768 * 17 // 32 + 7168 + 128, bytes_written=7168,
                                       flops=16 * (2 * 4128768 + 7168))),
        ("shared_down", "tp8-b1", Cost(bytes_read=2 * 7168 * 768 + 1536, bytes_written=14336, flops=2 * 7168 * 768)),
        # 896 columns of this rank; 8 ranks' latents and columns; 7 additions and the norm's 4 an element of the
        # latent; 7 + 2 additions an element of the stream.
        ("latent_up", "tp8-b1", Cost(bytes_read=7168 + 2 * 896 * 3584 + 8 * (7168 + 1792) + 1792, bytes_written=1792,
                                     flops=2 * 896 * 3584 + 11 * 3584 + 9 * 896)),
        # 1536 + 576 + 1536 = 3648.
        ("mla_projection", "tp8-b1", Cost(bytes_read=2 * 3648 * 7168 + 14336, bytes_written=7296,
                                          flops=2 * 3648 * 7168)),
        # 12 heads of 192 * 1536 and 128 * 512 weights; both norms; 2112 columns; a table entry and a length.
        ("mla_query", "tp8-b1", Cost(bytes_read=2 * 12 * (294912 + 65536) + 4096 + 4224 + 8,
                                     bytes_written=2 * 576 * 13, flops=2 * 12 * 360448 + 4 * 2048)),
        # 4096 tokens of 1152 bytes, 64 pages; 576 + 512 products a head and token.
        ("mla_core", "tp8-b1", Cost(bytes_read=4096 * 1152 + 12 * 1152 + 4 * 65, bytes_written=12 * 1024,
                                    flops=2 * 4096 * 12 * 1088)),
        ("mla_value", "tp8-b1", Cost(bytes_read=2 * (1536 * 512 + 12 * 512 + 1536), bytes_written=3072,
                                     flops=2 * 1536 * 512)),
        ("dense_up", "tp8-b1", Cost(bytes_read=2 * 8448 * 7168 + 14336, bytes_written=8448, flops=2 * 8448 * 7168)),
        ("dense_down", "tp8-b1", Cost(bytes_read=2 * 7168 * 4224 + 8448 + 8 * 14336, bytes_written=28672,
                                      flops=2 * 7168 * 4224 + 8 * 7168)),
        ("head", "tp8-b1", Cost(bytes_read=2 * 20480 * 7168 + 14336, bytes_written=40960, flops=2 * 20480 * 7168)),
    ],
)  # fmt: skip
def test_by_hand(op, name, by_hand):
    assert cost(op, name) == by_hand


@pytest.mark.parametrize(("tp", "megabytes"), [(8, 197), (16, 100)])
def test_a_kda_moe_layer_at_one_row_reads_what_is_published(tp, megabytes):
    """Weights, state and gather buffers of one layer of one rank: 253 MB at TP8 and 160 MB at TP16 with replicated router
    and latent down-projection, of 7168 x 4480 weights, of which a rank keeps its share."""
    names = ("attn_res_norm", "in_projection", "kda_decode", "o_proj_residual", "attn_res_norm", "front", "routing",
             "shared_down", "latent_up")  # fmt: skip
    total = sum(cost(name, f"tp{tp}-b1").bytes for name in names) + cost("experts", f"tp{tp}-b1-all").bytes
    assert abs(total - megabytes * MB) < 0.01 * megabytes * MB
    whole = op_exam.REAL.op("front").whole()
    there = next(w for w in whole.workloads() if w.name == f"tp{tp}-b1")
    replicated = total - cost("front", f"tp{tp}-b1").bytes + whole.cost(there).bytes
    assert replicated == pytest.approx({8: 253, 16: 160}[tp] * MB, rel=0.01)


def test_experts_that_several_rows_meet():
    """Half of the experts are chosen by one row when k = E / 2; a second row meets half of the rest."""
    op = op_exam.REAL.op("experts")
    workload = op.at(8, 2, op_exam.Layout(), "two")
    halved = workload.model_copy(update={"axes": {**workload.axes, "experts": 32}})
    assert op.expected_experts(halved) == 24
    assert op.expected_experts(halved.model_copy(update={"axes": {**halved.axes, "rows": 1}})) == 16


def test_a_stream_that_restarts_reads_no_residual():
    op = op_exam.REAL.op("o_proj_residual")
    going = op.workloads()[0]
    restart = going.model_copy(update={"axes": {**going.axes, "restart": 1}})
    assert op.cost(going).bytes_read - op.cost(restart).bytes_read == 14336
    assert "residual" not in {spec.name for spec in op.tensors(restart)}
