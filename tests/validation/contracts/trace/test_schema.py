"""Files of the format are read strictly; each refusal names file, line and field."""

import copy
import json

import pytest
import trace_files

from fasttrack_validation import strict
from fasttrack_validation.contracts.trace import files, schema
from fasttrack_validation.errors import UserError

SOLUTION = {
    "name": "one", "definition": "rmsnorm_h256", "author": "someone",
    "spec": {"language": "triton", "target_hardware": ["cuda"], "entry_point": "main.py::run"},
    "sources": [{"path": "main.py", "content": "def run(): ..."}],
}  # fmt: skip


def changed(document: dict, path: str, value) -> dict:
    """A copy with the value at a dotted path set, or taken away (None)."""
    document = copy.deepcopy(document)
    *way, last = path.split(".")
    inner = document
    for key in way:
        inner = inner[int(key) if key.isdigit() else key]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return document


def test_a_definition_by_hand_is_read(tmp_path):
    path, workloads, _ = trace_files.rmsnorm(tmp_path)
    definition = files.read_definition(path)
    assert definition.variable == ("batch_size",)
    assert definition.sizes({"batch_size": 3}) == {"batch_size": 3, "hidden_size": 256}
    assert [workload.uuid for workload in files.read_workloads(workloads, definition)] == ["rows7", "rows16"]


@pytest.mark.parametrize(
    ("path", "value", "field", "what"),
    [
        ("surprise", 1, "surprise", "is not a known key"),
        ("axes.batch_size.size", 1, "axes.batch_size.var.size", "is not a known key"),
        ("op_type", None, "op_type", "is missing"),
        ("axes.batch_size", {"type": "variable"}, "axes.batch_size", "does not match any of the expected tags"),
        ("axes.hidden_size", {"type": "const", "value": -1}, "axes.hidden_size.const.value", "greater than or"),
        ("axes.hidden_size", {"type": "const", "value": "H"}, "axes.hidden_size.const.value", "valid integer"),
        ("axes.hidden_size", {"type": "const"}, "axes.hidden_size.const.value", "is missing"),
        ("inputs.weight.dtype", "bf16", "inputs.weight.dtype", "is not a type of the format"),
        ("inputs.weight.shape", ["hidden"], "inputs.weight.shape", "axis 'hidden' is not among the axes"),
        ("inputs.weight.shape", ["2 * hidden_size"], "inputs.weight.shape", "is not among the axes"),
        ("inputs.weight.shape", [256], "inputs.weight.shape.0", "valid string"),
        ("outputs", {}, "outputs", "there is none"),
        ("outputs.weight", {"shape": None, "dtype": "float32"}, "outputs.weight", "is the name of an input as well"),
        ("reference", "def forward(x, w): return x", "reference", "no top-level function `run`"),
        ("reference", "class A:\n  def run(self): pass", "reference", "no top-level function `run`"),
        ("reference", "def run(x, w:", "reference", "is not Python"),
        ("reference", "def run(x): return x", "reference", "run takes 1 arguments, the definition has 2 inputs"),
        ("constraints", ["batch_size =< 3"], "constraints", "is not a Python expression"),
    ],
)
def test_a_malformed_definition_is_refused(tmp_path, path, value, field, what):
    file = tmp_path / "d.json"
    file.write_text(json.dumps(changed(trace_files.RMSNORM, path, value), indent=2))
    with pytest.raises(UserError) as refused:
        files.read_definition(file)
    assert str(file) in refused.value.what and field in refused.value.what and what in refused.value.what


@pytest.mark.parametrize(
    ("path", "value", "field", "what"),
    [
        ("workload.extra", 1, "workload.extra", "is not a known key"),
        ("definition", "other", "definition", "is 'other', not 'rmsnorm_h256'"),
        ("workload.axes", {}, "workload.axes.batch_size", "is missing"),
        ("workload.axes.hidden_size", 256, "workload.axes.hidden_size", "is not in the definition"),
        ("workload.inputs.weight", None, "workload.inputs.weight", "is missing"),
        ("workload.inputs.bias", {"type": "random"}, "workload.inputs.bias", "is not in the definition"),
        ("workload.inputs.weight", {"type": "normal"}, "workload.inputs.weight", "expected tags"),
        ("workload.inputs.weight", {"type": "safetensors", "path": "../x", "tensor_key": "w"},
         "workload.inputs.weight.safetensors.path", "is not a path inside the trace set"),
        ("workload.uuid", "rows7", "workload.uuid", "is there twice"),
    ],
)  # fmt: skip
def test_a_malformed_workload_is_refused(tmp_path, path, value, field, what):
    definition = schema.Definition.model_validate_json(json.dumps(trace_files.RMSNORM))
    good = trace_files.trace(trace_files.RMSNORM, "rows7", {"batch_size": 7})
    bad = changed(trace_files.trace(trace_files.RMSNORM, "rows9", {"batch_size": 9}), path, value)
    file = tmp_path / "w.jsonl"
    file.write_text(f"{json.dumps(good)}\n\n{json.dumps(bad)}\n")
    with pytest.raises(UserError) as refused:
        files.read_workloads(file, definition)
    assert refused.value.what.startswith(f"{file}:3: {field}: ") and what in refused.value.what


def test_a_file_without_workloads_is_refused(tmp_path):
    definition = schema.Definition.model_validate_json(json.dumps(trace_files.RMSNORM))
    (tmp_path / "w.jsonl").write_text("\n")
    with pytest.raises(UserError, match="has no workload"):
        files.read_workloads(tmp_path / "w.jsonl", definition)


@pytest.mark.parametrize(
    ("path", "value", "what"),
    [
        ("spec.language", "rust", "spec.language"),
        ("spec.entry_point", "main.py", "spec.entry_point"),
        ("spec.entry_point", "other.py::run", "'other.py' is not among the sources"),
        ("sources.0.path", "/etc/passwd", "sources.0.path: is not a path inside the solution"),
        ("sources", [], "sources"),
        ("sources", [SOLUTION["sources"][0]] * 2, "'main.py' is there twice"),
    ],
)
def test_a_malformed_solution_is_refused(path, value, what):
    strict.parse(json.dumps(SOLUTION), schema.Solution, "s.json")  # the honest twin
    with pytest.raises(UserError) as refused:
        strict.parse(json.dumps(changed(SOLUTION, path, value)), schema.Solution, "s.json")
    assert what in refused.value.what


@pytest.mark.parametrize("definition", [trace_files.RMSNORM, trace_files.GEMM], ids=lambda one: one["name"])
def test_the_format_s_own_records_agree(definition):
    bench = pytest.importorskip("flashinfer_bench.data", reason="flashinfer-bench is not installed")
    ours = schema.Definition.model_validate_json(json.dumps(definition))
    theirs = bench.Definition.model_validate_json(files.to_json(ours))
    assert theirs.model_dump(mode="json") == ours.model_dump(mode="json")
    assert theirs == bench.Definition.model_validate_json(json.dumps(definition))
