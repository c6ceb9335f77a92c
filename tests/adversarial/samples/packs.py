"""Candidates recorded on a machine whose Triton the recorder knows, for tests on a machine where it is another one.

    cd tests/adversarial && PYTHONPATH=../support:. python -m samples.packs FOLDER
    FASTTRACK_TEST_PACKS=FOLDER python -m pytest -m gpu tests/adversarial
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from judging import model_of
from toy_contract import Toy

from fasttrack_validation.judge import pack_file
from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.judge.judge import Judge
from fasttrack_validation.judge.recorded import Recorded
from fasttrack_validation.judge.recorder import triton_is_supported

from . import SAMPLES, cuda

VARIABLE = "FASTTRACK_TEST_PACKS"


def recorded(judge: Judge, candidate: Candidate) -> Recorded:
    """A record of the candidate: made here, or read from the folder that the environment names. Skips without either."""
    if triton_is_supported():
        return judge.record(candidate)
    folder = os.environ.get(VARIABLE)
    if not folder:
        pytest.skip(f"candidates cannot be recorded with this Triton, and {VARIABLE} names no folder (samples/packs.py)")
    return pack_file.read(Path(folder) / f"{candidate.digest()}.pack")


def of_the_toy() -> Iterator[Candidate]:
    """Every candidate in CUDA C++ that test_cuda_samples.py judges on a GPU."""
    yield from map(cuda.candidate, cuda.HONEST.values())
    yield from (sample.candidate for sample in SAMPLES.values() if sample.runs == "gpu")


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with Judge(model_of(Toy()), device="cpu") as judge:
        for candidate in of_the_toy():
            pack_file.write(judge.record(candidate), folder / f"{candidate.digest()}.pack")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
