"""Where paths of examined rows are walked."""

import torch
from fasttrack_validation.contracts.kimi_k3.rows_examined import Here


def test_weights_are_moved_once_and_when_somebody_asks():
    here, moved = Here("cpu"), []
    weight = torch.ones(3)
    here.cut = lambda tensor: moved.append(tensor) or tensor.clone()
    assert not moved and here.weight(weight) is here.weight(weight) and len(moved) == 1
    assert Here().weight(weight) is weight and Here().cut(weight) is weight
