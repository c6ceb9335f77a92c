"""Time of one decode step of the nano model in the oracle and in the plain path.

python benchmarks/oracle_step.py          nano, one token a step
python benchmarks/oracle_step.py --real   one KDA and one MLA layer at the real shapes of one rank of TP8, with memory

Threads are torch's default, or OMP_NUM_THREADS.
"""

import argparse
import resource
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
import k3_weights  # noqa: E402

from fasttrack_validation.contracts.kimi_k3.architecture import Architecture  # noqa: E402
from fasttrack_validation.contracts.kimi_k3.layer_weights import ModelWeights  # noqa: E402
from fasttrack_validation.contracts.kimi_k3.step.attn_res import Stream  # noqa: E402
from fasttrack_validation.contracts.kimi_k3.step.model import Model  # noqa: E402
from fasttrack_validation.contracts.kimi_k3.step.precision import EXACT, PUBLISHED, Precision  # noqa: E402
from fasttrack_validation.contracts.kimi_k3.step.state import Batch  # noqa: E402
from fasttrack_validation.contracts.kimi_k3.step.unpack import unpack  # noqa: E402

PRECISIONS = {"oracle (float64)": EXACT, "plain path (published rounding)": PUBLISHED}
TARGET_MS = 50
TARGET_GB = 24
PROMPT = 64
STEPS = 20


def step_ms(precision: Precision, weights: ModelWeights) -> tuple[float, float]:
    """Medians of STEPS single-token steps after a prompt of PROMPT tokens: wall time, and CPU time of all threads.

    On a machine that others use the second one says what a step costs.
    """
    nano = k3_weights.nano()
    model = Model(nano, [weights], precision)
    state = model.new_state(1, PROMPT + STEPS)
    tokens = k3_weights.tokens(nano, PROMPT + STEPS)
    model.prefill(Batch(tokens[:PROMPT], (0,), (PROMPT,)), state)
    times, cpu_times = [], []
    for token in tokens[PROMPT:]:
        start, cpu = time.perf_counter(), time.process_time()
        batch = Batch(token[None], (0,), (1,))
        model.decode(batch, state)
        state.commit(batch, (1,))
        times.append(1000 * (time.perf_counter() - start))
        cpu_times.append(1000 * (time.process_time() - cpu))
    return sorted(times)[STEPS // 2], sorted(cpu_times)[STEPS // 2]


def share(of: Architecture, tp: int) -> Architecture:
    """The architecture whose whole has the shapes that one rank of `of` has."""
    return of.model_copy(
        update={
            "kda": of.kda.model_copy(update={"heads": of.kda.heads // tp}),
            "mla": of.mla.model_copy(update={"heads": of.mla.heads // tp}),
            "moe": of.moe.model_copy(update={"expert_intermediate_size": of.moe.expert_intermediate_size // tp}),
            "kda_layers": (0, 1),
            "mla_layers": (2,),
            "layers": 3,
        }
    )


def real_layers(tp: int = 8) -> None:
    """One token through layers 1 and 2, a KDA and an MLA layer, each with a MoE and one bank to read."""
    of = share(Architecture.from_config(), tp)
    rng = torch.Generator().manual_seed(0)
    mixes = [k3_weights.draw_mix(rng, of.hidden_size) for _ in range(2)]
    mlp = k3_weights.draw_moe(of, rng)
    attentions = {1: k3_weights.draw_kda(of, rng), 2: k3_weights.draw_mla(of, rng)}
    layers = {n: k3_weights.LayerWeights(mixes[0], attention, mixes[1], mlp) for n, attention in attentions.items()}
    x = torch.randn(2, 1, of.hidden_size, generator=rng).bfloat16()
    for name, precision in PRECISIONS.items():
        model = Model(of, [ModelWeights(torch.empty(0), layers, mixes[0], torch.empty(0))], precision)
        state = model.new_state(1, 32)
        batch = Batch(torch.tensor([0]), (0,), (1,))
        attention = model.decoding(batch, state)
        stream = Stream(precision.wide(x[0]), of.attn_res_block_size, precision)
        stream.enter(0)
        stream.after_attention(0, precision.wide(x[1]))
        for number, layer in layers.items():
            start = time.perf_counter()
            model.layer(number, stream, [layer], attention)
            kind = "MLA" if number in of.mla_layers else "KDA"
            print(f"{name}, {kind} + MoE at TP{tp}: {time.perf_counter() - start:.2f} s", flush=True)
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory {gigabytes:.1f} GB, {gigabytes / TARGET_GB:.2f} of the target")


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--real", action="store_true", help="one rank's real shapes instead of nano")
    if parser.parse_args().real:
        return real_layers()
    print(f"nano, one token, {torch.get_num_threads()} threads, median of {STEPS}; target {TARGET_MS} ms")
    for name, precision in PRECISIONS.items():
        for state, weights in (
            ("unpacked once", unpack(k3_weights.nano_weights(), precision)),
            ("unpacked at every use", k3_weights.nano_weights()),
        ):
            ms, cpu = step_ms(precision, weights)
            print(f"{name}, weights {state}: {ms:.1f} ms, {ms / TARGET_MS:.2f} of the target; {cpu:.1f} ms of CPU",
                  flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
