"""The specialised path in its own process, interpreted, beside the plain path, on the nano checkpoint."""

from pathlib import Path

import pytest
import torch
from fasttrack_validation.contracts.kimi_k3.numerics import material
from fasttrack_validation.contracts.kimi_k3.numerics.paths import Paths
from fasttrack_validation.contracts.kimi_k3.step.state import PADDING, Batch
from fasttrack_validation.numerics.whole_model.specialised import Specialised
from long_tests import long

MODEL = Path(__file__).parents[4] / "models" / "kimi_k3"


@long
@pytest.mark.slow
def test_kernels_and_the_plain_path_take_turns_on_one_state():
    """A prefill by the plain path, steps of one token and of three by the kernels; every path from its own state."""
    torch.set_num_threads(1)
    paths, stream = Paths(material.CHECKPOINT), material.streams.stream(40, 0)
    with Specialised("kimi_k3", MODEL, material.CHECKPOINT, 1) as kernels:
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
