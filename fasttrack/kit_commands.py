"""The command `fasttrack kit`."""

from collections.abc import Sequence
from pathlib import Path

from .kit.write import write as write_kit


def write(
    model: str, hardware: str, out: Path | None, *, gpus: int | None, cells: Sequence[str], rehearsal: bool, as_json: bool
) -> None:  # fmt: skip
    """Writes the kit, and says what it holds."""
    place = out or Path(f"{model}-{hardware}-{'rehearsal' if rehearsal else 'kit'}")
    kit = write_kit(model, hardware, place, gpus=gpus, cells=cells, rehearsal=rehearsal)
    if as_json:
        print(kit.model_dump_json())
        return
    print(f"{place}: {len(kit.steps)} steps, about {kit.hours:.0f} hours (estimated)")
    for step in kit.steps:
        print(f"  {step.id:<18} {step.hours:>5.1f} h  {step.title}")
    for name, why in kit.left_out.items():
        print(f"  left out: {name}: {why}")
    print(f"next: read {place}/README.md; there `./run.sh`")
