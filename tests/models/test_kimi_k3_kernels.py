"""What can be said about the kernels of Kimi K3 without running them."""

import ast
import itertools
import tomllib
from pathlib import Path

import fasttrack_models.kimi_k3 as package
import pytest
from fasttrack_validation.contracts.kimi_k3.architecture import Architecture

KERNELS = Path(package.__file__).parent / "kernels"
SPACES = sorted(KERNELS.glob("*.space.toml"))


def module_constants(path):
    tree = ast.parse(path.read_text())
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id.isupper()
    }


def test_the_constants_are_those_of_the_published_model():
    architecture = Architecture.from_config()
    assert module_constants(KERNELS / "kda_decode.py") == {
        "HEAD_DIM": architecture.kda.head_dim,
        "GATE_RANK": architecture.kda.gate_rank,
        "GATE_LOWER_BOUND": architecture.kda.gate_lower_bound,
        "L2_EPS": architecture.eps.kda_l2,
        "NORM_EPS": architecture.eps.kda_output,
    }


@pytest.mark.parametrize("path", sorted(KERNELS.glob("*.py")), ids=lambda path: path.name)
def test_a_kernel_file_imports_only_torch_and_triton(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert {alias.name for alias in node.names} <= {"torch", "triton", "triton.language"}
        assert not isinstance(node, ast.ImportFrom) or node.level > 0


@pytest.mark.parametrize("path", SPACES, ids=lambda path: path.name)
def test_a_design_space_is_whole(path):
    space = tomllib.loads(path.read_text())
    assert set(space) <= {"op", "entry", "parameters", "default", "exclude", "in_flight"}
    assert (path.parent / space["entry"]).is_file()
    parameters = space["parameters"]
    points = [dict(zip(parameters, values, strict=True)) for values in itertools.product(*parameters.values())]

    def excluded(point):
        return any(pair.items() <= point.items() for pair in space.get("exclude", []))

    for pair in space.get("exclude", []):
        assert any(pair.items() <= point.items() for point in points), f"{pair} excludes nothing"
    assert space["default"] in points and not excluded(space["default"])
    for name, values in parameters.items():
        for value in values:
            assert any(point[name] == value and not excluded(point) for point in points), f"{name} = {value} is dead"
