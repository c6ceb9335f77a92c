"""A judge does not grow: open files, threads and processes stay as they are over many verdicts, and memory levels off."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

PATH = Path(__file__).parents[2] / "benchmarks/judge_leaks.py"
spec = importlib.util.spec_from_file_location("judge_leaks", PATH)
judge_leaks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(judge_leaks)


def test_theil_sen_by_hand():
    assert judge_leaks.theil_sen([1, 3, 5, 7, 9]) == (2.0, 2.0, 2.0)
    slope, low, high = judge_leaks.theil_sen([0, 1, 0, 1, 0, 1, 0, 1, 0, 1])
    assert low <= 0 <= high and slope == 0.0
    noise = np.random.Generator(np.random.PCG64(5)).normal(0, 1, 60)
    _, low, high = judge_leaks.theil_sen(list(noise))
    assert low < 0 < high
    _, low, _ = judge_leaks.theil_sen(list(noise + np.arange(60)))
    assert low > 0.9


@pytest.mark.slow
def test_a_judge_that_holds_a_device_keeps_its_files_threads_and_processes():
    """Sessions, and a worker that is replaced after every twentieth verdict."""
    series = judge_leaks.measure_device(judge_leaks.fake_verdicts(), 24, warm=8).values()
    for name in ("files", "threads", "sandbox_files", "sandbox_threads", "processes"):
        slope, low, high = judge_leaks.theil_sen(series[name])
        assert low <= 0 <= high, (name, slope, series[name])


@pytest.mark.slow
def test_files_threads_and_processes_stay():
    series = judge_leaks.measure(12).values()
    for name in ("files", "threads", "sandbox_files", "sandbox_threads", "processes", "sandbox_memory_kib"):
        slope, low, high = judge_leaks.theil_sen(series[name])
        assert low <= 0 <= high, (name, slope, series[name])
