"""The timing method against itself on a GPU: how often does a contestant beat its own twin?

Both contestants are the stock path of one op, each in a process of its own; every other trial exchanges their roles.
Every trial is a whole session of quads, to which the rule that promotes a candidate is applied, with the declared
smallest effect and without one. The number of promotions is held to the declared rate by the exact one-sided test. Two
copies of one program do differ a little, for as long as they live, by where their memory lies: what that amounts to is
printed, and is why the rule needs a smallest effect.

    python benchmarks/aa.py --trials 400 [--op kda_decode] [--tp 8] [--rows 1] [--quads 8] [--out aa.json]
"""

import argparse
import json
import random
import time

from fasttrack_validation import contracts
from fasttrack_validation.performance.hardware import profile
from fasttrack_validation.timing.clocks import Card
from fasttrack_validation.timing.comparison import ALPHA, SMALLEST_EFFECT, Quad, Standing, compare
from fasttrack_validation.timing.plausibility import cold_share
from fasttrack_validation.timing.session import Method, run_session
from fasttrack_validation.timing.slots import rotation
from fasttrack_validation.timing.statistics import median_interval, most_successes, tail_probability
from fasttrack_validation.timing.stock import StockProcess


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="kimi_k3")
    parser.add_argument("--op", default="kda_decode")
    parser.add_argument("--tp", type=int, default=8)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--quads", type=int, default=8)
    parser.add_argument("--hardware", default="h200")
    parser.add_argument("--out", help="write every trial as JSON")
    chosen = parser.parse_args()
    op = contracts.load(chosen.model).op(chosen.op)
    point = next(w for w in op.workloads() if w.axes["tp"] == chosen.tp and w.axes["rows"] == chosen.rows)
    l2, moved = profile(chosen.hardware).l2_bytes, op.cost(point).bytes
    slots = rotation(moved, l2, slot_bytes=moved, memory_bytes=20 << 30)
    method = Method(quads=chosen.quads, slots=slots, cold=round(cold_share(moved, slots, l2), 3), l2_bytes=l2)
    source, card, trials, began = random.Random(), Card(), [], time.monotonic()
    distribution = next(iter(op.distributions))
    with StockProcess(chosen.model) as one, StockProcess(chosen.model) as other:
        for process in (one, other):
            process.capture(chosen.op, point, distribution, [1, 2, 3, 4], slots)
        for number in range(chosen.trials):
            roles = (one, other) if number % 2 == 0 else (other, one)
            found = run_session(*roles, method, floor_us=0.0, source=source, card=card, warm_up=6 if number == 0 else 1)
            a, b = found.a.samples, found.b.samples
            trials.append([Quad(a1=a[i], b1=b[i], b2=b[i + 1], a2=a[i + 1]) for i in range(0, len(a), 2)])
            if (number + 1) % 50 == 0:
                print(f"{number + 1} trials, {time.monotonic() - began:.0f} s", flush=True)
    report(trials, chosen, method, found.conditions)
    if chosen.out:
        with open(chosen.out, "w") as file:
            json.dump([[quad.model_dump() for quad in quads] for quads in trials], file)


def report(trials, chosen, method, conditions):
    """Promotions by both rules, what the exact test allows, and what swapping the contestants changes."""
    print(method.text())
    print(f"card: {conditions}")
    allowed = most_successes(len(trials), ALPHA)
    for effect in (0.0, SMALLEST_EFFECT):
        ruled = [compare(quads, smallest_effect=effect) for quads in trials]
        count = {standing: sum(one.standing is standing for one in ruled) for standing in Standing}
        promoted = count[Standing.FASTER]
        print(
            f"smallest effect {effect:.0%}: faster {promoted}, slower {count[Standing.SLOWER]} of {len(trials)}; allowed "
            f"{allowed} at {ALPHA:.0%}; P(at least as many) {tail_probability(promoted, len(trials), ALPHA):.3f}: "
            f"{'pass' if promoted <= allowed else 'FAIL'}"
        )
    halves = [median_interval([compare(quads).ratio for quads in trials[start::2]]).median for start in (0, 1)]
    print(f"ratio of medians: {halves[0]:.4f}; with exchanged roles {halves[1]:.4f}; product {halves[0] * halves[1]:.4f}")


if __name__ == "__main__":
    main()
