"""SiTU, the activation of every MLP of the model, on products whose columns alternate between gate and up."""

import triton
import triton.language as tl

BETA = tl.constexpr(4.0)
LINEAR_BETA = tl.constexpr(25.0)


def interleaved(gate_up):
    """[gate S | up S, K] with the rows in pairs: gate 0, up 0, gate 1, up 1, ..., [2 S, K]."""
    return gate_up.unflatten(0, (2, -1)).transpose(0, 1).flatten(0, 1)


@triton.jit
def situ_of_pairs(acc, BN: tl.constexpr, R: tl.constexpr):
    """[BN / 2, R] fp32 of columns in pairs [BN, R]: b tanh(g / b) sigmoid(g) * l tanh(u / l)."""
    gate, up = tl.split(tl.permute(tl.reshape(acc, [BN // 2, 2, R]), [0, 2, 1]))
    return situ(gate, up)


@triton.jit
def situ(gate, up):
    """b tanh(g / b) sigmoid(g) * l tanh(u / l), b = 4, l = 25, fp32.

    tanh of the math library: one made of exponentials cancels near zero, or is NaN where they overflow.
    """
    bounded = BETA * tl.extra.cuda.libdevice.tanh(gate / BETA)
    return bounded * tl.sigmoid(gate) * LINEAR_BETA * tl.extra.cuda.libdevice.tanh(up / LINEAR_BETA)
