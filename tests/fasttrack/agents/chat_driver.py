"""Runs or resumes a chat run in a process of its own and ends it at a given moment: CHECKOUT URL LOG MODE MOMENT."""

import os
import signal
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "lane")]

import chatting
import lane_fakes as fakes

from fasttrack import lane
from fasttrack.agents import ledger
from fasttrack.archive import Archive, Close

checkout, url, log, mode, moment = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4], sys.argv[5]


class Server:
    pass


Server.url = url


def killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def after(owner, name, times, condition=lambda *_: True):
    """Ends the process after the so-manieth call of a method."""
    original, calls = getattr(owner, name), []

    def replaced(self, *arguments, **options):
        result = original(self, *arguments, **options)
        if condition(*arguments):
            calls.append(1)
            if len(calls) == times:
                killed()
        return result

    setattr(owner, name, replaced)


judge = chatting.Judge(log)
services = fakes.services(judge)
match moment:
    case "before the request":
        after(ledger.Requests, "claim", 3)
    case "after the answer":
        after(ledger.Requests, "answered", 4)
    case "during evaluation":
        screen = judge.screen
        judge.screen = lambda *asked: killed() if len(judge.calls) == 1 else screen(*asked)
    case "after the verdict":
        after(Archive, "_add", 2, lambda event: isinstance(event, Close))
    case "during confirmation":
        judge.confirm = killed
    case "before the commit":
        services.packager.report = killed
    case "during the commit":
        gate = services.gate
        services = chatting.changed(services, gate=killed)

if mode == "resume":
    outcome = lane.resume("toy", None, None, checkout, services, chatting.Ear())
else:
    outcome = lane.propose(chatting.options(checkout, Server), services, chatting.Ear())
print(outcome.model_dump_json())
