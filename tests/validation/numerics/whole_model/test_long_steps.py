"""The recurrence over many steps as a GPU runs it; here its first steps, which are not replayed, interpreted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from long_tests import long

ROOT = Path(__file__).parents[4]
PROGRAM = """
import json, sys, torch
from pathlib import Path
from fasttrack_validation.contracts.kimi_k3.architecture import Architecture
from fasttrack_validation.contracts.kimi_k3.numerics import long_state, op_exams
from fasttrack_validation.numerics.whole_model import long_steps, long_rung
from fasttrack_validation.numerics.whole_model.specialised_worker import Worker

torch.set_num_threads(1)
steps, marks, tp = 12, (1, 10, 12), 48
worker = Worker(Path(sys.argv[1]))
worker.do_open({"layers": [0, 1, 3]}, 8, "cpu")
drift = long_state.Drift(Architecture.from_config(), tp, 3)
paths = {"oracle": drift.oracle(), "stock": drift.plain(), "again-1": drift.again(1)}
found = long_steps.states(drift, paths, steps, marks)
own = worker.do_long_state(3, tp, steps, marks)
from fasttrack_validation.numerics.whole_model.specialised import received
points = [
    point.model_dump() for step in marks
    for point in long_rung.moved(step, {**found[step], "candidate": tuple(received(t) for t in own[step])})
]
print(json.dumps(points))
"""


@long
@pytest.mark.slow
def test_the_kernel_stays_as_near_the_oracle_as_the_plain_recurrence():
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(ROOT / "models" / "kimi_k3")], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    points = json.loads(done.stdout)
    assert [(point["what"], point["at"]) for point in points] == [
        (what, at) for at in (1, 10, 12) for what in ("state", "output")
    ]
    for point in points:
        own, plain = (max(point["errors"][path]) for path in ("candidate", "stock"))
        assert 0 < own <= 3 * plain + 1e-7, point
