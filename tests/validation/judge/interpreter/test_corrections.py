"""Where the corrections may be installed at all."""

import pytest
from fasttrack_validation.errors import UserError
from fasttrack_validation.judge.interpreter import corrections


@pytest.mark.parametrize("version", ["3.7.1", "3.6.0", "3.10.0", "4.0.0+git"])
def test_an_unknown_triton_is_refused_with_the_supported_range(monkeypatch, version):
    triton = pytest.importorskip("triton")
    monkeypatch.setattr(triton, "__version__", version)
    with pytest.raises(UserError) as refused:
        corrections.install()
    assert version in refused.value.what and "3.8 to 3.9" in refused.value.how


def test_a_compiling_triton_is_refused():
    with pytest.raises(UserError) as refused:
        corrections.install()
    assert "TRITON_INTERPRET=1" in refused.value.how
