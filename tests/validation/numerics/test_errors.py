import math

import numpy as np
import pytest
import torch
from fasttrack_validation.numerics.errors import TINY, relative, same_bits, summary


def f64(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_errors_are_relative_to_the_root_mean_square_of_the_row():
    expected = torch.stack([f64(3, 4), f64(300, 400)])
    errors = relative(expected, expected + 1, 1)
    # sqrt((9 + 16) / 2) = 5 / sqrt(2)
    assert torch.allclose(errors, torch.stack([f64(1, 1) * math.sqrt(2) / 5, f64(1, 1) * math.sqrt(2) / 500]))


def test_row_axes_pool_the_rest():
    expected = f64(1, 0, 0, 0, 2, 0, 0, 0).reshape(2, 2, 2)
    assert torch.equal(relative(expected, expected + 1, 1)[0], torch.full((2, 2), 2.0, dtype=torch.float64))
    # The second row of the first matrix is all zero: measured against TINY.
    assert relative(expected, expected + 1, 2)[0, 1, 0] == 1 / TINY


def test_flushed_subnormals_are_no_error_but_anything_larger_is():
    zero = f64(0, 0)
    assert relative(f64(2.0**-127, 2.0**-127), zero, 0).max() < 2**-22
    assert relative(zero, f64(2.0**-80, 0), 0).max() > 2**20


@pytest.mark.parametrize(
    ("expected", "got", "error"),
    [
        (math.nan, math.nan, 0),
        (math.inf, math.inf, 0),
        (math.inf, -math.inf, math.inf),
        (math.nan, 1.0, math.inf),
        (1.0, math.nan, math.inf),
        (1.0, math.inf, math.inf),
    ],
)
def test_what_is_not_finite(expected, got, error):
    assert relative(f64(expected), f64(got), 0).item() == error


def test_summary_by_nearest_rank():
    shuffled = np.random.default_rng(0).permutation(np.arange(1, 2001)).astype(np.float32)
    result = summary(shuffled)
    assert (result.values, result.median, result.p999, result.maximum) == (2000, 1000, 1998, 2000)
    assert summary(np.array([7.0], dtype=np.float32)).p999 == 7
    assert summary(np.array([1.0, np.inf], dtype=np.float32)).maximum == math.inf


def test_bits():
    nan = torch.tensor([math.nan, 0.0, 1.0])
    assert same_bits(nan, nan.clone()).all()
    assert same_bits(torch.tensor([0.0]), torch.tensor([-0.0])).tolist() == [False]
    assert same_bits(torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16)).all()
    with pytest.raises(ValueError, match="cannot be compared"):
        same_bits(torch.ones(1), torch.ones(1).bfloat16())
