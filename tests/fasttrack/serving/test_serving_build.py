"""What a server's fingerprint names: whatever computes, and nothing else."""

import pytest

from fasttrack.serving.build import Build
from fasttrack_validation.generation import specialised
from fasttrack_validation.generation.paths import Backend, Card

CARD = Card(
    backend=Backend.PLAIN, dtype="bfloat16", prefill="plain", decode="plain", revision="r", tokenizer="t", tp=1, device="cpu",
    context=256, vocabulary=300, sources="s", libraries={"torch": "2.9"},
)  # fmt: skip
BUILD = Build(package="0.1", commit="c", model="nano", prompt_scores="prefill", path=CARD)
SAME = [{"commit": None}, {"model": "other"}, {"path": CARD.model_copy(update={"context": 200})}]
OTHER = [{"package": "0.2"}, {"prompt_scores": "decode"}] + [
    {"path": CARD.model_copy(update=change)}
    for change in (
        {"backend": Backend.STOCK}, {"dtype": "float64"}, {"prefill": "oracle"}, {"decode": "stock"}, {"revision": "q"},
        {"tokenizer": "u"}, {"tp": 2}, {"device": "H200"}, {"sources": "z"}, {"libraries": {"torch": "2.8"}},
    )
]  # fmt: skip


@pytest.mark.parametrize("change", SAME)
def test_a_build_is_the_same_where_nothing_computes_otherwise(change):
    assert BUILD.model_copy(update=change).fingerprint == BUILD.fingerprint


@pytest.mark.parametrize("change", OTHER)
def test_a_build_is_another_one_where_something_does(change):
    assert BUILD.model_copy(update=change).fingerprint != BUILD.fingerprint


@pytest.mark.parametrize("file", ["kernel.py", "cuda/kernel.cu", "cuda/shared.cuh", "kernel.toml"])
def test_whatever_of_a_model_directory_computes_is_in_its_sources(tmp_path, file):
    """A commit is not asked, so every file that a decode path is made of has to be."""
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("a = 1")
    before = specialised._sources(tmp_path, "v")
    (tmp_path / "evidence").mkdir()
    (tmp_path / "evidence" / "run.toml").write_text("a = 1")
    assert specialised._sources(tmp_path, "v") == before != specialised._sources(tmp_path, "w")
    path.write_text("a = 2")
    assert specialised._sources(tmp_path, "v") != before
