"""The stock path's process: apart, clean, and honest about what it cannot do."""

import os
import signal

import pytest

from fasttrack_validation import contracts
from fasttrack_validation.timing.stock import StockFailed, StockProcess, _clean_environment

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


def test_flags_that_a_caller_set_do_not_reach_the_process(monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    before = dict(os.environ)
    with _clean_environment():
        assert not {"NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG"} & set(os.environ)
        assert os.environ["PATH"] == before["PATH"]
    assert dict(os.environ) == before


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
    assert 1e12 < ceiling < 5e12
    assert stock.launches >= 4 and 0 < reading.event_ns < reading.host_ns
    assert not any(torch.equal(one[name], other[name]) for name in op.produced)
