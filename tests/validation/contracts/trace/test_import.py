"""A definition of the public format becomes an exam: honest kernels pass it, wrong ones do not."""

import copy
import json
import math

import op_exam
import pytest
import torch
import trace_files
from judged import skip_compiling
from judging import candidate, replaced
from safetensors.torch import save_file

from fasttrack_validation.contracts.base import TensorRole
from fasttrack_validation.contracts.trace import expressions
from fasttrack_validation.contracts.trace.export import OpExport, write
from fasttrack_validation.contracts.trace.import_definition import imported
from fasttrack_validation.contracts.trace.sandboxed import SandboxedReference
from fasttrack_validation.contracts.trace.schema import Definition
from fasttrack_validation.errors import UserError
from fasttrack_validation.judge.judge import Judge
from fasttrack_validation.judge.verdict import Status


pytestmark = pytest.mark.usefixtures("kept_sandboxes")


@pytest.fixture(scope="module")
def evaluate(kept_sandboxes):
    with SandboxedReference() as evaluate:
        yield evaluate


@pytest.fixture(scope="module")
def norm(tmp_path_factory, kept_sandboxes):
    directory = tmp_path_factory.mktemp("rmsnorm")
    with imported(*trace_files.rmsnorm(directory), directory) as model:
        yield model


def defined(document: dict, **changes) -> Definition:
    return Definition.model_validate_json(json.dumps(document | changes))


def by_hand(x, weight):
    """RMSNorm in float64."""
    x, weight = x.double(), weight.double()
    return x / (x.square().mean(1, keepdim=True) + 1e-6).sqrt() * weight


def test_oracle_and_plain_path(norm):
    op = norm.op("rmsnorm_h256")
    workload = op.workloads()[-1]
    inputs = op.make_inputs(workload, "wide_range", 5)
    exact = by_hand(inputs["hidden_states"], inputs["weight"])
    torch.testing.assert_close(op.oracle(inputs, workload)["output"], exact, rtol=1e-13, atol=0)
    plain = op.plain(inputs, workload)["output"]
    assert plain.dtype == torch.bfloat16
    error = (plain.double() - exact).abs() / exact.abs()
    assert 0 < float(error.max()) < 2.0**-8  # one rounding to bfloat16 and some float32


def test_what_the_contract_says(norm):
    op = norm.op("rmsnorm_h256")
    assert {w.name: w.axes["rows"] for w in op.workloads()} == {"rows7-r1": 1, "rows7-r4": 4, "rows7": 7, "rows16": 16}
    four = op.workloads()[1]
    assert four.axes == {"tp": 1, "rows": 4, "batch_size": 4, "hidden_size": 256}
    assert {spec.name: (spec.role, spec.shape, spec.strides) for spec in op.tensors(four)} == {
        "hidden_states": (TensorRole.INPUT, (4, 256), (256, 1)),
        "weight": (TensorRole.STATIC, (256,), (1,)),
        "output": (TensorRole.OUTPUT, (4, 256), (256, 1)),
    }
    cost = op.cost(four)
    assert (cost.bytes_read, cost.bytes_written, cost.flops) == (2 * 256 * 5, 2 * 256 * 4, 4 * 4 * 256)
    unseen = {op.vary(four, seed).axes["rows"] for seed in range(40)}
    assert unseen == {2, 3, 5, 6, 7, 8}
    assert op.vary(op.vary(four, 1), 2).name == "rows7-r4-v1-v2"
    assert set(op.not_examined) == {"strides", "stock path"}
    with pytest.raises(UserError, match="no stock path"):
        op.stock("cuda")
    with pytest.raises(UserError, match="does not produce 'weight'"):
        op.row_of("weight", (0,), {})


def test_equal_seeds_equal_bits(norm):
    op = norm.op("rmsnorm_h256")
    workload = op.workloads()[1]
    for name in op.distributions:
        one, two, other = (op.make_inputs(workload, name, seed) for seed in (3, 3, 4))
        assert all(torch.equal(one[key], two[key]) and not torch.equal(one[key], other[key]) for key in one), name


def test_a_row_is_redrawn_alone(norm):
    op = norm.op("rmsnorm_h256")
    workload = op.workloads()[1]
    inputs = op.make_inputs(workload, "typical", 1)
    changed = op.perturb_row(inputs, workload, 2, 9)
    rows = (changed["hidden_states"] != inputs["hidden_states"]).any(1).tolist()
    assert rows == [False, False, True, False]
    assert torch.equal(changed["weight"], inputs["weight"])


@pytest.mark.slow
def test_the_judge_tells_kernels_apart(norm, monkeypatch):
    kernel = trace_files.RMSNORM_KERNEL
    wrong = {
        # Epsilon shows in rows scaled down far enough: where they are less than half, the maximum tells, not the median.
        "numerics.": replaced(kernel, " + 1e-6", ""),
        "neighbour.dependence": replaced(
            # Pairs of rows are exchanged, so that whichever row is redrawn another one notices.
            kernel, "(x + row * N + at)", "(x + tl.minimum(row ^ 1, tl.num_programs(0) - 1) * N + at)"
        ),
    }
    with Judge(norm) as judge:
        accepted = judge.screen(candidate(kernel, "rmsnorm_h256"))
        assert accepted.status is Status.ACCEPTED, accepted.message
        assert accepted.contract_digest == norm.digest("rmsnorm_h256")
        skip_compiling(monkeypatch)
        for reason, text in wrong.items():
            verdict = judge.screen(candidate(text, "rmsnorm_h256"))
            assert verdict.status is Status.REJECTED and verdict.reason.startswith(reason), verdict.message


@pytest.mark.slow
def test_without_a_batch_axis(tmp_path, monkeypatch):
    # float16 ends at 65504, which products of rows scaled by 2^8 pass.
    with imported(*trace_files.gemm(tmp_path), tmp_path) as model:
        op = model.op("gemm_n32_k64")
        workload, again = op.workloads()
        assert (workload.name, again.name, workload.axes["rows"]) == ("m5", "m5-r2", 1)
        assert "whether rows depend on each other is not examined" in op.not_examined["neighbours"]
        with pytest.raises(UserError, match="no batch axis is declared"):
            op.perturb_row({}, workload, 0, 0)
        inputs = op.make_inputs(workload, "typical", 1)
        assert inputs["scale"].shape == (1,) and 2.5 * 0.75 <= float(inputs["scale"]) <= 2.5 * 1.25
        exact = inputs["A"].double() @ inputs["B"].double().T * inputs["scale"].double()
        torch.testing.assert_close(op.oracle(inputs, workload)["C"], exact, rtol=1e-12, atol=1e-12)
        with Judge(model) as judge:
            accepted = judge.screen(candidate(trace_files.GEMM_KERNEL, op.op))
            assert accepted.status is Status.ACCEPTED, accepted.message
            skip_compiling(monkeypatch)
            baked = replaced(trace_files.GEMM_KERNEL, "tl.load(scale)", "2.5")
            verdict = judge.screen(candidate(baked, op.op))
            assert (verdict.status, verdict.reason) == (Status.REJECTED, "numerics.median")


def test_values_from_files(tmp_path):
    held = torch.full((256,), 3.0, dtype=torch.bfloat16)
    save_file({"w": held, "wide": held.float()}, tmp_path / "values.safetensors")

    def exam(key: str, path: str = "values.safetensors"):
        weight = {"type": "safetensors", "path": path, "tensor_key": key}
        inputs = {"hidden_states": {"type": "random"}, "weight": weight}
        line = trace_files.trace(trace_files.RMSNORM, "rows7", {"batch_size": 7}, inputs)
        files = trace_files.write(tmp_path, trace_files.RMSNORM, [line], trace_files.RMSNORM_SIDE)
        return imported(*files, tmp_path)

    with exam("w") as model:
        op = model.op("rmsnorm_h256")
        weight = op.make_inputs(op.workloads()[0], "typical", 1)["weight"]
        assert 1.5 <= float(weight.min()) < 2 < 4 < float(weight.max()) <= 4.5
    for key, path, what in (
        ("wide", "values.safetensors", "holds torch.float32"),
        ("none", "values.safetensors", "none of"),
        ("w", "nowhere.safetensors", "nowhere.safetensors"),
    ):
        with exam(key, path) as model, pytest.raises(UserError, match=what):
            op = model.op("rmsnorm_h256")
            op.make_inputs(op.workloads()[0], "typical", 1)
    (tmp_path / "out.safetensors").symlink_to("/dev/null")
    with exam("w", "out.safetensors") as model, pytest.raises(UserError, match="leads out of the trace set"):
        op = model.op("rmsnorm_h256")
        op.make_inputs(op.workloads()[0], "typical", 1)


ROUND_TRIPS = {
    "in_projection": 'static = ["in_proj"]\nbatch_axis = "batch_size"\nflops = "2 * batch_size * n * k"\n',
    "latent_up": 'static = ["latent_norm", "latent_up"]\nbatch_axis = "batch_size"\nflops = "0"\n',
    # Its reference rounds the decay gate to bfloat16, bit by bit. Pools are outputs that begin with pages, not rows.
    "kda_decode": 'static = ["f_b", "conv_weight", "a_log", "dt_bias", "o_norm"]\nflops = "0"\noracle = "as_written"\n'
    '[integers.slots]\nlow = "1"\nhigh = "slots"\ndistinct = true\n',
}


@pytest.mark.parametrize("name", sorted(ROUND_TRIPS))
def test_what_is_exported_comes_back(tmp_path, name):
    contract = op_exam.nano(name)
    export = OpExport(contract, 8)
    written = write(export, tmp_path, workloads=("tp8-b4", "tp8-b8"))
    side = tmp_path / "judging.toml"
    side.write_text(ROUND_TRIPS[name])
    with imported(tmp_path / written.definition, tmp_path / written.workloads, side, tmp_path) as model:
        op = model.op(export.name)
        workload = op.workloads()[0]
        assert workload.name == "tp8-b4"
        ours = export.workloads["tp8-b4"]
        before = {spec.name: spec for spec in contract.tensors(ours)}
        for spec in op.tensors(workload):
            same = before[export.outputs.get(spec.name, spec.name)]
            assert (spec.dtype, spec.shape) == (same.dtype, same.shape), spec.name
            assert (spec.role is TensorRole.STATIC) == (same.role is TensorRole.STATIC), spec.name
        inputs = op.make_inputs(workload, "typical", 3)
        expected, got = contract.oracle(inputs, ours), op.oracle(inputs, workload)
        for new, tensor in export.outputs.items():
            exact, dtype = expected[tensor].double(), before[tensor].dtype
            # As written the result is rounded to its type, once: half a unit in the last place.
            rounding = 0 if name != "kda_decode" else {"bf16": 2.0**-8, "fp32": 2.0**-24}[dtype]
            torch.testing.assert_close(got[new].double(), exact, rtol=rounding + 1e-12, atol=1e-12)


GATHER = trace_files.RMSNORM | {
    "name": "gather",
    "inputs": {
        "table": {"shape": ["pages", "hidden_size"], "dtype": "float32"},
        "ids": {"shape": ["batch_size"], "dtype": "int32"},
    },
    "axes": trace_files.RMSNORM["axes"] | {"pages": {"type": "var"}},
    "outputs": {"output": {"shape": ["batch_size", "hidden_size"], "dtype": "float32"}},
    "constraints": ["batch_size < pages", "ids.max() < pages"],
    "reference": "def run(table, ids):\n    return table[ids.long()]\n",
}
GATHER_SIDE = (
    'static = []\nbatch_axis = "batch_size"\nflops = "0"\n\n'
    '[integers.ids]\nlow = "1"\nhigh = "pages"\ndistinct = true\n'
)


def test_integers_are_drawn_as_the_side_file_says(tmp_path):
    lines = [trace_files.trace(GATHER, "few", {"batch_size": 3, "pages": 4})]
    with imported(*trace_files.write(tmp_path, GATHER, lines, GATHER_SIDE), tmp_path) as model:
        op = model.op("gather")
        # Four rows of distinct pages would need five pages: the constraint is kept.
        assert [workload.name for workload in op.workloads()] == ["few-r1", "few"]
        assert all(op.vary(op.workloads()[1], seed).axes["rows"] == 2 for seed in range(20))
        assert "it speaks of values" in op.not_examined["constraint ids.max() < pages"]
        drawn = [sorted(op.make_inputs(op.workloads()[1], "typical", seed)["ids"].tolist()) for seed in range(5)]
        assert drawn == [[1, 2, 3]] * 5
        inputs = op.make_inputs(op.workloads()[1], "typical", 0)
        assert torch.equal(op.plain(inputs, op.workloads()[1])["output"], inputs["table"][inputs["ids"].long()])


@pytest.mark.parametrize(
    ("side", "field", "what"),
    [
        ('batch_axis = "batch_size"\nflops = "1"\n', "static", "is missing"),
        ("static = []\n", "flops", "is missing"),
        ('static = []\nflops = "1"\nbatch = "x"\n', "batch", "is not a known key"),
        ('static = ["bias"]\nflops = "1"\n', "static", "'bias' is not an input"),
        ('static = ["weight", "weight"]\nflops = "1"\n', "static", "is there twice"),
        ('static = ["weight", "hidden_states"]\nflops = "1"\n', "static", "every input is a weight"),
        ('static = ["hidden_states"]\nbatch_axis = "batch_size"\nflops = "1"\n', "static", "has the batch axis"),
        ('static = []\nbatch_axis = "hidden_size"\nflops = "1"\n', "batch_axis", "is not a variable axis"),
        ('static = []\nflops = "2 * rows"\n', "flops", "'rows' is not an axis"),
        ('static = []\nflops = "2 *"\n', "flops", "is not an expression"),
        ('static = []\nflops = "1"\n[integers.weight]\nhigh = "3"\n', "integers.weight", "is not an integer input"),
        ('static = []\nflops = "1"\n[tolerance.out]\nfloor = 0.1\n', "tolerance.out", "is not an output"),
        ('static = []\nflops = "1"\n[tolerance.output]\nfloor = -0.1\n', "tolerance.output.floor", "greater than"),
    ],
)
def test_a_malformed_side_file_is_refused(tmp_path, side, field, what):
    definition, workloads, judging = trace_files.rmsnorm(tmp_path)
    judging.write_text(side)
    with pytest.raises(UserError) as refused, imported(definition, workloads, judging, tmp_path):
        pass
    assert str(judging) in refused.value.what and field in refused.value.what and what in refused.value.what


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"inputs": {"hidden_states": {"shape": ["batch_size", "hidden_size"], "dtype": "float8_e4m3fn"},
                     "weight": {"shape": ["hidden_size"], "dtype": "bfloat16"}}},
         "inputs.hidden_states.dtype: float8_e4m3fn cannot be judged here"),
        ({"outputs": {"output": {"shape": None, "dtype": "float32"}}}, "outputs.output.shape: has no axis"),
        ({"outputs": {"output": {"shape": ["hidden_size", "batch_size"], "dtype": "float32"}}},
         "batch_axis: 'batch_size' is not the first axis of output output"),
        ({"inputs": {"hidden_states": {"shape": ["batch_size", "hidden_size"], "dtype": "int32"},
                     "weight": {"shape": ["hidden_size"], "dtype": "bfloat16"}}}, "integers.hidden_states: is missing"),
        ({"inputs": {"hidden_states": {"shape": ["batch_size"], "dtype": "bfloat16"},
                     "weight": {"shape": None, "dtype": "int32"}}}, "inputs.weight: an integer scalar may be a size"),
        ({"axes": trace_files.RMSNORM["axes"] | {"rows": {"type": "var"}}},
         "axes.rows: varies, but no input has it"),
        ({"constraints": ["batch_size > 7"]}, "constraint 'batch_size > 7' does not hold"),
    ],
)  # fmt: skip
def test_what_cannot_be_judged_is_refused(tmp_path, change, what):
    definition = trace_files.RMSNORM | change
    axes = {name: 7 for name, axis in definition["axes"].items() if axis["type"] == "var"}
    lines = [trace_files.trace(definition, "one", axes)]
    with pytest.raises(UserError) as refused:
        with imported(*trace_files.write(tmp_path, definition, lines, trace_files.RMSNORM_SIDE), tmp_path):
            pass
    assert what in refused.value.what


SCALED = trace_files.GEMM | {"inputs": {"A": {"shape": ["M", "K"], "dtype": "bfloat16"}},
                             "outputs": {"C": {"shape": ["M", "K"], "dtype": "bfloat16"}}}  # fmt: skip
A = torch.arange(1, 129).reshape(2, 64).bfloat16()


@pytest.mark.parametrize(
    "body",
    [
        "A.float().div(3).to(torch.bfloat16)",
        "A.to(dtype=torch.float32) / torch.full((1,), 3, dtype=torch.float16)",
        "(A.half() / torch.ones(1).mul(3)).type(torch.bfloat16)",
        "torch.empty_like(A, dtype=torch.float32).copy_(A).div_(3)",
    ],
)
def test_every_float_type_is_widened(evaluate, body):
    found = defined(SCALED, reference=f"import torch\ndef run(A):\n    return {body}\n")
    wide = evaluate(found, {"A": A}, wide=True)["C"]
    assert wide.dtype == torch.float64
    torch.testing.assert_close(wide, A.double() / 3, rtol=1e-15, atol=0)


def test_bits_are_not_widened(evaluate):
    reads = defined(SCALED, reference=(
        "import torch\ndef run(A):\n    return (A.float().view(torch.int32) & -65536).view(torch.float32).bfloat16()\n"
    ))  # fmt: skip
    with pytest.raises(UserError, match="reads bits") as refused:
        evaluate(reads, {"A": A}, wide=True)
    assert "as_written" in refused.value.how
    assert torch.equal(evaluate(reads, {"A": A}, wide=False)["C"], A)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("open('/etc/passwd').read()", "FileNotFoundError|PermissionError"),
        ("__import__('socket').socket()", "PermissionError|OSError"),
        ("__import__('subprocess').run(['true'])", "PermissionError|BlockingIOError|OSError"),
        ("A[:1]", r"returns bfloat16 \[1, 64\], expected is bfloat16 \[2, 64\]"),
        ("A.float()", r"returns float32 \[2, 64\], expected is bfloat16"),
        ("(A, A)", "returned 2 values, the definition has 1 outputs"),
        ("None", "value 0 is NoneType"),
        ("A / undefined", "NameError"),
    ],
)
def test_a_reference_is_confined_and_its_answer_checked(evaluate, body, what):
    with pytest.raises(UserError, match=what):
        evaluate(defined(SCALED, reference=f"def run(A):\n    return {body}\n"), {"A": A}, wide=False)
    honest = defined(SCALED, reference="def run(A):\n    return A + 1\n")
    assert torch.equal(evaluate(honest, {"A": A}, wide=False)["C"], A + 1)


@pytest.mark.parametrize(
    ("text", "value"),
    [("a + 1 == b", True), ("2 * a * b // 3", 5), ("a < b and b < 4", False), ("-a % 4", 2), ("not a == 2", False),
     ("1 < a < b", True)],
)  # fmt: skip
def test_expressions_over_axes(text, value):
    assert expressions.evaluate(text, {"a": 2, "b": 4}) == (value if text != "a + 1 == b" else False)
    assert expressions.evaluate("a + 1 == b", {"a": 2, "b": 3}) is True


@pytest.mark.parametrize("text", ["c + 1", "len(a)", "a.real", "a ** 9 ** 9", "'a' * 3", "[a for a in b]", "a / b"])
def test_other_expressions_are_no_constraints(text):
    with pytest.raises(expressions.NotOverAxes):
        expressions.evaluate(text, {"a": 2, "b": 4})


def test_counts_are_not_negative():
    assert expressions.count("a * 3", {"a": 2}, "flops") == 6
    for text in ("a - 3", "a == 2", "a // (a - 2)"):
        with pytest.raises(UserError):
            expressions.count(text, {"a": 2}, "flops")


def test_the_digest_covers_all_three_files(tmp_path):
    files = trace_files.rmsnorm(tmp_path)
    seen = set()
    for path in (None, *files):
        if path is not None:
            path.write_text(path.read_text() + "\n")
        with imported(*files, tmp_path) as model:
            seen.add(model.digest("rmsnorm_h256"))
    assert len(seen) == 4


def test_tolerances_come_from_the_side_file(tmp_path):
    side = trace_files.RMSNORM_SIDE + '\n[tolerance.output]\nfloor = 0.01\nmax_ratio = 2.0\n'
    lines = [trace_files.trace(copy.deepcopy(trace_files.RMSNORM), "rows7", {"batch_size": 7})]
    with imported(*trace_files.write(tmp_path, trace_files.RMSNORM, lines, side), tmp_path) as model:
        (given,) = model.op("rmsnorm_h256").comparisons
    assert (given.kind, given.floor, given.max_ratio, given.ratio) == ("calibrated", 0.01, 2.0, 1.25)
    with imported(*trace_files.rmsnorm(tmp_path), tmp_path) as model:
        (calibrated,) = model.op("rmsnorm_h256").comparisons
    assert math.log2(calibrated.floor) == -16
