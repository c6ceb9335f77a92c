"""The oracle against derivations of its own equations that share no code with it."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from fasttrack_validation import contracts
from fasttrack_validation.contracts.kimi_k3.kda_decode import layout
from fasttrack_validation.contracts.kimi_k3.kda_decode.oracle import to_bfloat16
from fasttrack_validation.errors import UserError

TP, HEADS, D = 48, 2, 128
P = HEADS * D


@pytest.fixture(scope="module")
def op():
    return contracts.load("kimi_k3").op("kda_decode")


@pytest.fixture(scope="module")
def workload(op):
    return layout.workload(op.architecture.kda_shard(TP), "small", 5)


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def bfloat16(exact):
    """Nearest bfloat16, ties to even, by search over rationals."""
    if exact == 0:
        return 0.0
    exponent = math.floor(math.log2(abs(exact)))
    quantum = Fraction(2) ** (exponent - 7)
    return float(round(Fraction(exact) / quantum) * quantum)


def by_loops(inputs, row):
    """One live row in Python floats and NumPy dot products: new window, new state, output."""
    slot = int(inputs["slots"][row])
    x = inputs["projected"][row].double().numpy()
    f_b = inputs["f_b"].double().numpy()
    weight = inputs["conv_weight"].double().numpy()
    old = inputs["conv_state"][slot].double().numpy()
    state = inputs["recurrent_state"][slot].double().numpy().copy()
    window = np.stack([old[1], old[2], x[: 3 * P]])
    out = np.empty(P)
    conv = np.empty(3 * P)
    for c in range(3 * P):
        u = weight[c, 0] * old[0, c] + weight[c, 1] * old[1, c] + weight[c, 2] * old[2, c] + weight[c, 3] * x[c]
        conv[c] = u * sigmoid(u)
    for head in range(HEADS):
        part = slice(head * D, (head + 1) * D)
        q, k, v = conv[:P][part], conv[P : 2 * P][part], conv[2 * P :][part]
        q = q / math.sqrt(float(np.dot(q, q)) + 1e-6) / math.sqrt(128)
        k = k / math.sqrt(float(np.dot(k, k)) + 1e-6)
        f_a, b, g = x[4 * P : 4 * P + 128], x[4 * P + 128 + head], x[3 * P : 4 * P][part]
        beta = sigmoid(b)
        for channel in range(D):
            gamma = bfloat16(math.fsum(f_b[head * D + channel] * f_a))
            arg = math.exp(float(inputs["a_log"][head])) * (gamma + float(inputs["dt_bias"][head * D + channel]))
            state[head, :, channel] *= math.exp(-5 * sigmoid(arg))
        for value in range(D):
            line = state[head, value]
            line += beta * (v[value] - np.dot(line, k)) * k
            out[head * D + value] = np.dot(line, q)
        o = out[part]
        rms = math.sqrt(float(np.mean(o * o)) + 1e-5)
        out[part] = o / rms * inputs["o_norm"].double().numpy() * np.array([sigmoid(value) for value in g])
    return window, state, out


@pytest.mark.parametrize("distribution", ["typical", "gate_ties", "gate_mantissas", "near_zero", "padded", "converged"])
def test_oracle_against_loops(op, workload, distribution):
    inputs = op.make_inputs(workload, distribution, 11)
    expected = op.oracle(inputs, workload)
    for row, slot in enumerate(inputs["slots"].tolist()):
        if slot <= 0:
            assert not expected["out"][row].any()
            continue
        window, state, out = by_loops(inputs, row)
        assert np.array_equal(expected["conv_state"][slot].double().numpy(), window)
        scale = np.abs(state).max()
        assert np.abs(expected["recurrent_state"][slot].numpy() - state).max() <= 1e-12 * scale
        assert np.abs(expected["out"][row].numpy() - out).max() <= 1e-11 * max(np.abs(out).max(), 1e-30)


@pytest.mark.slow  # importing fla-core takes most of it
@pytest.mark.parametrize("distribution", ["typical", "decay_extremes", "beta_extremes", "accumulated"])
def test_oracle_core_against_fla_core(op, workload, distribution):
    """fla-core's naive recurrence computes in float32, with the state as [K, V] and the gate given in logarithms."""
    gate = pytest.importorskip("fla.ops.kda.gate")
    naive = pytest.importorskip("fla.ops.kda.naive")
    inputs = op.make_inputs(workload, distribution, 5)
    oracle = op.stages(workload)
    step = oracle.step(inputs)
    core, state = oracle.recurrence(step)
    q, k, v = oracle.convolved(step)
    gamma = oracle.gate(step).float()[:, None]
    log_decay = gate.naive_kda_lowerbound_gate(gamma, inputs["a_log"], inputs["dt_bias"], lower_bound=-5.0)
    q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    got, new = naive.naive_recurrent_kda(
        q.float()[:, None],
        k.float()[:, None],
        v.float()[:, None],
        log_decay,
        step.projected["beta"].sigmoid().float()[:, None],
        initial_state=step.state.float().mT,
        output_final_state=True,
    )
    for expected, close in ((core, got[:, 0]), (state, new.mT)):
        assert (close - expected).abs().max() <= 4e-6 * expected.abs().max()


def test_the_plain_path_is_close_to_the_oracle_and_changes_no_input(op, workload):
    inputs = op.make_inputs(workload, "padded", 3)
    before = {name: value.clone() for name, value in inputs.items()}
    expected, plain = op.oracle(inputs, workload), op.plain(inputs, workload)
    assert all(torch.equal(inputs[n].nan_to_num(), before[n].nan_to_num()) for n in inputs)
    assert torch.equal(expected["conv_state"].view(torch.int16), plain["conv_state"].view(torch.int16))
    live = inputs["slots"][inputs["slots"] > 0].long()
    assert torch.allclose(plain["recurrent_state"][live].double(), expected["recurrent_state"][live], atol=1e-5)
    assert torch.allclose(plain["out"].double(), expected["out"], rtol=2**-8, atol=1e-6)
    assert plain["out"].dtype is torch.bfloat16 and plain["recurrent_state"].dtype is torch.float32


def test_one_rounding_from_float64_to_bfloat16():
    # 1 + 2^-8 is a tie (to even: 1); a hair above it, lost on the way through float32, must round up.
    exact = torch.tensor([1 + 2**-8, 1 + 2**-8 + 2**-40, 1 + 3 * 2**-8, 1 + 3 * 2**-8 - 2**-40, -1 - 2**-8 - 2**-40],
                         dtype=torch.float64)  # fmt: skip
    assert to_bfloat16(exact).tolist() == [1, 1 + 2**-7, 1 + 2**-6, 1 + 2**-7, -1 - 2**-7]
    values = torch.randn(2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert to_bfloat16(values).tolist() == [bfloat16(value) for value in values.tolist()]
    odd = torch.tensor([0.0, math.inf, -math.inf])
    assert to_bfloat16(odd.double()).tolist() == odd.tolist()
    assert to_bfloat16(torch.tensor([math.nan], dtype=torch.float64)).isnan().all()


def test_the_stock_path_refuses_a_cpu(op):
    with pytest.raises(UserError, match="needs a CUDA GPU, not 'cpu'") as caught:
        op.stock("cpu")
    assert "fasttrack[gpu]" in caught.value.how
