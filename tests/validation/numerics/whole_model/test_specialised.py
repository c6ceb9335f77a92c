"""The specialised path in its own process, interpreted, beside the plain path, on the nano checkpoint."""

from pathlib import Path

import pytest
import torch
from fasttrack_validation.contracts.kimi_k3.numerics import material, op_exams
from fasttrack_validation.contracts.kimi_k3.numerics.paths import Paths
from fasttrack_validation.contracts.kimi_k3.numerics.weights import WeightsOf
from fasttrack_validation.contracts.kimi_k3.step.state import PADDING, Batch
from fasttrack_validation.numerics.whole_model import op_rung
from fasttrack_validation.numerics.whole_model.checks import Result
from fasttrack_validation.numerics.whole_model.specialised import Specialised
from long_tests import long

MODEL = Path(__file__).parents[4] / "models" / "kimi_k3"
NANO = WeightsOf(checkpoint=material.CHECKPOINT)


@long
@pytest.mark.slow
def test_kernels_and_the_plain_path_take_turns_on_one_state():
    """A prefill by the plain path, steps of one token and of three by the kernels; every path from its own state."""
    torch.set_num_threads(1)
    paths, stream = Paths(material.CHECKPOINT), material.streams.stream(40, 0)
    with Specialised("kimi_k3", MODEL, NANO, 1) as kernels:
        kernels.buckets = (1, 2, 4)
        contestants = {"oracle": paths.oracle(), "stock": paths.stock(1), "kernels": kernels}
        steps = [
            ("prefill", Batch(torch.tensor(stream[:17]), (0,), (17,)), None),
            # Row 0 is the first of a page; row 1 is padding.
            ("decode", Batch(torch.tensor([stream[17], 0]), (0, PADDING), (1, 1)), [1, 0]),
            ("decode", Batch(torch.tensor([*stream[18:20], 5]), (0,), (3,)), [2]),
            ("decode", Batch(torch.tensor([stream[20]]), (0,), (1,)), [1]),
        ]
        for path in contestants.values():
            path.begin(1, 40, 3)
        ran = []
        for what, batch, accepted in steps:
            seen = {name: getattr(path, what)(batch) for name, path in contestants.items()}
            for path in contestants.values():
                if accepted is not None:
                    path.commit(batch, accepted)
            ran.append(seen["kernels"].ran)
            exact = seen["oracle"]
            own, plain = (
                ((seen[name].streams[:, 0].double() - exact.streams[:, 0]).norm(dim=-1) / exact.streams[:, 0].norm(dim=-1))
                for name in ("kernels", "stock")
            )
            assert set(seen["kernels"].chosen) == set(exact.chosen)
            # Behind a layer that chose other experts errors are another choice's: it has to have been a near tie.
            other = [layer for layer, ids in exact.chosen.items() if not torch.equal(seen["kernels"].chosen[layer][0], ids[0])]
            for layer in other[:1]:
                scores = exact.scores[layer][0].sort(descending=True).values
                assert scores[paths.architecture.moe.top_k - 1] - scores[paths.architecture.moe.top_k] < 0.01
            alike = other[0] if other else len(own)
            assert (own <= 2 * plain + 1e-3)[:alike].all(), (what, own, plain)
        assert ran == ["stock", "specialised", "specialised", "specialised"]
        assert kernels.null_pages() == ()
        assert {"_fused", "_tokens", "_front"} <= set(kernels.launches())
        for pool, tensor in kernels.committed(0).items():
            wanted = contestants["oracle"].committed(0)[pool]
            assert (tensor - wanted).norm() <= 0.05 * wanted.norm(), pool


@pytest.mark.slow
@pytest.mark.parametrize("tp", [8, 16])
def test_an_odd_number_of_columns_before_the_pairs_moves_none_of_them(tp):
    """At TP16 a rank has one expert's logit and four columns of the latent row, at TP8 two and eight."""
    torch.set_num_threads(1)
    contract = op_exams.contracts(Paths(material.CHECKPOINT).architecture)["front"]
    at = op_exams.workload(contract, tp, 3, 0)
    with Specialised("kimi_k3", MODEL, NANO, tp) as kernels:
        exam = op_rung.sit(contract, at, "typical", 0, lambda op, at, inputs: kernels.op(op.op, at, inputs))
    verdict = op_rung.judged([exam])
    assert verdict.result is Result.PASS, verdict.text


@long
@pytest.mark.slow
def test_ranks_hand_on_what_each_of_them_finishes():
    """Eight ranks, more rows than they are claimed to be faster for: the kernels run all the same, as near as plain."""
    torch.set_num_threads(1)
    paths, stream = Paths(material.CHECKPOINT), material.streams.stream(12, 3)
    prompts = Batch(torch.tensor(stream[:9]), (0, 1, 2), (2, 3, 4))
    batch = Batch(torch.tensor(stream[9:12]), (0, 1, 2), (1, 1, 1))
    with Specialised("kimi_k3", MODEL, NANO, 8) as kernels:
        kernels.buckets = (4,)
        contestants = {"oracle": paths.oracle(), "stock": paths.stock(8), "kernels": kernels}
        for path in contestants.values():
            path.begin(3, 20, 1)
            path.prefill(prompts)
        seen = {name: path.decode(batch) for name, path in contestants.items()}
    assert seen["kernels"].ran == "specialised"
    exact = seen["oracle"].streams
    own, plain = ((seen[name].streams.double() - exact).norm(dim=-1) / exact.norm(dim=-1) for name in ("kernels", "stock"))
    # Behind a layer that chose other experts errors are another choice's.
    alike = [torch.equal(ids, seen["kernels"].chosen[layer]) for layer, ids in seen["oracle"].chosen.items()]
    depth = 1 + alike.index(False) if False in alike else len(own)
    assert depth >= 2 and (own <= 2 * plain + 1e-3)[:depth].all(), (depth, own, plain)
    assert seen["kernels"].scores[1].shape == seen["oracle"].scores[1].shape
