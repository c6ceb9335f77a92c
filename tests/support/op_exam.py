"""Holding an op contract to account: its workloads at nano widths, and the ruling on any path."""

from functools import cache

from fasttrack_validation import contracts
from fasttrack_validation.contracts.kimi_k3.architecture import NANO, Architecture
from fasttrack_validation.contracts.kimi_k3.op import Layout
from fasttrack_validation.numerics.calibrate import Decision, decide, measure

REAL = contracts.load("kimi_k3")
NEW = tuple(name for name in REAL.ops if name not in ("kda_decode", "kda_verify"))


@cache
def nano(name: str, tp: tuple[int, ...] = ()):
    """The contract of op `name` over the nano architecture, at each TP that it declares or at these alone."""
    real = REAL.op(name)
    policy = real.policy.model_copy(update={"tp": tp}) if tp else real.policy
    return type(real)(Architecture.from_config(NANO), policy)


def drawn(op, tp: int, rows: int, seed: int):
    """A workload in a layout of its own."""
    return op.at(tp, rows, op._drawn(str(seed)), f"drawn{seed}")


def declared(op, tp: int, rows: int):
    """A workload as declared."""
    return op.at(tp, rows, Layout(), "declared")


def rulings(op, workload, inputs, expected, plain, got):
    """One ruling for each comparison; the path's results are stored in the tensor's own type first."""
    for comparison in op.comparisons:
        name = comparison.tensor
        value = got[name].to(plain[name].dtype)
        rest = (0,) * (value.dim() - 1)
        owners = [op.row_of(name, (index, *rest), inputs) for index in range(len(value))]
        yield decide(comparison, [measure(comparison, expected[name], plain[name], value, owners)])


def failures(op, workload, inputs, got):
    """Messages of the rulings that are not a pass."""
    expected, plain = op.oracle(inputs, workload), op.plain(inputs, workload)
    ruled = rulings(op, workload, inputs, expected, plain, got)
    return [ruling.message for ruling in ruled if ruling.decision is not Decision.PASS]
