"""Trains the nano model: `python -m fasttrack_validation.contracts.kimi_k3.nano.train --minutes N --out DIR`.

DIR then holds `checkpoint/` (published form), `training.json` (settings, machine, length), `log.jsonl` (loss curve and
held-out accuracies on the way), `run.json` (what a resumed run must share) and `state.pt`, where `--resume` goes on.
"""

import argparse
import json
import math
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from pydantic import ValidationError

from ....errors import UserError
from ....records import canonical_json
from ..architecture import Architecture
from . import CONFIG
from .accuracy import measure_all
from .batches import prefetched
from .devices import require
from .parameters import export
from .training import Run, Settings

STATE, LOG, RECORD, IDENTITY, CHECKPOINT = "state.pt", "log.jsonl", "training.json", "run.json", "checkpoint"
LOG_EVERY, EVALUATE_EVERY, SAVE_SECONDS = 10, 500, 60.0


def _say(line: str) -> None:
    print(line, flush=True)


def train(
    config: Path,
    settings: Settings,
    out: Path,
    *,
    device: str = "cpu",
    resume: bool = False,
    recompute: bool = False,
    workers: int = 0,
    held_out_samples: int = 64,
    say: Callable[[str], None] = _say,
) -> None:
    """The whole run, or what is left of it.

    Raises UserError if `out` holds a run already and `resume` is false, if the run to resume had another configuration
    or other settings than its length, and if the loss is no longer finite.
    """
    run = Run(Architecture.from_config(config), settings, device, recompute=recompute)
    _begin(run, out, config, resume)
    measures: list[dict[str, torch.Tensor]] = []
    saved = last = time.monotonic()
    batches = prefetched(settings.seed, run.step, settings.tokens, settings.lengths, workers=workers)
    with (out / LOG).open("a", encoding="utf-8") as log:

        def note(entry: dict) -> None:
            log.write(canonical_json(entry) + "\n")
            log.flush()

        while run.progress < 1:
            measures.append(run.advance(next(batches)))
            now = time.monotonic()
            run.seconds, last = run.seconds + now - last, now
            if run.step % LOG_EVERY == 0 or run.progress >= 1:
                entry = _curve(run, measures)
                note(entry)
                say(" ".join(f"{key} {value:.4g}" for key, value in entry.items()))
                measures.clear()
            if run.step % EVALUATE_EVERY == 0 or run.progress >= 1:
                found = measure_all(
                    run.likeliest, longest=max(settings.lengths), samples=held_out_samples, seed=settings.seed
                )
                note({"step": run.step, "held_out": [accuracy.model_dump() for accuracy in found]})
                say("\n".join(map(str, found)))
            if time.monotonic() - saved > SAVE_SECONDS:
                _save(run, out)
                saved = last = time.monotonic()
    batches.close()
    _save(run, out)
    shutil.rmtree(out / CHECKPOINT, ignore_errors=True)  # of a shorter run that this one went on from
    export(run.parameters, run.architecture, out / CHECKPOINT)
    (out / RECORD).write_text(canonical_json(_record(run)) + "\n", "utf-8")


def _begin(run: Run, out: Path, config: Path, resume: bool) -> None:
    """A fresh directory, or the saved state and the log up to it."""
    identity = {"config": json.loads(config.read_text("utf-8")), "settings": _identity(run.settings)}
    if not resume:
        if out.exists():
            raise UserError(f"{out}: exists already", "name a new directory, or go on with --resume")
        out.mkdir(parents=True)
        (out / IDENTITY).write_text(canonical_json(identity) + "\n", "utf-8")
        return
    if not (out / STATE).is_file():
        raise UserError(f"{out / STATE}: missing, there is no run to resume", "start one without --resume")
    if json.loads((out / IDENTITY).read_text("utf-8")) != json.loads(canonical_json(identity)):
        raise UserError(
            f"{out}: this run has another configuration or other settings",
            f"resume with those of {IDENTITY}; only the length of the run may change",
        )
    run.restore(torch.load(out / STATE, map_location=run.device, weights_only=True))
    lines = (out / LOG).read_text("utf-8").splitlines(keepends=True)
    (out / LOG).write_text("".join(line for line in lines if json.loads(line)["step"] <= run.step), "utf-8")


def _identity(settings: Settings) -> dict:
    return settings.model_dump(mode="json", exclude={"minutes", "steps"})


def _curve(run: Run, measures: list[dict[str, torch.Tensor]]) -> dict:
    """One point of the loss curve: the mean over the steps since the last one."""
    means = {name: float(torch.stack([each[name] for each in measures]).mean()) for name in measures[0]}
    if not math.isfinite(means["answer_loss"] + means["other_loss"]):
        raise UserError(
            f"the loss is {means['answer_loss']} at step {run.step}",
            "resume from the last state with a lower --learning-rate",
        )
    return {
        "step": run.step,
        "seconds": round(run.seconds, 3),
        "tokens": run.tokens,
        "learning_rate": run.learning_rate,
        **means,
    }


def _save(run: Run, out: Path) -> None:
    """Replaces the saved state in one step: whoever stops this process leaves the old or the new one."""
    unfinished = out / (STATE + ".unfinished")
    torch.save(run.state(), unfinished)
    os.replace(unfinished, out / STATE)


def _record(run: Run) -> dict:
    device = run.device if run.device == "cpu" else torch.cuda.get_device_name(run.device)
    return {
        "settings": run.settings.model_dump(mode="json"),
        "architecture": run.architecture.model_dump(mode="json"),
        "device": device,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "steps": run.step,
        "tokens": run.tokens,
        "seconds": round(run.seconds, 3),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = {name: field.default for name, field in Settings.model_fields.items()}
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--minutes", type=float, help="train for so long, resumed parts included")
    length.add_argument("--steps", type=int, help="train for so many steps: reproducible, whatever the machine's speed")
    parser.add_argument("--out", type=Path, required=True, help="directory of the run")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out")
    parser.add_argument("--config", type=Path, default=CONFIG, help="architecture (default: the nano model's)")
    parser.add_argument("--seed", type=int, default=defaults["seed"])
    parser.add_argument("--tokens", type=int, default=defaults["tokens"], help="of a batch (default %(default)s)")
    parser.add_argument("--lengths", type=int, nargs="+", default=defaults["lengths"], help="of sequences")
    parser.add_argument("--learning-rate", type=float, default=defaults["learning_rate"])
    parser.add_argument("--workers", type=int, default=0, help="processes that make batches ahead")
    parser.add_argument("--samples", type=int, default=64, help="held-out problems a task, on the way")
    parser.add_argument("--recompute", action="store_true", help="less memory, a third more time")
    options = parser.parse_args(arguments)
    try:
        require(options.device)
        names = ("seed", "minutes", "steps", "tokens", "learning_rate")
        try:
            settings = Settings(lengths=tuple(options.lengths), **{name: getattr(options, name) for name in names})
        except ValidationError as error:
            first = error.errors()[0]
            raise UserError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}", "see --help") from error
        train(
            options.config,
            settings,
            options.out,
            device=options.device,
            resume=options.resume,
            recompute=options.recompute,
            workers=options.workers,
            held_out_samples=options.samples,
        )
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
