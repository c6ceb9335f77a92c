"""Runs or resumes the lane in a process of its own, so that it can be killed: CHECKOUT LOG propose|resume."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import lane_fakes as fakes

from fasttrack import lane
from fasttrack.voice import Voice

checkout, log, mode = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
parts = fakes.services(fakes.Judge(log, pause=0.15))
if mode == "resume":
    outcome = lane.resume("toy", None, None, checkout, parts, Voice(quiet=True))
else:
    chosen = lane.Options(model="toy", op="copy", checkout=checkout, seed=7, rounds=10)
    outcome = lane.propose(chosen, parts, Voice(quiet=True))
print(outcome.message)
