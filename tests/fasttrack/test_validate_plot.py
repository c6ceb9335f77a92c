"""Drawings of `fasttrack validate --plot`: equal records give equal bytes, and nothing is drawn where there is no token."""

import kept_tokens
import numpy as np
import pytest
from fasttrack import validate_plot
from fasttrack_validation.numerics.whole_model.table import table
from fasttrack_validation.numerics.whole_model.tokens import CANDIDATE, ORACLE

figures = pytest.importorskip("matplotlib.figure", reason="matplotlib is not installed (extra: plot)")


@pytest.fixture
def records(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "teacher_forced-tp1-made.jsonl.gz").write_bytes(kept_tokens.packed(kept_tokens.unit(24, moved=1000)))
    return out


def test_drawn_twice_it_is_the_same(records, tmp_path):
    first, second = (validate_plot.draw(records, tmp_path / name) for name in ("a", "b"))
    assert [file.name for file in first] == [f"teacher_forced-tp1-{name}.svg" for name in ("position", "flips", "layers")]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes() and b"<dc:date>" not in one.read_bytes()


def drawn(fill, **made):
    figure, of = figures.Figure(), table([kept_tokens.unit(24, **made)])
    fill(figure, of)
    return figure.axes[0], of


def test_the_band_of_the_noise_has_gaps_where_no_token_is():
    axis, _ = drawn(validate_plot._position, moved=1000)
    (band,) = axis.collections
    # 0 to 15 and 1016 to 1023, half a position on either side: two pieces, and nothing between.
    reach = sorted((float(path.vertices[:, 0].min()), float(path.vertices[:, 0].max())) for path in band.get_paths())
    assert reach == [(-0.5, 15.5), (1015.5, 1023.5)]
    # Nor does a line bridge it: tokens are points.
    assert all(line.get_linestyle() == "None" for line in axis.lines)


def test_a_token_alone_has_a_band():
    runs = validate_plot.runs(np.array([7, 3, 1, 2, 2]))
    assert [run.tolist() for run in runs] == [[1, 2, 3], [7]]


def test_the_line_of_the_flips_says_what_it_is():
    axis, of = drawn(validate_plot._flips)
    line = next(line for line in axis.lines if line.get_linestyle() == "--")
    assert line.get_label() == "error = margin: below it the two likeliest cannot swap"
    np.testing.assert_array_equal(line.get_xdata(), line.get_ydata())
    # That is so: where the error is below the margin, the likeliest stays ahead of the second.
    below = of.margin_error[CANDIDATE] < of.margin
    for row in np.flatnonzero(below):
        exact = validate_plot.tokens.decode(of.tokens[row].logits[ORACLE], wide=True)
        own = validate_plot.tokens.decode(of.tokens[row].logits[CANDIDATE], wide=False)
        first, second = np.argsort(-exact, kind="stable")[:2]
        assert own[first] > own[second]
    assert below.sum() > 10
