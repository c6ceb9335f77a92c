"""Exported files say what the contract says, and what the format has no words for is refused."""

import json
import subprocess
import sys
from pathlib import Path

import op_exam
import pytest
import torch
import toy_contract
from safetensors.torch import load_file

from fasttrack_validation import contracts
from fasttrack_validation.contracts.trace import files, schema
from fasttrack_validation.contracts.trace.export import OpExport, exportable, write
from fasttrack_validation.contracts.trace.references import REFERENCES
from fasttrack_validation.contracts.trace.solution import solution
from fasttrack_validation.contracts.trace.symbols import symbols
from fasttrack_validation.errors import UserError

ROOT = Path(__file__).parents[4]
KERNEL = ROOT / "models/kimi_k3/kernels/kda_decode.py"
CONFIG = {"structure": "fused", "block_v": 32, "num_warps": 4}


def executed(reference: str) -> dict:
    """The names that a reference defines, run as a file of its own; it may import torch and math alone."""
    imports = [line for line in reference.splitlines() if line.startswith(("import ", "from "))]
    assert set(imports) <= {"import math", "import torch"}
    space: dict = {}
    exec(reference, space)
    return space


@pytest.mark.parametrize("op", sorted(REFERENCES))
def test_the_reference_is_the_oracle(op):
    contract = op_exam.nano(op)
    export = OpExport(contract, 8)
    space = executed(export.definition().reference)
    chosen = REFERENCES[op]
    constants = chosen.constants(contract.architecture)
    renamed = {ours: parameter for parameter, ours in chosen.renamed.items()}
    workload = export.workloads["tp8-b4"]
    for seed, distribution in enumerate(contract.distributions):
        inputs = contract.make_inputs(workload, distribution, seed)
        expected = contract.oracle(inputs, workload)
        got = space["exact"](**{renamed.get(name, name): inputs[name] for name in export.inputs}, **constants)
        got = {chosen.output: got} if chosen.output else got
        results = space["run"](*(inputs[name] for name in export.inputs))
        results = results if isinstance(results, tuple) else (results,)
        for (new, ours), result in zip(export.outputs.items(), results, strict=True):
            exact, wanted = got[ours].double(), expected[ours].double()
            scale = wanted[wanted.isfinite()].abs().max()
            atol = 1e-12 * float(scale)
            torch.testing.assert_close(exact, wanted, rtol=1e-9, atol=atol, equal_nan=True, msg=distribution)
            spec = export.specs[ours]
            assert result.dtype == getattr(torch, schema.DTYPE_NAMES[spec.dtype]), new


def test_the_reference_leaves_its_inputs_alone():
    contract = op_exam.nano("kda_decode")
    export = OpExport(contract, 8)
    inputs = contract.make_inputs(export.workloads["tp8-b4"], "accumulated", 1)
    before = {name: tensor.clone() for name, tensor in inputs.items()}
    executed(export.definition().reference)["run"](*(inputs[name] for name in export.inputs))
    assert all(torch.equal(tensor.nan_to_num(), before[name].nan_to_num()) for name, tensor in inputs.items())


def test_axes_of_kda_decode_at_tp8():
    found = OpExport(contracts.load("kimi_k3").op("kda_decode"), 8).definition()
    assert found.variable == ("batch_size", "slots")
    sizes = found.sizes({"batch_size": 5, "slots": 9})

    def shape(name):
        return [sizes[axis] for axis in (found.inputs | found.outputs)[name].shape]

    # 96 heads of 128 over 8 ranks; q | k | v | g | f_a | beta padded to 16: 4 * 1536 + 128 + 16.
    assert shape("projected") == [5, 6288]
    assert shape("recurrent_state") == shape("new_recurrent_state") == [9, 12, 128, 128]
    assert shape("conv_state") == [9, 3, 4608]
    assert shape("slots") == [5] and shape("out") == [5, 1536]
    assert list(found.outputs) == ["new_conv_state", "new_recurrent_state", "out"]


@pytest.mark.parametrize(
    ("op", "what"),
    [
        ("mla_value", "up_value has gaps that no axis controls"),  # a view of a larger matrix
        ("mla_query", "up_key has gaps that no axis controls"),
        ("experts", "w13_packed is u8, a type that the format does not have"),
        ("mla_core", "has no reference that stands alone"),
    ],
)
def test_what_cannot_be_said_is_refused(op, what):
    with pytest.raises(UserError, match=what):
        OpExport(contracts.load("kimi_k3").op(op), 8).definition()


class Derived(toy_contract.Toy):
    """A toy whose output is twice as long as the batch: the format's axes are names, not expressions."""

    def tensors(self, workload):
        *others, out = super().tensors(workload)
        return (*others, out.model_copy(update={"shape": (2 * workload.axes["rows"], toy_contract.WIDTH)}))


class Hidden(toy_contract.Toy):
    """A toy that depends on a number which no tensor shows."""

    def _workload(self, *arguments):
        workload = super()._workload(*arguments)
        return workload.model_copy(update={"axes": workload.axes | {"limit": workload.axes["rows"] + 1}})


def test_axes_are_found_by_moving_them():
    toy = toy_contract.Toy()
    found = symbols(toy, toy.workloads())
    assert found.variable == ("rows", "slots")
    assert found.strides == {"page_stride": ("acc", 0), "x_stride": ("x", 0)}
    assert found.fixed == {"tp": 8}
    assert found.shapes["acc"] == ("slots", "size_64")


@pytest.mark.parametrize(
    ("toy", "what"), [(Derived(), "depends on rows but is not rows"), (Hidden(), "limit varies but is no size")]
)
def test_axes_without_a_name_are_refused(toy, what):
    with pytest.raises(UserError, match=what):
        symbols(toy, toy.workloads())


def test_values_that_the_evaluator_would_refuse_are_refused():
    export = OpExport(op_exam.nano("kda_decode"), 8)
    with pytest.raises(UserError, match="not finite everywhere"):
        export.values("tp8-b4", "padded_nan", 0)
    assert "slots" in export.values("tp8-b4", "padded", 0)  # padding alone is no obstacle
    with pytest.raises(UserError, match="no distribution 'usual'"):
        export.values("tp8-b4", "usual", 0)


def test_written_values_are_the_contract_s(tmp_path):
    contract = op_exam.nano("kda_decode")
    export = OpExport(contract, 8)
    written = write(export, tmp_path, workloads=("tp8-b1", "tp8-b4"), seed=7)
    definition = files.read_definition(tmp_path / written.definition)
    assert definition == export.definition()
    one, four = files.read_workloads(tmp_path / written.workloads, definition)
    assert (one.axes, four.axes) == ({"batch_size": 1, "slots": 6}, {"batch_size": 4, "slots": 9})
    drawn = contract.make_inputs(export.workloads["tp8-b4"], "typical", 7)
    for name, at in four.inputs.items():
        held = load_file(tmp_path / at.path)[at.tensor_key]
        assert held.dtype == drawn[name].dtype and torch.equal(held.nan_to_num(), drawn[name].nan_to_num()), name
    assert sorted(tmp_path.rglob("*.safetensors")) == sorted(tmp_path / path for path in written.values)


def test_equal_weights_are_written_once(tmp_path):
    export = OpExport(op_exam.nano("in_projection"), 8)
    written = write(export, tmp_path, workloads=("tp8-b1", "tp8-b2", "tp8-b4"))
    assert len([path for path in written.values if path.name.startswith("static-")]) == 1
    assert len(written.values) == 4


def test_wrong_names_are_refused(tmp_path):
    export = OpExport(op_exam.nano("in_projection"), 8)
    with pytest.raises(UserError, match="no workload 'tp8-b3'"):
        write(export, tmp_path, workloads=("tp8-b3",))
    with pytest.raises(UserError, match="no workload at TP 3"):
        OpExport(op_exam.nano("in_projection"), 3)
    for name, sources, what in (("a/b", {"k.py": "x"}, "is no name"), ("ab", {"k.py": ""}, "k.py is empty")):
        with pytest.raises(UserError, match=what):
            solution(export, name, sources, "k.py", {})
    assert not list(tmp_path.iterdir())


def test_the_format_s_own_records_take_the_files(tmp_path):
    bench = pytest.importorskip("flashinfer_bench.data", reason="flashinfer-bench is not installed")
    for op in exportable():
        export = OpExport(op_exam.nano(op), 8)
        write(export, tmp_path, workloads=("tp8-b1",))
        kernel = solution(export, f"{export.name}-k", {"k.py": "def launch(): ..."}, "k.py", {})
        path = tmp_path / "solutions" / f"{op}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(files.to_json(kernel))
    found = bench.TraceSet.from_path(str(tmp_path))
    assert set(found.definitions) == {f"kimi_k3_{op}_tp8" for op in exportable()}
    assert all(len(found.workloads[name]) == len(found.solutions[name]) == 1 for name in found.definitions)
    ours = OpExport(op_exam.nano("kda_decode"), 8).definition().model_dump(mode="json")
    theirs = found.definitions["kimi_k3_kda_decode_tp8"].model_dump(mode="json")
    assert json.loads(json.dumps(ours)) == theirs


@pytest.mark.slow
@pytest.mark.parametrize("structure", ["fused", "split"])
def test_the_solution_computes_what_the_oracle_says(tmp_path, structure):
    contract = contracts.load("kimi_k3").op("kda_decode")
    export = OpExport(contract, 16)
    write(export, tmp_path, workloads=("tp16-b2",), distribution="padded", seed=3)
    kernel = solution(export, "shipped", {"kda_decode.py": KERNEL.read_text()}, "kda_decode.py",
                      CONFIG | {"structure": structure})  # fmt: skip
    (tmp_path / "solution.json").write_text(files.to_json(kernel))
    script = ROOT / "tests/support/interpreted_solution.py"
    out = tmp_path / "out.safetensors"
    subprocess.run([sys.executable, script, tmp_path, tmp_path / "solution.json", "tp16-b2", out], check=True)
    got = load_file(out)
    workload = export.workloads["tp16-b2"]
    inputs = export.values("tp16-b2", "padded", 3)
    assert (inputs["slots"] <= 0).any() and (inputs["slots"] > 0).any()
    got = {ours: got[new] for new, ours in export.outputs.items()}
    assert op_exam.failures(contract, workload, inputs, got) == []
