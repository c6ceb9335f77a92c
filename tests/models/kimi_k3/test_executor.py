"""What row counts share: repacked weights by what `prepare` reads, and nothing else."""

import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fasttrack_models.kimi_k3.executor import Prepared
from fasttrack_models.kimi_k3.kernels import moe_half

ROOT = Path(moe_half.__file__).parents[1]


def counted(reads):
    """A `prepare` that leaves one float and counts its calls."""
    calls = []

    def make(axes, config):
        calls.append(reads(axes, config))
        return {"packed": torch.zeros(1)}

    return make, calls


@pytest.mark.parametrize(
    ("reads", "first", "second", "same"),
    [
        (lambda axes, config: config["block"], ({}, {"block": 8, "stages": 2}), ({}, {"block": 8, "stages": 3}), True),
        (lambda axes, config: config["block"], ({}, {"block": 8}), ({}, {"block": 16}), False),
        (lambda axes, config: None, ({"rows": 1}, {"block": 8}), ({"rows": 2}, {}), True),
        (lambda axes, config: axes["rows"], ({"rows": 1}, {}), ({"rows": 2}, {}), False),
        # Asked for and not there is an answer too.
        (lambda axes, config: config.get("block"), ({}, {}), ({}, {"block": 8}), False),
        (lambda axes, config: config.get("block"), ({}, {"block": None}), ({}, {}), False),
        (lambda axes, config: "block" in config, ({}, {"stages": 1}), ({}, {"stages": 2}), True),
        (lambda axes, config: "block" in config, ({}, {}), ({}, {"block": 1}), False),
        (lambda axes, config: {**config}, ({}, {"block": 8}), ({}, {"block": 8, "stages": 2}), False),
        (lambda axes, config: dict(config), ({}, {"block": 8}), ({}, {"block": 8}), True),
        (lambda axes, config: len(axes), ({"rows": 1}, {}), ({"rows": 1, "tp": 8}, {}), False),
    ],
)  # fmt: skip
def test_what_prepare_reads_tells_weights_apart(reads, first, second, same):
    prepared = Prepared()
    make, calls = counted(reads)
    found = [prepared.of("front", make, *given) for given in (first, second, first, second)]
    assert len(calls) == (1 if same else 2)
    assert (found[0] is found[1]) == same and found[2] is found[0] and found[3] is found[1]
    assert prepared.bytes == 4 * len(calls)


def test_what_is_changed_after_the_call_changes_nothing_kept():
    prepared, config = Prepared(), {"block": 8}
    make, calls = counted(lambda axes, config: config["block"])
    prepared.of("front", make, {}, config)
    config["block"] = 16
    prepared.of("front", make, {}, config)
    assert calls == [8, 16]


def test_weights_and_kernels_of_their_own_share_nothing():
    prepared = Prepared()
    make, calls = counted(lambda axes, config: None)
    for key in (("front", "a.py", 1), ("front", "b.py", 1), ("front", "a.py", 2), ("front", "a.py", 1)):
        prepared.of(key, make, {}, {})
    assert len(calls) == 3


def test_every_row_count_of_the_mixture_shares_its_experts():
    """They are nine tenths of a layer: twice in memory, three layers at TP1 did not fit on a card."""
    entries = tomllib.loads((ROOT / "dispatch/moe_half.toml").read_text())["entry"]
    assert len({tuple(sorted(entry["config"].items())) for entry in entries}) > 1
    channels, latent = 128, moe_half.LATENT
    static = SimpleNamespace(
        w13_packed=torch.zeros(1, 2 * channels, latent // 2, dtype=torch.uint8),
        w13_scale=torch.zeros(1, 2 * channels, latent // 32, dtype=torch.uint8),
        w2_packed=torch.zeros(1, latent, channels // 2, dtype=torch.uint8),
        w2_scale=torch.zeros(1, latent, channels // 32, dtype=torch.uint8),
        shared_down=torch.zeros(32, 1024, dtype=torch.bfloat16), latent_up=torch.zeros(32, latent, dtype=torch.bfloat16),
    )  # fmt: skip
    prepared = Prepared()
    found = [
        prepared.of("", lambda *given: moe_half.prepare(None, static, *given), {"rows": rows, "channels": channels}, config)
        for entry in entries for rows in entry["rows"] for config in [entry["config"]]
    ]  # fmt: skip
    assert all(one is found[0] for one in found)
