"""Runs the lane with agent chat on the toy model against a scripted server."""

import dataclasses

import lane_fakes as fakes

from fasttrack import lane
from fasttrack.agents.settings import ChatOptions
from fasttrack.voice import Voice
from fasttrack_validation.judge.verdict import Status

KEY = "sk-planted-0123456789abcdef"

RIGHT = fakes.KERNEL + "# right\n"


class Judge(fakes.Judge):
    """Rules by markers in the sources: BROKEN cannot be recorded, WRONG computes something else, CHEAT writes elsewhere.

    FASTER takes 30 us off the toy's time formula.
    """

    REASONS = {
        "BROKEN": ("record.failed", "launch() raised SyntaxError"),
        "WRONG": ("numerics.precision", "off by 3"),
        "CHEAT": ("guard.overrun", "wrote outside of its buffers"),
    }

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.status = lambda candidate: Status.REJECTED if self._marker(candidate) else None

    def _marker(self, candidate):
        text = "".join(candidate.files.values())
        return next((name for name in self.REASONS if name in text), None)

    def screen(self, candidate, workloads):
        verdict = super().screen(candidate, workloads)
        if (marker := self._marker(candidate)) is None:
            return verdict
        reason, message = self.REASONS[marker]
        return verdict.model_copy(update={"reason": reason, "message": message})

    def _cell(self, candidate, workload, hardware):
        timed = super()._cell(candidate, workload, hardware)
        if "FASTER" not in "".join(candidate.files.values()) or timed.cell.kind == "measured":
            return timed
        quick = timed.cell.modelled.model_copy(update={"microseconds": timed.cell.modelled.microseconds - 30})
        return timed.model_copy(update={"cell": timed.cell.model_copy(update={"modelled": quick})})


class Ear(Voice):
    """Keeps what it is told."""

    def __init__(self):
        super().__init__(quiet=True)
        self.lines = []

    def say(self, line):
        self.lines.append(line)


def options(checkout, server, *, rounds=4, price="1,10", **chat):
    chosen = ChatOptions(endpoint=server.url, llm=chat.pop("llm", "scripted-1"), price=price, **chat)
    return lane.Options(
        model="toy", op="copy", checkout=checkout, seed=7, rounds=rounds, agent="chat", hardware=("h200",), chat=chosen
    )


def run(checkout, server, judge=None, *, voice=None, services=None, **changes):
    chosen = options(checkout, server, **changes)
    return lane.propose(chosen, services or fakes.services(judge or Judge()), voice or Ear())


def settings_file(tmp_path, **values):
    path = tmp_path / "llm.toml"
    path.write_text("".join(f"{name} = {value!r}\n" for name, value in values.items()).replace("'", '"'))
    return path


def with_settings(tmp_path, **values):
    """Quick time-outs and waits."""
    return settings_file(tmp_path, **{"retries": 2, "read_seconds": 2.0, "connect_seconds": 2.0, **values})


def changed(record, **values):
    return dataclasses.replace(record, **values)
