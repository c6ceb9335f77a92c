"""Jobs of good faith, limits, and a sandbox's own life: what callers rely on."""

import fcntl
import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from fasttrack_validation.errors import SandboxUnavailable
from fasttrack_validation.sandbox import JobStatus, Limits, Profile, Sandbox, probe, sealed_memory
from fasttrack_validation.sandbox.outcome import quote

EXECUTE = "fasttrack_validation.sandbox.acts:execute"


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(Profile.RECORDER, environ={"DECLARED": "yes"}) as sandbox:
        yield sandbox


@pytest.fixture
def memory():
    descriptor = sealed_memory(4096)
    yield descriptor
    os.close(descriptor)


def body(*lines: str) -> dict[str, str]:
    return {"source": "def main(memory, scratch):\n" + "\n".join(f"    {line}" for line in lines)}


def processes_of(judge: int) -> list[int]:
    """Zygotes, supervisors and jobs of one judge: all keep the zygote's command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if "zygote.main(" in (text := path.read_text()) and f", {judge})" in text:
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def wait_until(condition, seconds=20.0):
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)
    return condition()


def test_values_blobs_and_output_come_back(sandbox):
    result = sandbox.run(
        EXECUTE, body("print('said')", "return {'x': [1, 2.5, None, 'ä']}, [b'one', bytearray(b'two')]")
    )
    assert result.status is JobStatus.OK and result.error == ""
    assert result.value == {"x": [1, 2.5, None, "ä"]} and result.blobs == (b"one", b"two")
    assert (result.stdout, result.stderr) == ("said\n", "") and 0 < result.seconds < 30


def test_memory_is_shared_both_ways(sandbox, memory):
    os.pwrite(memory, b"judge", 0)
    result = sandbox.run(
        EXECUTE, body("seen = bytes(memory[0][:5])", "memory[0][:3] = b'job'", "return {}, [seen]"), memory=[memory]
    )
    assert result.blobs == (b"judge",) and os.pread(memory, 5, 0) == b"jobge"


def test_an_exception_is_an_error_with_its_traceback(sandbox):
    result = sandbox.run(EXECUTE, body("raise ValueError('the reason')"))
    assert result.status is JobStatus.ERROR and result.error.endswith("ValueError: the reason\n")


def test_the_environment_is_what_was_declared(sandbox, monkeypatch):
    monkeypatch.setenv("JUDGES_SECRET", "1")
    result = sandbox.run(EXECUTE, body("import os", "return dict(os.environ)"))
    assert result.value["DECLARED"] == "yes"
    assert result.value["HOME"] == result.value["TMPDIR"] == result.value["TRITON_HOME"]
    assert set(result.value) <= {
        "DECLARED", "HOME", "TMPDIR", "TRITON_HOME", "PATH", "LANG", "LC_CTYPE",
        "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
    }  # fmt: skip


def test_scratch_is_new_for_each_job(sandbox):
    source = body("import os, tempfile", "old = os.listdir(scratch)", "tempfile.mkstemp()", "return {'old': old}")
    assert [sandbox.run(EXECUTE, source).value for _ in range(2)] == [{"old": ["executed.py"]}] * 2


def test_compilers_run_in_the_recorder_only(sandbox):
    source = body("import subprocess", "return {'said': subprocess.check_output(['/bin/echo', 'compiled']).decode()}")
    assert sandbox.run(EXECUTE, source).value == {"said": "compiled\n"}
    with Sandbox(Profile.INTERPRETER) as interpreter:
        refused = interpreter.run(EXECUTE, source)
        assert refused.status is JobStatus.ERROR and "Operation not permitted" in refused.error
        thread = body(
            "import threading",
            "out = []",
            "t = threading.Thread(target=out.append, args=(1,))",
            "t.start()",
            "t.join()",
            "return {'out': out}",
        )
        assert interpreter.run(EXECUTE, thread).value == {"out": [1]}


@pytest.mark.parametrize(
    ("status", "limits", "lines"),
    {
        "hang": (JobStatus.TIMEOUT, {"wall_seconds": 0.5}, ["while True: pass"]),
        "sleep": (JobStatus.TIMEOUT, {"wall_seconds": 0.5}, ["import time", "time.sleep(100)"]),
        "stop": (JobStatus.TIMEOUT, {"wall_seconds": 0.5}, ["import os", "os.kill(os.getpid(), 19)"]),
        "segfault": (JobStatus.KILLED, {}, ["import ctypes", "ctypes.string_at(0)"]),
        "abort": (JobStatus.KILLED, {}, ["import os", "os.abort()"]),
        "one large block": (JobStatus.OUT_OF_MEMORY, {"memory_bytes": 1 << 30}, ["bytearray(1 << 31)"]),
        "many small blocks": (
            JobStatus.OUT_OF_MEMORY,
            {"memory_bytes": 400 << 20},
            ["kept = []", "while True: kept.append(bytes(1 << 16))"],
        ),
        "large blob": (JobStatus.OUTPUT_LIMIT, {"output_bytes": 1 << 20}, ["return {}, [bytes(2 << 20)]"]),
        "talk": (JobStatus.OUTPUT_LIMIT, {"output_bytes": 1 << 20}, ["while True: print('x' * 1000)"]),
        "large document": (JobStatus.ERROR, {}, ["return {'x': 'y' * (17 << 20)}"]),
        "exit": (JobStatus.ERROR, {}, ["import os", "os._exit(0)"]),
        "SystemExit": (JobStatus.ERROR, {}, ["raise SystemExit(0)"]),
        "no dict": (JobStatus.ERROR, {}, ["return [1]"]),
        "NaN": (JobStatus.ERROR, {}, ["return {'x': float('nan')}"]),
        "no such function": (JobStatus.ERROR, {}, ["return undefined()"]),
    }.values(),
    ids=lambda value: None,
)
def test_what_a_job_does_costs_that_job_only(sandbox, status, limits, lines):
    result = sandbox.run(EXECUTE, body(*lines), limits=Limits(**limits))
    assert result.status is status and result.error
    assert result.value == {} and result.blobs == ()
    assert sandbox.run(EXECUTE, body("return {'fine': True}")).value == {"fine": True}


def test_quoted_text_has_no_control_or_direction_characters(sandbox):
    result = sandbox.run(EXECUTE, body(r"raise ValueError('a\x1b[31m\u202eb\u2028c\x00d\n\te')"))
    assert result.error.endswith("ValueError: a[31mbcd\n\te\n")
    assert quote("x" * 50_000) == "x" * 16_000


def test_jobs_run_side_by_side_up_to_the_concurrency(memory):
    # Each job waits until it sees the other: they end only if both run at once; a third would be too many.
    meet = body(
        "import time",
        "slot = memory[0][0]",
        "memory[0][1 + PLACE] = 1",
        "while bytes(memory[0][1:3]) != b'\\1\\1': time.sleep(0.01)",
        "return {'met': True}",
    )["source"]
    with Sandbox(Profile.INTERPRETER, concurrency=2) as sandbox:
        results = [None, None]

        def job(place):
            results[place] = sandbox.run(
                EXECUTE, {"source": meet.replace("PLACE", str(place))}, memory=[memory], limits=Limits(wall_seconds=20)
            )

        threads = [threading.Thread(target=job, args=(place,)) for place in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [result.value for result in results] == [{"met": True}] * 2


def test_no_more_jobs_than_the_concurrency(memory):
    count = body(
        "import fcntl, time",
        "memory[0][0] += 1",
        "now = memory[0][0]",
        "time.sleep(0.1)",
        "memory[0][0] -= 1",
        "return {'now': now}",
    )
    with Sandbox(Profile.INTERPRETER, concurrency=1) as sandbox:
        seen = []
        threads = [
            threading.Thread(target=lambda: seen.append(sandbox.run(EXECUTE, count, memory=[memory]).value["now"]))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert seen == [1, 1, 1, 1]


def test_a_dead_zygote_is_replaced_once_for_all_threads():
    with Sandbox(Profile.INTERPRETER, concurrency=4) as sandbox:
        os.kill(sandbox._zygote.pid, signal.SIGKILL)
        results = []
        threads = [
            threading.Thread(target=lambda: results.append(sandbox.run(EXECUTE, body("return {'alive': True}"))))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [result.value for result in results] == [{"alive": True}] * 4


def test_memory_that_a_job_could_resize_is_refused(sandbox):
    plain = os.memfd_create("plain")
    try:
        os.ftruncate(plain, 4096)
        with pytest.raises(ValueError, match="sealed_memory"):
            sandbox.run(EXECUTE, body("return {}"), memory=[plain])
    finally:
        os.close(plain)
    sealed = sealed_memory(10)
    try:
        seals = fcntl.fcntl(sealed, fcntl.F_GET_SEALS)
        assert seals == fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    finally:
        os.close(sealed)


def test_a_closed_sandbox_ends_its_jobs_and_takes_no_more():
    sandbox = Sandbox(Profile.INTERPRETER)
    outcome = []

    def job():
        try:
            outcome.append(sandbox.run(EXECUTE, body("import time", "time.sleep(100)")))
        except RuntimeError as error:
            outcome.append(error)

    thread = threading.Thread(target=job)
    thread.start()
    assert wait_until(lambda: sandbox._running)
    time.sleep(0.3)
    before = processes_of(os.getpid())
    sandbox.close()
    thread.join(20)
    assert isinstance(outcome[0], RuntimeError)
    assert wait_until(lambda: len(processes_of(os.getpid())) < len(before) - 2)
    with pytest.raises(RuntimeError, match="closed"):
        sandbox.run(EXECUTE, body("return {}"))


def test_missing_modules_and_threads_are_refused_at_start():
    with pytest.raises(SandboxUnavailable, match="no_such_module"):
        Sandbox(Profile.INTERPRETER, preload=("no_such_module",))
    if (os.cpu_count() or 1) > 1:
        with pytest.raises(SandboxUnavailable, match="threads"):
            Sandbox(Profile.INTERPRETER, preload=("numpy",), environ={"OPENBLAS_NUM_THREADS": "2"})


def test_unsafe_says_so():
    with Sandbox(Profile.INTERPRETER, rungs=(), unsafe=True) as sandbox:
        assert sandbox.description.startswith("none (--unsafe-no-sandbox)")
        assert sandbox.run(EXECUTE, body("return {'x': 1}")).value == {"x": 1}
        assert (
            sandbox.run(EXECUTE, body("while True: pass"), limits=Limits(wall_seconds=0.3)).status is JobStatus.TIMEOUT
        )


def test_probe_tells_what_every_act_came_to():
    rung = probe()
    assert all(trial.held for trial in rung.trials)
    acts = {trial.act for trial in rung.trials}
    assert {"open a socket", "start more processes than the limit", "fork", "run a Triton kernel"} <= acts
    assert json.loads(rung.canonical_json())["name"] == rung.name
