"""The stock path's Triton kernels, fla-core's recurrence among them, against the plain path in Triton's interpreter."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[3] / "support"

# Same roundings in the same places.
EXACT = ("stream", "bank", "situ", "kda padded row", "mla padded row", "mla, small pages padded row", "mla null page")
# One rounding to bfloat16 that another order of summation, or rounding between kernels, can push over.
NEAR = {
    "mix and norm of every layer": 1e-3,
    "rms_norm": 1e-3,
    "kda output": 8e-3,
    "kda conv": 1e-3,
    "kda recurrent": 4e-3,
    "mla output": 8e-3,
    "mla rows": 1e-3,
    "mla, small pages output": 8e-3,
    "mla, small pages rows": 1e-3,
}


@pytest.fixture(scope="module")
def errors() -> dict[str, float]:
    pytest.importorskip("fla")
    pytest.importorskip("triton")
    script = SUPPORT / "interpreted_stock.py"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_every_result_is_judged(errors):
    assert set(errors) == {*EXACT, *NEAR}


@pytest.mark.parametrize("name", EXACT)
def test_same_bits(errors, name):
    assert errors[name] == 0


@pytest.mark.parametrize(("name", "bound"), NEAR.items())
def test_within_rounding(errors, name, bound):
    assert errors[name] < bound
