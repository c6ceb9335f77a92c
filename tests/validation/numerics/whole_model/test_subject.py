"""What a verdict of the ladder is about: it is the same as long as the model directory computes the same."""

import shutil
from importlib.resources import files
from pathlib import Path

import pytest
from fasttrack_validation.numerics.whole_model.verdict import directory_digest, harness_digest

TABLE = "dispatch/experts.toml"
ENTRY = """[[entry]]
hardware = "h200"
tp = 8
rows = [{}, {}]
kernel = "kernels/experts.py"
config = {{ num_warps = {} }}
basis = "{}"
"""
STEPS = """[[entry]]
hardware = "h200"
tp = 8
tokens = 1
rows = {}
"""


def whole(rows=(1, 64), warps=4, more="modelled"):
    return ENTRY.format(*rows, warps, more)


@pytest.fixture
def model(tmp_path) -> Path:
    for folder in ("dispatch", "kernels", "evidence/grid"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / TABLE).write_text(whole())
    (tmp_path / "dispatch/faster.toml").write_text(STEPS.format(1))
    (tmp_path / "kernels/experts.py").write_text("def launch(): ...\n")
    (tmp_path / "kernels/experts.cu").write_text("// nothing\n")
    return tmp_path


@pytest.mark.parametrize(
    "same",
    [
        {TABLE: whole(more='measured"\nmicroseconds = 12.5\nevidence = "evidence/statements/experts.judge.json')},
        {TABLE: whole((1, 8)) + whole((9, 64))},
        {"dispatch/faster.toml": STEPS.format(8)},
        {"evidence/grid/cell.json": "{}", "DESIGN.md": "words"},
    ],
    ids=["times", "ranges", "steps", "reports"],
)
def test_what_is_said_of_the_same_kernels_leaves_it(model, same):
    before = directory_digest(model)
    for name, text in same.items():
        (model / name).write_text(text)
    assert directory_digest(model) == before


@pytest.mark.parametrize(
    "other",
    [
        {TABLE: whole(warps=8)},
        {TABLE: whole((1, 32))},
        {TABLE: whole((1, 8)) + whole((9, 64), warps=8)},
        {"kernels/experts.py": "def launch(): pass\n"},
        {"kernels/experts.cu": "// something\n"},
    ],
    ids=["configuration", "rows", "one range", "Python", "CUDA"],
)
def test_what_computes_otherwise_changes_it(model, other):
    before = directory_digest(model)
    for name, text in other.items():
        (model / name).write_text(text)
    assert directory_digest(model) != before


def test_it_does_not_depend_on_where_the_directory_lies(model, tmp_path_factory):
    moved = shutil.copytree(model, tmp_path_factory.mktemp("other") / "kimi")
    assert directory_digest(moved) == directory_digest(model)


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("package") / "validation"
    return Path(shutil.copytree(files("fasttrack_validation"), root, ignore=shutil.ignore_patterns("__pycache__", "*.safetensors")))


@pytest.mark.parametrize(
    ("file", "judges"),
    [
        ("numerics/whole_model/findings.py", True),
        ("numerics/calibrate.py", True),
        ("contracts/kimi_k3/routing/maths.py", True),
        ("contracts/kimi_k3/mla_core/contract.py", True),
        ("contracts/kimi_k3/op.py", True),
        ("contracts/kimi_k3/architecture.py", True),
        ("contracts/kimi_k3/weights/mxfp4.py", True),
        ("contracts/kimi_k3/nano/tokenizer.py", True),
        ("judge/interpreter/arithmetic.py", True),
        ("tensors.py", True),
        ("numerics/servers/compare.py", False),
        ("contracts/kimi_k3/compared_shard.py", False),
        ("contracts/kimi_k3/stock/mla.py", False),
        ("performance/runner.py", False),
        ("judge/judge.py", False),
    ],
)
def test_the_digest_of_the_ladder_is_over_what_runs_or_judges(package, file, judges):
    before, text = harness_digest(package), (package / file).read_text()
    assert before == harness_digest()
    try:
        (package / file).write_text(text + "\n# other\n")
        assert (harness_digest(package) != before) is judges
    finally:
        (package / file).write_text(text)
