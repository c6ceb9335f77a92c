"""Checkpoints that several tests read: nano, and smaller ones to be sharded or damaged."""

import shutil
from pathlib import Path

import pytest

from fasttrack_validation.contracts.kimi_k3.architecture import NANO, Architecture
from fasttrack_validation.contracts.kimi_k3.weights import synthetic

# A dense KDA layer, an MoE layer of each kind, and the last layer.
NANO_LAYERS = (0, 3, 4, 12)


@pytest.fixture(scope="session")
def nano() -> Architecture:
    return Architecture.from_config(NANO)


@pytest.fixture(scope="session")
def nano_checkpoint(nano, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("weights") / "nano"
    synthetic.write(directory, nano, seed=3, layers=NANO_LAYERS)
    return directory


def _with_experts(architecture: Architecture, experts: int) -> Architecture:
    return architecture.model_copy(update={"moe": architecture.moe.model_copy(update={"experts": experts})})


@pytest.fixture(scope="session")
def nano_of_five_experts(nano, tmp_path_factory) -> Path:
    """The layers of `nano_checkpoint`, for tests that read them once a rank."""
    directory = tmp_path_factory.mktemp("weights") / "five_experts"
    synthetic.write(directory, _with_experts(nano, 5), layers=NANO_LAYERS)
    return directory


@pytest.fixture(scope="session")
def _small(nano, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("weights") / "small"
    synthetic.write(directory, _with_experts(nano, 5), layers=(0, 3))
    return directory


@pytest.fixture
def small_checkpoint(_small, tmp_path) -> Path:
    """Layers 0 (KDA, dense) and 3 (MLA, MoE of five experts), a copy that may be changed."""
    return Path(shutil.copytree(_small, tmp_path / "checkpoint"))
