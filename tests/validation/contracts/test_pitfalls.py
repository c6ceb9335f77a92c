"""The list of public bugs in this directory's README names tests that exist."""

import re
from pathlib import Path

ROOM = Path(__file__).parent


def test_every_named_test_exists():
    listed = re.findall(r"`(test_\w+)`", (ROOM / "README.md").read_text("utf-8"))
    defined = {
        name for path in ROOM.rglob("test_*.py") for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    }
    assert len(set(listed)) > 40
    assert sorted(set(listed) - defined) == []
