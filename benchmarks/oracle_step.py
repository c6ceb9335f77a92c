"""Time of one decode step of the nano model in the oracle, and in the plain path; run it with OMP_NUM_THREADS=2."""

import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
import k3_weights  # noqa: E402

from fasttrack_validation.contracts.kimi_k3.step.model import Model  # noqa: E402
from fasttrack_validation.contracts.kimi_k3.step.precision import EXACT, PUBLISHED  # noqa: E402
from fasttrack_validation.contracts.kimi_k3.step.state import Batch  # noqa: E402

TARGET_MS = 50
PROMPT = 64
STEPS = 20


def step_ms(precision) -> float:
    """Median of STEPS single-token steps after a prompt of PROMPT tokens."""
    nano, weights = k3_weights.nano(), k3_weights.nano_weights()
    model = Model(nano, [weights], precision)
    state = model.new_state(1, PROMPT + STEPS)
    tokens = k3_weights.tokens(nano, PROMPT + STEPS)
    model.prefill(Batch(tokens[:PROMPT], (0,), (PROMPT,)), state)
    times = []
    for token in tokens[PROMPT:]:
        start = time.perf_counter()
        batch = Batch(token[None], (0,), (1,))
        model.decode(batch, state)
        state.commit(batch, (1,))
        times.append(1000 * (time.perf_counter() - start))
    return sorted(times)[STEPS // 2]


def main() -> None:
    print(f"nano, one token, {torch.get_num_threads()} threads, median of {STEPS}; target {TARGET_MS} ms")
    for name, precision in (("oracle (float64)", EXACT), ("plain path (published rounding)", PUBLISHED)):
        ms = step_ms(precision)
        print(f"{name}: {ms:.1f} ms, {ms / TARGET_MS:.2f} of the target")


if __name__ == "__main__":
    main()
