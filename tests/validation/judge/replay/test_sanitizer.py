"""compute-sanitizer's part of the verdict: its logs, how it is run, and what becomes of what it says."""

import os
import sys

import numpy as np
import pytest
import torch
from fake_kernels import CHAIN, TOY, chain_codes, chain_pack, device_code, toy_pack
from fasttrack_validation.contracts.base import TensorRole, TensorSpec
from fasttrack_validation.judge import sanitizer_stage
from fasttrack_validation.judge.arena import Arena
from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.judge.pack import variant_key
from fasttrack_validation.judge.replay import sanitizer, sanitizer_log
from fasttrack_validation.judge.replay.choose import choose
from fasttrack_validation.judge.replay.device import Device
from fasttrack_validation.judge.replay.sanitizer import Report
from fasttrack_validation.judge.ruling import Ruling
from fasttrack_validation.judge.verdict import Outcome, Status, rule
from fasttrack_validation.tensors import DType
from judging import replaced
from own_kernels import codes, noise, noise_plan
from toy_contract import Toy

CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
RACE_CLEAN = "========= COMPUTE-SANITIZER\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"
# As the tool's own documentation shows them (Compute Sanitizer, "Memcheck Tool" to "Synccheck Tool").
MEMCHECK = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at unaligned_kernel()+0x60 in memcheck_demo.cu:34
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7f6510c00001 is misaligned
=========     and is inside the nearest allocation at 0x7f6510c00000 of size 4 bytes
=========
========= Invalid __global__ write of size 4 bytes
=========     at out_of_bounds_function()+0x30 in memcheck_demo.cu:39
=========     by thread (0,0,0) in block (0,0,0)
=========     Device Frame: out_of_bounds_kernel()+0x30 in memcheck_demo.cu:44
=========
========= Invalid __global__ write of size 4 bytes
=========     at unaligned_kernel()+0x60 in memcheck_demo.cu:34
=========     by thread (1,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 3 errors
"""
RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at void half<int>(float *)+0x90 in block_error.cu:34
=========     and Read access at void half<int>(float *)+0x140 [508 hazards]
=========
========= Warning: Race reported between Read access at quiet(int *)+0xe0
=========     and Write access at quiet(int *)+0x80 [4 hazards]
=========
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""
INITCHECK = """\
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at finish+0x70
=========     by thread (31,0,0) in block (1,0,0)
=========     Address 0x7f3c7ec000fc
=========
========= ERROR SUMMARY: 1 error
"""
SYNCCHECK = """\
========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in block.
=========     at 0x2c8 in divergent.cu:20:finish(float *)
=========     by thread (63,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 1 error
"""
UNSUPPORTED = """\
========= COMPUTE-SANITIZER
========= Error: Device not supported. Please refer to the "Supported Devices" section of the sanitizer documentation
========= ERROR SUMMARY: 0 errors
"""


def test_logs_as_the_documentation_has_them():
    found = sanitizer_log.read(MEMCHECK)
    assert found.errors == 3 and found.complaint == ""
    assert [(one.kernel, one.count) for one in found.findings] == [("unaligned_kernel", 2), ("out_of_bounds_function", 1)]
    assert found.findings[0].message == "Invalid __global__ write of size 4 bytes"
    assert found.findings[0].places == ("0x60 in memcheck_demo.cu:34",)
    assert sanitizer_log.read(INITCHECK).findings[0].places == ("0x70",)
    assert sanitizer_log.read(SYNCCHECK).findings[0].places == ("0x2c8 in divergent.cu:20",)
    assert sanitizer_log.read(RACECHECK).findings[0].places == ("0x90 in block_error.cu:34", "0x140")
    (race,) = sanitizer_log.read(RACECHECK).findings
    assert (race.kernel, race.count) == ("half", 1)  # a warning is no finding
    assert race.message == (
        "Error: Race reported between Write access at void half<int>(float *)+0x90 in block_error.cu:34 and Read access "
        "at void half<int>(float *)+0x140 [508 hazards]"
    )
    assert sanitizer_log.read(RACECHECK).errors == 1
    assert [one.kernel for one in sanitizer_log.read(INITCHECK).findings] == ["finish"]
    assert [one.kernel for one in sanitizer_log.read(SYNCCHECK).findings] == ["finish"]
    assert sanitizer_log.read(UNSUPPORTED).complaint.startswith("Error: Device not supported")
    assert sanitizer_log.read(RACE_CLEAN) == sanitizer_log.Log((), 0)
    assert sanitizer_log.read("").errors is None and sanitizer_log.read("========= COMPUTE-SANITIZER\n").errors is None


def judged(text, *, tool="memcheck", entries=frozenset({"finish"}), stopped="", code=0):
    return sanitizer.judged(tool, sanitizer_log.read(text), set(entries), stopped, code)


def test_only_a_whole_and_clean_run_passes():
    assert judged(CLEAN).outcome == "pass"
    for report, why in (
        (judged(""), "no summary"), (judged(UNSUPPORTED), "Device not supported"),
        (judged(CLEAN, stopped="run did not end within 400 s", code=None), "run did not end"),
        (judged(CLEAN, code=sanitizer.ERROR_CODE), "ended with 86"), (judged(CLEAN, code=None), "did not end"),
        (judged("========= ERROR SUMMARY: 2 errors\n"), "counts 2 errors"),
    ):  # fmt: skip
        assert report.outcome == "not run" and why in report.not_run, report


def test_the_judges_own_kernels_are_not_blamed_on_a_candidate_unless_it_borrows_their_name():
    text = INITCHECK.replace("finish", "judge_noise")
    assert judged(text, code=86).outcome == "not run"
    assert judged(text, entries=frozenset({"judge_noise"}), code=86).outcome == "fail"


FAKE = """#!{python}
import subprocess, sys, time
arguments = sys.argv[1:]
end = arguments.index("--")
options = dict(zip(arguments[:end:2], arguments[1:end:2]))
texts = {texts!r}
text = texts[options["--tool"]]
if text == "hang":
    time.sleep(60)
if text == "broken":
    sys.exit("this tool is broken")
code = subprocess.run(arguments[end + 1 :], close_fds=False).returncode
open(options["--log-file"], "w").write(text)
sys.exit(code or (int(options["--error-exitcode"]) if "SUMMARY: 0" not in text and ", 0 errors" not in text else 0))
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """fake(tool=log, ...) puts a compute-sanitizer on the path that runs its target and writes these logs."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def make(**texts):
        clean = {tool: RACE_CLEAN if tool == "racecheck" else CLEAN for tool in sanitizer.TOOLS}
        program = folder / sanitizer.PROGRAM
        program.write_text(FAKE.format(python=sys.executable, texts={**clean, **texts}))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))
        return str(program)

    return make


N = 8


@pytest.fixture
def arena():
    plan = chain_pack(N)
    specs = tuple(
        TensorSpec(name=name, dtype=DType.F32, role=role, shape=(N,), strides=(1,))
        for name, role in (("x", TensorRole.INPUT), ("out", TensorRole.OUTPUT))
    )
    made = Arena(specs, plan.scratch, {}, np.random.Generator(np.random.PCG64(7)))
    made.put("x", torch.arange(N, dtype=torch.float32))
    made.seal()
    yield made
    made.close()


def checked(arena, program, tool="memcheck", text=CHAIN):
    plan = chain_pack(N)
    made = chain_codes(text, plan)
    codes = {key: made[variant_key(kernel)] for key, kernel in plan.kernels.items()}
    return sanitizer.check(Device("fake"), plan, codes, arena, tool, program)


def test_the_worker_runs_under_the_tool(fake, arena):
    program = fake(racecheck=RACECHECK, initcheck=INITCHECK)
    assert checked(arena, program) == Report("memcheck")
    assert [one.kernel for one in checked(arena, program, "racecheck").findings] == ["half"]
    assert [one.kernel for one in checked(arena, program, "initcheck").findings] == ["finish"]


def test_what_keeps_a_tool_from_running_is_said(fake, arena, monkeypatch):
    assert "Device not supported" in checked(arena, fake(memcheck=UNSUPPORTED)).not_run
    broken = checked(arena, fake(memcheck="broken")).not_run
    assert "ended with 1" in broken and "this tool is broken" in broken
    monkeypatch.setattr("fasttrack_validation.judge.replay.device.START_SECONDS", 0.2)
    assert "did not start: it did not answer within 0.6 s" in checked(arena, fake(memcheck="hang")).not_run


def test_a_fault_under_a_tool_that_saw_nothing_is_no_pass(fake, arena):
    text = replaced(CHAIN, 'call.array(mid, "f4", n) * 2', 'call.array(mid - (1 << 40), "f4", n) * 2')
    assert "ILLEGAL_ADDRESS" in checked(arena, fake(), text=text).not_run
    named = MEMCHECK.replace("unaligned_kernel", "finish")
    assert checked(arena, fake(memcheck=named), text=text).findings[0].kernel == "finish"


def test_initcheck_leaves_blank_what_the_plan_has_to_write(fake, arena):
    """Seen from a kernel: scratch and guard bands hold noise under other tools, and what memory came with (zeros, on
    the fake device) under initcheck; inputs are there under both."""
    look = (
        'if call.array(x, "f4", n)[3] != 3: missing()\n    '
        'if call.array(mid, "u1", 4 * n).any() or call.array(x - 64, "u1", 64).any(): filled()\n    call'
    )
    text = replaced(CHAIN, 'def half(call, x: "Q", mid: "Q", n: "i", g: "Q", p: "Q"):\n    call',
                    'def half(call, x: "Q", mid: "Q", n: "i", g: "Q", p: "Q"):\n    ' + look) + '''
def filled():
    raise DeviceError("CUDA_ERROR_LAUNCH_FAILED", "a launch")
def missing():
    raise DeviceError("CUDA_ERROR_ASSERT", "a launch")
'''  # fmt: skip
    program = fake()
    assert "LAUNCH_FAILED" in checked(arena, program, "memcheck", text).not_run
    assert checked(arena, program, "initcheck", text).outcome == "pass"


def test_the_tool_is_looked_for_where_it_may_be(fake, monkeypatch, tmp_path):
    program = fake()
    assert sanitizer.find() == program
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sanitizer, "_PLACES", (os.path.dirname(program),))
    assert sanitizer.find() == program


def stage(text=TOY):
    """C15 after the stage over the toy op's two workloads."""
    contract = Toy()
    packs = {workload.name: toy_pack(workload) for workload in contract.workloads()}
    codes = {variant_key(pack.kernels["k"]): device_code(text, "accumulate") for pack in packs.values()}
    candidate = Candidate(op="accumulate", entry="k.py", files={"k.py": ""}, config={})
    found = Ruling(
        model="toy", op="accumulate", candidate=candidate, contract_digest="c", judge_digest="j", sandbox="s", unsafe=False
    )
    sanitizer_stage.sanitize(
        Device("fake"), contract, packs, codes, contract.workloads(), lambda pack, spec: {}, found
    )
    return next(check for check in found.verdict().checks if check.check == "C15")


def test_all_four_tools_are_in_the_verdict(fake):
    fake()
    check = stage()
    assert check.outcome is Outcome.PASS and check.figures == dict.fromkeys(sanitizer.TOOLS, "pass")


def test_a_tool_that_finds_something_rejects(fake):
    fake(racecheck=RACECHECK.replace("half", "accumulate"), synccheck=UNSUPPORTED)
    check = stage()
    assert (check.outcome, check.reason) == (Outcome.FAIL, "sanitizer.racecheck")
    assert check.figures == {"memcheck": "pass", "racecheck": "fail", "initcheck": "pass", "synccheck": "not run"}
    assert "Race reported" in check.message and "in accumulate" in check.message and "synccheck not run" in check.message
    assert rule((check,), ())[:2] == (Status.REJECTED, "sanitizer.racecheck")


def test_without_the_tool_it_is_not_run_and_nobody_is_rejected(monkeypatch):
    monkeypatch.setattr(sanitizer, "find", lambda: None)
    check = stage()
    assert (check.outcome, check.reason) == (Outcome.NOT_RUN, "sanitizer.not_run")
    assert set(check.figures.values()) == {"not run"} and check.message.count("compute-sanitizer was not found") == 4
    assert rule((check,), ())[0] is Status.ACCEPTED


def test_workloads_are_small_and_bring_every_kernel():
    contract = Toy()
    one, batch = contract.workloads()
    packs = {workload.name: toy_pack(workload) for workload in (one, batch)}
    assert sanitizer_stage.chosen(contract, (one, batch), packs) == (batch,)
    special = packs[one.name].kernels["k"].model_copy(update={"constexprs": {"ROWS": 1}})
    packs[one.name] = packs[one.name].model_copy(update={"kernels": {"k": special}})
    assert sanitizer_stage.chosen(contract, (one, batch), packs) == (batch, one)


@pytest.mark.gpu
@pytest.mark.parametrize("tool", sanitizer.TOOLS)
def test_the_judges_own_kernels_are_clean_under_every_tool(tool):
    device, why = choose("auto")
    if device is None or sanitizer.find() is None:
        pytest.skip(why or "compute-sanitizer was not found")
    plan = noise_plan(noise())
    spec = TensorSpec(name="out", dtype=DType.I64, role=TensorRole.OUTPUT, shape=(1000,), strides=(1,))
    arena = Arena((spec,), {}, {}, np.random.Generator(np.random.PCG64(3)))
    try:
        arena.seal()
        by_key = {name: codes(plan)[variant_key(v)] for name, v in plan.kernels.items()}
        with device:
            report = sanitizer.check(device, plan, by_key, arena, tool, sanitizer.find())
    finally:
        arena.close()
    assert report.outcome == "pass", report
