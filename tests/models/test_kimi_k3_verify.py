"""Verify steps of a small model through the decode path: as single steps, whatever number of tokens is accepted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from long_tests import long

SUPPORT = Path(__file__).parents[1] / "support"
# As for single steps: the plain path rounds at nearly the same points, and random weights magnify the rest.
RATIO, NOISE = 2.0, 0.02


def interpreted(*arguments: str) -> dict:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, SUPPORT / "interpreted_verify.py", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_verify_step_is_single_steps_for_every_accepted_count():
    """Against the kernels' own single steps bit for bit, and against the oracle's beside the plain path's.

    MLA's core cuts slices of what a request's last token sees: at these lengths as it would for each token alone.
    """
    found = interpreted("steps", "1")
    assert {key.partition(" accepted")[0] for key in found["rows"] if " accepted" in key} == {"0", "1", "2", "3"}
    # 3 tokens, then for each of four accepted counts 1, and once 3; two requests.
    assert len(found["rows"]) == len(found["singles"]) == 2 * (3 + 4 * 1 + 3)
    for key, difference in found["singles"].items():
        assert difference == 0, key
    ratios = sorted(own / max(plain, NOISE / RATIO) for own, plain in found["rows"].values())
    assert ratios[len(ratios) // 2] < 1.25 and ratios[-1] < 2 * RATIO, ratios
    assert found["committed"] is True and found["null pages"] is True


@long
def test_every_planted_fault_of_a_verify_step_shows():
    found = interpreted("faults")
    assert found.pop("none") == [0, 0]
    # (the step itself, a step from what it left): a state that lands elsewhere is seen by the next step alone.
    later = {"pages rolled", "one token too many"}
    # The last layer's: what it reads of itself later was written before.
    now, then = found.pop("unmasked")
    assert now > NOISE and then == 0
    assert set(found) == {"lengths", "index -1", "tokens apart", *later}
    for name, (now, then) in found.items():
        assert then > NOISE / 2 and (now > NOISE) == (name not in later), (name, now, then)
