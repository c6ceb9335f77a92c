"""Rows of a long context, shared out over processes or not: the same results, whoever computed them."""

import torch
from fasttrack_validation.contracts.kimi_k3.architecture import Architecture
from fasttrack_validation.contracts.kimi_k3.numerics import long_state, op_exams
from fasttrack_validation.numerics.whole_model import long_attention
from fasttrack_validation.numerics.whole_model.tokens import ORACLE, STOCK


def test_processes_give_what_one_gives_and_the_oracle_is_the_ops(monkeypatch):
    whole = long_attention.contexts(48, 320, 3, 2)
    monkeypatch.setattr(long_attention, "ALONE", 0)
    monkeypatch.setattr(long_attention.os, "cpu_count", lambda: 2)
    shared = long_attention.contexts(48, 320, 3, 2)
    assert set(whole) == set(shared) == {ORACLE, STOCK, "again-1", "again-2"}
    assert all(torch.equal(whole[path], shared[path]) for path in whole)
    of = Architecture.from_config()
    op = op_exams.contracts(of)["mla_core"]
    at, inputs, positions = long_state.needles(of, 48, 320, 3)
    assert torch.equal(whole[ORACLE], op.oracle(inputs, at)["context"])
    assert len(whole[STOCK]) == len(positions) == len(long_state.places(320))
    # Whether another order of float32 sums shows in bfloat16 is chance, and another one on each kind of processor.
    other, values = long_state.reordered(at, inputs, 1)
    assert any(not torch.equal(values[name], inputs[name]) for name in inputs)
    assert torch.equal(whole["again-1"], op.plain(values, other)["context"])
