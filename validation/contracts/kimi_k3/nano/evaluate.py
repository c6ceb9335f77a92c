"""Held-out accuracies of a checkpoint, by the plain path.

`python -m fasttrack_validation.contracts.kimi_k3.nano.evaluate DIR`, with DIR the `checkpoint/` of a training run.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from ....errors import UserError
from ....records import canonical_json
from ..layer_weights import ModelWeights, Shard
from ..step.model import Model
from ..step.precision import PUBLISHED
from ..step.state import Batch
from ..step.unpack import unpack
from ..weights.checkpoint import Checkpoint
from ..weights.shard import load_model
from .accuracy import Accuracy, measure_all
from .devices import moved, require

SLICE = 1024
"""Tokens of one prefill: bounds the memory of attention scores."""


def plain(directory: Path, device: str) -> Model:
    """The plain path over a checkpoint."""
    checkpoint = Checkpoint(directory)
    weights: ModelWeights = moved(load_model(checkpoint, Shard()), device)
    return Model(checkpoint.architecture, [unpack(weights, PUBLISHED)], PUBLISHED)


def likeliest(model: Model, sequences: Sequence[list[int]]) -> list[list[int]]:
    """After every token of every sequence the likeliest next one, the lowest of equals."""
    device = model.ranks[0].embedding.device
    found = []
    for sequence in sequences:
        state, predicted = model.new_state(1, len(sequence)), []
        for start in range(0, len(sequence), SLICE):
            part = torch.tensor(sequence[start : start + SLICE], device=device)
            predicted += model.prefill(Batch(part, (0,), (len(part),)), state).argmax(-1).tolist()
        found.append(predicted)
    return found


def evaluate(
    directory: Path, *, device: str = "cpu", samples: int = 64, seed: int = 0, longest: int = 20480
) -> list[Accuracy]:
    """The accuracies of the checkpoint in `directory`; see `measure_all`."""
    model = plain(directory, device)
    return measure_all(lambda sequences: likeliest(model, sequences), longest=longest, samples=samples, seed=seed)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, help="directory of a checkpoint")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--samples", type=int, default=64, help="problems a task (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the held-out problems")
    parser.add_argument("--longest", type=int, default=20480, help="skip longer texts (default %(default)s tokens)")
    parser.add_argument("--out", type=Path, help="write the accuracies to this JSON file too")
    options = parser.parse_args(arguments)
    try:
        require(options.device)
        found = evaluate(
            options.checkpoint,
            device=options.device,
            samples=options.samples,
            seed=options.seed,
            longest=options.longest,
        )
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print(*found, sep="\n")
    if options.out:
        record = {"path": "plain", "seed": options.seed, "accuracies": [accuracy.model_dump() for accuracy in found]}
        options.out.write_text(canonical_json(record) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
