"""The glue around compile jobs: faults cost one variant; the cache saves jobs and its key has all that counts."""

import os
import signal

import pytest
from elf_files import elf
from fasttrack_validation.judge.device_code.build import build
from fasttrack_validation.judge.device_code.records import DeviceCode

SASS = """        /*0000*/                   EXIT ;   /* 0x000000000000794d */
                                            /* 0x000fe20000000800 */
"""
CUBIN = elf({".text.add": 16}, tail=b"\xff")


def answer(key, **changes):
    """What a compile job says about a kernel of one instruction, derived by hand."""
    fields = {
        "target": "sm_90", "entry": "add", "parameters": ["x"], "warps": 4, "ctas": 1, "shared_bytes": 64,
        "tensor_memory_columns": 0, "global_scratch_bytes": 0, "global_scratch_align": 1, "profile_scratch_bytes": 0,
        "launch_pdl": False, "launch_cooperative_grid": False, "compiler": "Triton 3.9.0, ptxas 13.4.59",
        "ptxas_log": "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\nUsed 26 registers, 32 bytes smem",
        "resource_usage": " Function add:\n  REG:26 STACK:0 SHARED:0 LOCAL:0\n",
    } | changes  # fmt: skip
    blobs = (b".reqntid 128\n", CUBIN, SASS.encode())
    return {"kernels": {key: fields}, "order": [key], "problems": {}}, blobs


@pytest.fixture
def jobs(lab):
    """A run_job that answers at once and counts; `behave[key]` replaces the answer for a key."""

    class Jobs:
        def __init__(self):
            self.ran, self.behave = [], {}

        def __call__(self, payload):
            (key,) = payload["variants"]
            self.ran.append((key, payload["target"]))
            if key in self.behave:
                return self.behave[key]
            return lab.Outcome("ok", *answer(key, target=f"sm_{payload['target']}"))

    return Jobs()


def test_audits_follow_the_pack(lab, jobs):
    built = build({"kernels.py": ""}, {"one": lab.ADD, "two": lab.ADD}, jobs)
    assert [(audit.kernel, audit.target) for audit in built.audits] == [
        ("one", "sm_90"), ("two", "sm_90"), ("one", "sm_103"), ("two", "sm_103"),
    ]  # fmt: skip
    assert built.problems == ()
    assert built.audits[0].shared_bytes == 64 + 32 and built.audits[0].code_bytes == 16


def test_a_crash_costs_one_variant(lab, jobs):
    jobs.behave["two"] = lab.Outcome("killed", error="signal 6", stderr="LLVM ERROR: operation destroyed")
    built = build({"kernels.py": ""}, {"one": lab.ADD, "two": lab.ADD, "three": lab.ADD}, jobs, targets=(90,))
    assert [code.kernel for code in built.codes] == ["one", "three"]
    (problem,) = built.problems
    assert (problem.kernel, problem.reason) == ("two", "compile.crashed")
    assert "LLVM ERROR" in problem.message and "signal 6" in problem.message


def test_a_real_abort_of_the_child_is_a_crash(lab, monkeypatch):
    from fasttrack_validation.judge.device_code import compile_job

    def abort(*args):
        os.write(2, b"LLVM ERROR: as the compiler does\n")
        os.kill(os.getpid(), signal.SIGABRT)

    monkeypatch.setattr(compile_job, "_compile", abort)
    (problem,) = build({"kernels.py": lab.KERNELS}, {"k": lab.ADD}, lab.run_job, targets=(90,)).problems
    assert problem.reason == "compile.crashed"
    assert "LLVM ERROR: as the compiler does" in problem.message


@pytest.mark.parametrize(
    "value",
    [{}, {"problems": {}, "kernels": {}}, {"problems": 3}, {"problems": {}, "kernels": {"one": {"warps": "many"}}}],
)
def test_a_malformed_answer_is_a_problem(lab, jobs, value):
    jobs.behave["one"] = lab.Outcome("ok", value, (b"", b"", b""))
    (problem,) = build({"kernels.py": ""}, {"one": lab.ADD}, jobs, targets=(90,)).problems
    assert problem.reason == "compile.answer"


def test_blobs_that_do_not_fit_are_a_problem(lab, jobs):
    jobs.behave["one"] = lab.Outcome("ok", answer("one")[0], (b"only one",))
    (problem,) = build({"kernels.py": ""}, {"one": lab.ADD}, jobs, targets=(90,)).problems
    assert problem.reason == "compile.answer"


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"resource_usage": " Function add:\n  REG:27 STACK:0\n"}, "registers"),
        ({"resource_usage": " Function add:\n  REG:26 STACK:8\n"}, "stack"),
        ({"resource_usage": ""}, "registers"),
        ({"warps": 8}, "threads"),
        ({"ptxas_log": "nothing"}, "no registers"),
    ],
)
def test_tools_that_disagree_give_no_audit(lab, jobs, changes, word):
    jobs.behave["one"] = lab.Outcome("ok", *answer("one", **changes))
    built = build({"kernels.py": ""}, {"one": lab.ADD}, jobs, targets=(90,))
    assert built.audits == () and built.codes == ()
    (problem,) = built.problems
    assert problem.reason == "compile.audit" and word in problem.message


def test_the_cache_saves_jobs_and_keeps_bytes(lab, jobs, tmp_path):
    first = build({"kernels.py": ""}, {"one": lab.ADD}, jobs, cache=tmp_path)
    again = build({"kernels.py": ""}, {"renamed": lab.ADD}, jobs, cache=tmp_path)
    assert jobs.ran == [("one", 90), ("one", 103)]
    assert again.codes[0] == first.codes[0].model_copy(update={"kernel": "renamed"})
    assert again.codes[0].cubin == CUBIN
    assert {path.suffix for path in tmp_path.iterdir()} == {".json"}, "no temporary files stay"


def test_the_cache_is_keyed_by_source_and_variant(lab, jobs, tmp_path):
    other = lab.variant("add", {"x": "*fp32", "y": "*fp32", "o": "*fp32", "n": "i32"}, {"BLOCK": 512})
    changes = (("k.py", "", lab.ADD), ("k.py", "#", lab.ADD), ("j.py", "", lab.ADD), ("k.py", "", other))
    for name, text, variant in changes:
        build({name: text}, {"one": variant}, jobs, targets=(90,), cache=tmp_path)
    assert len(jobs.ran) == 4


def test_a_damaged_entry_is_compiled_again(lab, jobs, tmp_path):
    build({"kernels.py": ""}, {"one": lab.ADD}, jobs, targets=(90,), cache=tmp_path)
    (entry,) = tmp_path.iterdir()
    entry.write_bytes(entry.read_bytes()[:100])
    build({"kernels.py": ""}, {"one": lab.ADD}, jobs, targets=(90,), cache=tmp_path)
    assert len(jobs.ran) == 2
    assert DeviceCode.model_validate_json(entry.read_bytes()).kernel == "one"


def test_failures_are_not_kept(lab, jobs, tmp_path):
    jobs.behave["one"] = lab.Outcome("timeout", error="60 s")
    for _ in range(2):
        build({"kernels.py": ""}, {"one": lab.ADD}, jobs, targets=(90,), cache=tmp_path)
    assert len(jobs.ran) == 2


def test_past_the_deadline_no_job_begins(lab, jobs, tmp_path):
    build({"kernels.py": ""}, {"one": lab.ADD}, jobs, targets=(90,), cache=tmp_path)
    other = lab.variant("add", {"x": "*fp32", "y": "*fp32", "o": "*fp32", "n": "i32"}, {"BLOCK": 512})
    built = build({"kernels.py": ""}, {"one": lab.ADD, "two": other}, jobs, (90,), tmp_path, deadline=0.0)
    assert [code.kernel for code in built.codes] == ["one"], "what is kept costs no job"
    assert [problem.reason for problem in built.problems] == ["compile.out_of_time"] and len(jobs.ran) == 1


def test_cuda_variants_are_keyed_by_their_own_files_and_compiler(lab, jobs, tmp_path, monkeypatch):
    fields = {
        "language": "cuda", "file": "k.cu", "function": "k", "signature": {}, "constexprs": {}, "divisible_by_16": (),
        "options": {"threads": 32},
    }  # fmt: skip
    cuda = type(lab.ADD).model_validate(fields)
    for python, text in (("", ""), ("#", ""), ("", "int x;")):
        build({"kernels.py": python}, {"one": cuda}, jobs, (90,), tmp_path, {"k.cu": text})
    assert len(jobs.ran) == 2, "Triton sources are none of its business"
    monkeypatch.setattr("fasttrack_validation.judge.device_code.build.cuda_packages", lambda: ["another"])
    build({"kernels.py": ""}, {"one": cuda}, jobs, (90,), tmp_path, {"k.cu": ""})
    assert len(jobs.ran) == 3
