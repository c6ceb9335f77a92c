"""Which files a run begins with."""

from collections import Counter

# A test marked slow takes about as long as so many others.
SLOW = 10


def pytest_collection_modifyitems(items):
    """The longest files first: one that a worker begins last keeps the run from ending while the others have nothing."""
    weight = Counter()
    for item in items:
        weight[item.path] += SLOW if item.get_closest_marker("slow") else 1
    items.sort(key=lambda item: -weight[item.path])
