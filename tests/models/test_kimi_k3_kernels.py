"""What can be said about the kernels of Kimi K3 without running them."""

import ast
import itertools
import tomllib
from pathlib import Path

import fasttrack_models.kimi_k3 as package
import pytest
from fasttrack import model_dir
from fasttrack_validation import contracts
from fasttrack_validation.contracts.kimi_k3.architecture import Architecture
from fasttrack_validation.contracts.subgraph import SEPARATOR

KERNELS = Path(package.__file__).parent / "kernels"
SPACES = sorted(KERNELS.glob("*.space.toml"))


def module_constants(path):
    """Constants that stand as literals, bare or as tl.constexpr(literal)."""
    found = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and node.targets[0].id.isupper():
            value = node.value.args[0] if isinstance(node.value, ast.Call) else node.value
            if not isinstance(value, ast.BinOp):
                found[node.targets[0].id] = ast.literal_eval(value)
    return found


def test_every_op_of_the_contract_has_kernels_a_table_and_a_design_space():
    manifest = model_dir.load("kimi_k3")
    # Fused ops come on top, where the contract has them connected: check_contract says.
    assert {op for op in manifest.manifest.ops if SEPARATOR not in op} == set(contracts.load("kimi_k3").ops)
    manifest.check_contract(contracts.load("kimi_k3"))
    for op in manifest.manifest.ops:
        space, table = manifest.space(op), manifest.table(op)
        for entry in table.entry:
            assert space is None or space.holds(entry.config), f"{op}: {entry.config} is not in the design space"
        assert space is not None or SEPARATOR in op


def test_every_kernel_file_belongs_to_an_op():
    listed = {name for op in model_dir.load("kimi_k3").manifest.ops.values() for name in op.kernels}
    files = (path.relative_to(KERNELS) for path in KERNELS.rglob("*.*") if path.suffix in (".py", ".cu", ".cuh"))
    assert listed == {f"kernels/{path.as_posix()}" for path in files if path.name != "__init__.py"}


def test_constants_of_the_other_kernels_are_those_of_the_published_model():
    of = Architecture.from_config()
    mla, moe = of.mla, of.moe
    assert module_constants(KERNELS / "attn_res_norm.py") == {"HIDDEN": of.hidden_size, "EPS": of.eps.backbone}
    assert module_constants(KERNELS / "residual.py") == {"HIDDEN": of.hidden_size}
    assert module_constants(KERNELS / "routing.py") == {"EXPERTS": moe.experts, "TOP": moe.top_k}
    assert module_constants(KERNELS / "front.py") == {"EXPERTS": moe.experts, "LATENT": moe.latent_size}
    assert module_constants(KERNELS / "latent_up.py") == {"LATENT": moe.latent_size, "EPS": of.eps.backbone}
    assert module_constants(KERNELS / "situ.py") == {"BETA": of.situ.beta, "LINEAR_BETA": of.situ.linear_beta}
    assert module_constants(KERNELS / "experts.py").items() >= {"LATENT": moe.latent_size, "TOP": moe.top_k}.items()
    assert module_constants(KERNELS / "experts_cuda.py") == {
        "HIDDEN": of.hidden_size,
        "LATENT": moe.latent_size,
        "TOP": moe.top_k,
        "BETA": of.situ.beta,
        "LINEAR_BETA": of.situ.linear_beta,
        "ROUTED_SCALING": moe.routed_scaling_factor,
        "WARPS": 16,
        "SLICES": 8,
        "STRUCTURES": ("resident", "spread"),
        "RESIDENT_ROWS": 16,
        "FLOWING_ROWS": 8,
        "UP_ROWS": 8,
    }
    assert module_constants(KERNELS / "moe_half.py") == {"EXPERTS": moe.experts, "NORM_EPS": of.eps.backbone}
    assert module_constants(KERNELS / "mla_value.py") == {"LATENT": mla.kv_lora_rank, "HEAD_DIM": mla.v_head_dim}
    assert module_constants(KERNELS / "mla_query.py") == {
        "Q_RANK": mla.q_lora_rank,
        "LATENT": mla.kv_lora_rank,
        "NOPE": mla.qk_nope_head_dim,
        "ROPE": mla.qk_rope_head_dim,
        "Q_EPS": of.eps.mla_q_a,
        "KV_EPS": of.eps.mla_kv_a,
    }


def test_the_constants_are_those_of_the_published_model():
    architecture = Architecture.from_config()
    for file in ("kda_decode.py", "kda_verify.py"):
        assert module_constants(KERNELS / file) == {
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
