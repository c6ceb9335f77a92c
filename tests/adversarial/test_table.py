"""README.md's table is complete, and is what the samples say."""

from pathlib import Path

import guarded
from guarded import GUARDED
from samples import ELSEWHERE, HONEST, SAMPLES
from samples.sample import PLACES
from samples.table import LISTED, OWN, table

from fasttrack_validation.judge.ruling import OF_THE_STOCK, ON_A_GPU, REQUIRED, TIMED

HERE = Path(__file__).parent


def test_table_is_up_to_date():
    text = (HERE / "README.md").read_text("utf-8")
    assert table() in text, "write the output of `python -m samples.table` (here, with ../support on the path) into README.md"


def test_every_id_has_a_sample_or_a_reason():
    covered = {id for sample in SAMPLES.values() for id in sample.ids} | {other.id for other in ELSEWHERE}
    assert covered == {*LISTED, *OWN}


def test_samples_are_well_formed():
    twins = {*HONEST, "plain, page offsets of 64 bits"}
    for sample in SAMPLES.values():
        assert sample.runs in PLACES and sample.twin in twins, sample.name
        assert "|" not in sample.mechanism + sample.name
        honest = HONEST[sample.twin][1] if sample.twin in HONEST else None
        assert sample.text != honest or sample.files, f"{sample.name} is its honest twin"


def test_what_is_held_elsewhere_is_there():
    root = HERE.parents[1]
    for other in ELSEWHERE:
        path, _, name = other.test.partition("::")
        assert other.why and (not path or f"def {name}(" in (root / path).read_text("utf-8")), other


def test_every_check_has_a_guard_that_is_switched_off_or_a_reason():
    assert {one.check for one in GUARDED} == {*REQUIRED, *ON_A_GPU, *TIMED, *OF_THE_STOCK, "C16", "C21"}
    assert guarded.table() in (HERE / "README.md").read_text("utf-8"), "write the output of `python -m guarded` into README.md"
    tests = {path.name: path.read_text("utf-8") for path in HERE.glob("*.py")}
    for one in GUARDED:
        file, _, name = one.test.partition("::")
        assert not one.test or f"def {name}(" in tests[file], one
        assert f'"{one.case}"' in tests.get(file, "") + tests["guards.py"] or not one.case, one
