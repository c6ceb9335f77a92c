"""kill -9 at every moment of a chat run: nothing answered is asked again, nothing judged is judged again."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import chatting
import lane_fakes as fakes
import pytest
from long_tests import long
from model_server import Exchange, ModelServer, say, tool, write

from fasttrack import story
from fasttrack.agents import ledger

MOMENTS = (
    "before the request", "during the stream", "after the answer", "during evaluation", "after the verdict",
    "during confirmation", "before the commit", "during the commit",
)  # fmt: skip
SHORT = ("during the stream", "after the answer", "during evaluation", "during the commit")
"""One of each kind: an answer that is cut off, one that nobody has used, a verdict that is cut off, a branch half made"""
DRIVER = Path(__file__).parent / "chat_driver.py"
ROUNDS = [
    write("def launch(:  # BROKEN\n", "first"), write(fakes.KERNEL + "# WRONG\n", "second"),
    write(fakes.KERNEL + "# FASTER\n", "third", {"BLOCK": 64, "num_warps": 2}), write(chatting.RIGHT, "fourth"),
]  # fmt: skip


class Player:
    """A model whose answer depends on the conversation alone; it looks at the history first, and writes then."""

    def __init__(self, kill_at: int | None = None) -> None:
        self.kill_at, self.process, self.asked = kill_at, None, []

    def __call__(self, exchange: Exchange) -> None:
        messages = exchange.body["messages"]
        judged = int(re.search(r"(\d+) candidates judged", messages[1]["content"])[1])
        self.asked.append((judged, len(messages)))
        if len(self.asked) == self.kill_at:
            exchange.start_stream()
            exchange.chunk({"content": "half an ans"})
            os.kill(self.process.pid, signal.SIGKILL)
            return
        (say(calls=[tool("history")]) if len(messages) == 2 else ROUNDS[judged])(exchange)


def drive(checkout, server, log, mode, moment, player):
    command = [sys.executable, str(DRIVER), str(checkout), server.url, str(log), mode, moment]
    player.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = player.process.communicate(timeout=120)
    assert "Traceback" not in err, err
    return player.process.returncode, out


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """(what the model was asked, attempts, files of the commit) of a run that nobody disturbs."""
    root = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTTRACK_HOME", str(root / "state"))
        patch.setenv("HOME", str(root))
        patch.setenv("GIT_CONFIG_NOSYSTEM", "1")
        (root / "repo").mkdir()
        checkout = fakes.write_repository(root / "repo")
        player = Player()
        with ModelServer([player]) as server:
            code, out = drive(checkout, server, root / "log", "propose", "never", player)
    assert code == 0
    outcome = json.loads(out)
    attempts = [(a.candidate, a.status, a.parents) for a in story.read(Path(outcome["directory"])).attempts]
    return player.asked, attempts, choice(checkout, outcome)


def choice(checkout, outcome):
    """What was proposed: kernel and dispatch table."""
    names = ("kernels/copy.py", "dispatch/copy.toml")
    return [fakes.git(checkout, "show", f"{outcome['branch']}:models/toy/{name}") for name in names]


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment", [moment if moment in SHORT else pytest.param(moment, marks=long) for moment in MOMENTS]
)
def test_killed_and_resumed(moment, checkout, tmp_path, undisturbed):
    asked, attempts, chosen = undisturbed
    player, log = Player(kill_at=3 if moment == "during the stream" else None), tmp_path / "log"
    with ModelServer([player]) as server:
        code, _ = drive(checkout, server, log, "propose", moment, player)
        assert code == -signal.SIGKILL
        before = list(player.asked)
        player.kill_at = None
        code, out = drive(checkout, server, log, "resume", "never", player)
    assert code == 0, out
    outcome = json.loads(out)
    told = story.read(Path(outcome["directory"]))

    # The same candidates and verdicts, and the same choice.
    assert [(a.candidate, a.status, a.parents) for a in told.attempts] == attempts
    assert choice(checkout, outcome) == chosen

    # No answered request is repeated; one that was cut off is asked once more, and shown.
    seen = Counter(player.asked)
    assert set(seen) == set(asked)
    cut = moment in ("before the request", "during the stream")
    repeated = [place for place, count in seen.items() if count > 1]
    assert repeated == ([before[-1]] if moment == "during the stream" else [])
    assert len(told.cut_requests) == cut and (not cut or ledger.KILLED in told.cut_requests[0])

    # The bill: what the server counted, and the cap of what was cut off.
    events = ledger.read(Path(outcome["directory"]))
    caps = [event.cap for event in events if isinstance(event, ledger.Asked)]
    booked = [event for event in events if isinstance(event, ledger.Cut)]
    assert [event.usage for event in booked] == [caps[event.number] for event in booked]
    more = [sum(getattr(event.usage, name) for event in booked) for name in ("prompt", "completion")]
    assert (told.bill.prompt - more[0], told.bill.completion - more[1]) == server.totals

    # No verdict that was reached is reached again.
    judged = Counter(
        tuple(json.loads(line)[:2]) for line in log.read_text().splitlines() if json.loads(line)[0] == "screen"
    )
    assert set(judged.values()) == {1}
