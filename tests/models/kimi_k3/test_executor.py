"""What row counts and configurations share: repacked weights that are equal, and nothing else."""

import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fasttrack_models.kimi_k3.executor import Prepared
from fasttrack_models.kimi_k3.kernels import experts, mla_query, moe_half

ROOT = Path(moe_half.__file__).parents[1]


def test_what_is_equal_bit_for_bit_is_there_once():
    prepared, nan = Prepared(), torch.tensor([float("nan"), 0.0])
    one = prepared.of("weights", "a", lambda: {"packed": nan.clone(), "rate": torch.ones(3)})
    other = prepared.of("weights", "b", lambda: {"packed": nan.clone(), "rate": torch.zeros(3)})
    assert other["packed"] is one["packed"] and other["rate"] is not one["rate"]
    assert prepared.bytes == 8 + 12 + 12
    assert prepared.of("weights", "a", lambda: pytest.fail("made once")) is one


@pytest.mark.parametrize(
    "other",
    [
        torch.tensor([0.0, -0.0]), torch.tensor([0, 0], dtype=torch.int32), torch.zeros(1, 2), torch.zeros(4)[::2],
        torch.zeros(2, dtype=torch.float64),
    ],
    ids=["signs", "types", "shapes", "strides", "widths"],
)  # fmt: skip
def test_what_only_looks_alike_is_not_shared(other):
    prepared = Prepared()
    one = prepared.of("weights", "a", lambda: {"packed": torch.zeros(2)})
    assert prepared.of("weights", "b", lambda: {"packed": other})["packed"] is other is not one["packed"]


def test_equal_weights_of_two_places_stay_two():
    """An engine may change one of them."""
    prepared = Prepared()
    places = [prepared.of(place, "a", lambda: {"packed": torch.zeros(2)}) for place in ("layer 1", "layer 2")]
    assert places[0]["packed"] is not places[1]["packed"] and prepared.bytes == 16


def test_one_kernel_packs_what_two_ops_give_it_once():
    """A step of one token and a step to verify have the same first half, under two names."""
    prepared, made = Prepared(), []
    for _ in ("decode", "verify"):
        prepared.of("weights", ("kernels/kda_front.py", ("slots", 13)), lambda: made.append(1) or {"packed": torch.zeros(2)})
    assert made == [1] and prepared.bytes == 8


def dispatched(op):
    return tomllib.loads((ROOT / f"dispatch/{op}.toml").read_text())["entry"]


def packed(module, static, axes, configs):
    """What each of the configurations is given, and the bytes of all of it."""
    prepared = Prepared()
    found = [
        prepared.of("", tuple(sorted(config.items())), lambda config=config: module.prepare(None, static, axes, config))
        for config in configs
    ]
    return found, prepared.bytes


def mixture(channels=128, latent=moe_half.LATENT):
    random = torch.Generator().manual_seed(1)
    byte = lambda *shape: torch.randint(0, 250, shape, generator=random, dtype=torch.uint8)  # noqa: E731
    return SimpleNamespace(
        w13_packed=byte(1, 2 * channels, latent // 2), w13_scale=byte(1, 2 * channels, latent // 32),
        w2_packed=byte(1, latent, channels // 2), w2_scale=byte(1, latent, channels // 32),
        shared_down=torch.randn(32, 1024, generator=random).bfloat16(),
        latent_up=torch.randn(32, latent, generator=random).bfloat16(),
    )  # fmt: skip


def test_every_row_count_of_the_mixture_shares_its_experts():
    """They are nine tenths of a layer: twice in memory, three layers at TP1 did not fit on a card."""
    configs = [entry["config"] for entry in dispatched("moe_half")]
    assert len({tuple(sorted(config.items())) for config in configs}) > 1
    found, size = packed(moe_half, mixture(), {"channels": 128}, configs)
    assert size == sum(tensor.nbytes for tensor in found[0].values())
    assert all(one[name] is found[0][name] for one in found for name in one)


def test_structures_of_the_experts_alone_share_them_too():
    configs = [{"structure": structure, "num_stages": 2} for structure in ("resident", "spread")]
    found, size = packed(experts, mixture(), {"channels": 128}, configs)
    assert found[1]["stages13"] is found[0]["stages13"] and size == sum(tensor.nbytes for tensor in found[0].values())


def test_tiles_that_differ_in_depth_of_the_pipeline_alone_are_shared():
    config = next(entry["config"] for entry in dispatched("mla_query"))
    static = SimpleNamespace(
        q_b=torch.randn(384, 256).bfloat16(), up_key=torch.randn(2, 128, 512).bfloat16()
    )
    configs = [config | {"num_stages": stages} for stages in (4, 6)]
    found, _ = packed(mla_query, static, {}, configs)
    assert all(found[1][name] is found[0][name] for name in found[0])
    more, _ = packed(mla_query, static, {}, [config, config | {"block_k": 2 * config["block_k"]}])
    assert more[1]["packed_q"] is not more[0]["packed_q"] and more[1]["packed_key"] is more[0]["packed_key"]
