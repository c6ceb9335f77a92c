"""Which files a run begins with, and what the files of one worker share."""

from collections import Counter
from contextlib import ExitStack

import pytest

# A test marked slow takes about as long as so many others.
SLOW = 10


def pytest_collection_modifyitems(items):
    """The longest files first: one that is begun last keeps the run from ending while other workers have nothing."""
    weight = Counter()
    for item in items:
        weight[item.path] += SLOW if item.get_closest_marker("slow") else 1
    items.sort(key=lambda item: -weight[item.path])


def pytest_make_parametrize_id(val, argname):
    """Bytes by their length: workers must agree on what tests are called, and packed bytes hold the time of packing."""
    return f"{argname} of {len(val)} bytes" if isinstance(val, bytes) else None


@pytest.fixture(scope="session")
def _kept():
    from kept_sandboxes import Kept

    with ExitStack() as stack:
        yield Kept(stack)


@pytest.fixture(scope="module")
def kept_sandboxes(_kept):
    """For files whose judges are no different for sharing sandboxes with those of other files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fasttrack_validation.judge.sandboxes.Sandbox", _kept)
        patch.setattr("fasttrack_validation.contracts.trace.sandboxed.Sandbox", _kept)
        yield
