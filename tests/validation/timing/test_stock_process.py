"""The stock path's process: apart, clean, and honest about what it cannot do."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors.torch import load

from fasttrack_validation import contracts
from fasttrack_validation.timing import hygiene, stock_worker
from fasttrack_validation.timing.stock import StockFailed, StockProcess

torch = pytest.importorskip("torch")


def test_failing_to_run_is_the_stock_paths_fault_and_says_why():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU: the stock path runs")
    workload = contracts.load("kimi_k3").op("kda_decode").workloads()[0]
    with StockProcess("kimi_k3") as stock:
        with pytest.raises(StockFailed, match="CUDA|NVIDIA|cuda"):
            stock.capture("kda_decode", workload, "typical", [1, 2], 4)
        # The process survives its errors.
        with pytest.raises(StockFailed, match="CUDA|NVIDIA|cuda"):
            stock.flags()


def test_a_killed_process_is_a_clear_error():
    with StockProcess("kimi_k3") as stock:
        os.kill(stock._process.pid, signal.SIGKILL)
        with pytest.raises(StockFailed, match="ended during 'replay'"):
            stock.replay()


def test_loading_ahead_shifts_no_answer_and_hides_no_failure():
    """Without a GPU loading fails in the process, which goes on; each later question gets its own answer."""
    with StockProcess("kimi_k3") as stock:
        stock.load("kda_decode")
        stock.load("kda_decode")
        stock.load("no_such_op")
        assert set(stock.switches()) == set(hygiene.EXPECTED)
        with pytest.raises(StockFailed, match="no_such_op"):
            stock.capture("no_such_op", contracts.load("kimi_k3").op("kda_decode").workloads()[0], "typical", [1], 1)
        stock.load("experts")
        os.kill(stock._process.pid, signal.SIGKILL)
        with pytest.raises(StockFailed, match="ended during 'switches'"):
            stock.switches()
        stock.load("head")


def test_flags_that_a_caller_set_do_not_reach_the_process(monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    with StockProcess("kimi_k3") as stock:
        # A program that was just started is reported before its environment lies in its memory.
        while not (environment := Path(f"/proc/{stock._process.pid}/environ").read_bytes()):
            assert stock._process.poll() is None
    assert b"PATH=" in environment
    assert b"TF32" not in environment and b"CUBLAS" not in environment


def test_a_clean_process_has_the_switches_that_it_must_have():
    with StockProcess("kimi_k3") as stock:
        before = stock.switches()
        assert hygiene.fault(before, stock.switches()) is None
    assert set(before) == set(hygiene.EXPECTED)


PLANTED = {
    "default_dtype": "torch.set_default_dtype(torch.bfloat16)",
    "float32_matmul_precision": "torch.set_float32_matmul_precision('medium')",
    "cudnn_benchmark": "torch.backends.cudnn.benchmark = True",
    "deterministic_algorithms": "torch.use_deterministic_algorithms(True)",
    "scaled_dot_product_attention": "torch.backends.cuda.enable_flash_sdp(False)",
    "threads": "torch.set_num_threads(2); torch.set_num_threads = print",
    "variables": "import os; os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'backend:cudaMallocAsync'",
}


def test_a_slowed_stock_path_is_found_out(tmp_path, monkeypatch):
    """Faults are planted where one could be: in what the process imports before the judge's own code."""
    (tmp_path / "sitecustomize.py").write_text("\n".join(("import torch", *PLANTED.values())))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with StockProcess("kimi_k3") as stock:
        found = stock.switches()
    # With TF32 for products comes the switch that says so.
    assert {name for name in found if found[name] != hygiene.EXPECTED[name]} == {*PLANTED, "cuda_matmul_tf32"}
    for name in PLANTED:
        slowed = {**hygiene.EXPECTED, name: found[name]}
        fault = hygiene.fault(slowed, hygiene.EXPECTED)
        assert fault.reason == "stock.switches" and f"{name} of the stock path's process was " in fault.message
        assert hygiene.fault(hygiene.EXPECTED, slowed).message == fault.message.replace(" before ", " after ")


def test_a_program_without_a_main_guard_can_use_it(tmp_path):
    """A script that opens the stock path at its top level must not be run again by the process that it opens."""
    script = tmp_path / "script.py"
    script.write_text(
        "from fasttrack_validation.timing.stock import StockFailed, StockProcess\n"
        "print('once')\n"
        "with StockProcess('kimi_k3') as stock:\n"
        "    try:\n"
        "        stock.flags()\n"
        "    except StockFailed:\n"
        "        pass\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "once\n"), done.stderr


def test_what_a_replay_left_is_sent_by_content():
    """bf16 and whole blocks out of larger ones, and no memory shared with a process that may be gone by then."""
    left = {"out": torch.arange(12, dtype=torch.bfloat16).view(3, 4)[:, :2], "state": torch.full((2,), -0.0)}
    worker = stock_worker._Worker.__new__(stock_worker._Worker)
    worker.slots = [SimpleNamespace(bound=SimpleNamespace(outputs=left))]
    received = load(worker.do_produced(0))
    assert received["out"].tolist() == [[0, 1], [4, 5], [8, 9]] and received["out"].dtype is torch.bfloat16
    assert str(received["state"][0]) == "tensor(-0.)"


@pytest.mark.gpu
def test_times_and_counts_on_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    op = contracts.load("kimi_k3").op("kda_decode")
    workload = next(w for w in op.workloads() if w.axes["rows"] == 4)
    with StockProcess("kimi_k3") as stock:
        ceiling = stock.ceiling(400_000_000, 5)
        stock.capture("kda_decode", workload, "typical", [1, 2], 6)
        stock.refresh(7)
        reading = stock.replay()
        one, other = stock.produced(0), stock.produced(1)
        assert hygiene.fault(stock.switches(), stock.switches()) is None
    assert 1e12 < ceiling < 5e12
    assert stock.launches >= 4 and 0 < reading.event_ns < reading.host_ns
    assert not any(torch.equal(one[name], other[name]) for name in op.produced)
