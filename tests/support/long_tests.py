"""Tests of some minutes, which a run leaves out unless it is asked for them: shorter ones show the same in parts."""

import os

import pytest

long = pytest.mark.skipif(
    not os.environ.get("FASTTRACK_LONG"), reason="takes minutes: FASTTRACK_LONG=1 runs it (make test ARGS=...)"
)
