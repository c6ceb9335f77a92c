import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout of the toy model, with a state directory of its own and no configured person."""
    import lane_fakes

    monkeypatch.setenv("FASTTRACK_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    root = tmp_path / "repo"
    root.mkdir()
    return lane_fakes.write_repository(root)
