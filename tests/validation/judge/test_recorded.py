"""A record in a file: it comes back as it was, and whatever is changed in it is refused for its reason.

The record here is made by hand around fake device code, so that nothing has to be compiled.
"""

import gzip
import json

import pytest
from fake_kernels import PARAMETERS, toy_pack
from judging import candidate
from toy_contract import KERNEL, Toy

from fasttrack_validation.contracts.base import Far
from fasttrack_validation.judge import pack_file, recorded
from fasttrack_validation.judge.device_code.records import DeviceCode
from fasttrack_validation.judge.pack import variant_key
from fasttrack_validation.judge.recorded import Recorded, RecordedError, require_whole, verify, workloads_of
from fasttrack_validation.judge.verdict import CheckResult, Outcome
from fasttrack_validation.records import canonical_json, sha256

CONTRACT, JUDGE = "c" * 64, "d" * 64
NAMES = ("tp8_rows1", "tp8_rows4")
UNSEEN = {"tp8_rows1": (11,), "tp8_rows4": (12, 13)}
OURS = candidate(KERNEL, "accumulate")


def code(key: str, target: str) -> DeviceCode:
    return DeviceCode(
        kernel=key, target=target, entry="accumulate", parameters=PARAMETERS["accumulate"], warps=4, ctas=1,
        shared_bytes=0, tensor_memory_columns=0, global_scratch_bytes=0, global_scratch_align=1,
        profile_scratch_bytes=0, launch_pdl=False, launch_cooperative_grid=False, compiler="none", ptx="", sass="",
        cubin=b"\x7fELF accumulate", ptxas_log="", resource_usage="",
    )  # fmt: skip


@pytest.fixture
def record() -> Recorded:
    planned = workloads_of(Toy(), NAMES, NAMES, UNSEEN, None).planned
    packs = {
        name: toy_pack(w).model_copy(update={"candidate_digest": OURS.digest()}) for name, w in planned.items()
    }
    keys = {variant_key(v) for pack in packs.values() for v in pack.kernels.values()}
    return Recorded(
        model="toy", candidate=OURS, hardware="h200", contract_digest=CONTRACT, judge_digest=JUDGE, checked=NAMES,
        declared=NAMES, unseen=UNSEEN, far_base=None, packs=packs,
        codes=tuple(code(key, target) for key in sorted(keys) for target in ("sm_90", "sm_103")),
        toolchain={"triton": "3.9.0"}, sandbox="namespaces", unsafe=False, seconds={"record": 1.0},
    )  # fmt: skip


def check(record: Recorded, contract=None):
    return verify(record, "toy", contract or Toy(), CONTRACT, JUDGE)


def test_a_part_of_a_record_can_be_ruled_on(record):
    """What its workloads need and what is checked anywhere: the checked ones, their unseen layouts, and the plans."""
    part = record.model_copy(update={"checked": NAMES[:1]}).only(Toy(), NAMES[:1])
    assert part.declared == part.checked == NAMES[:1] and part.unseen == {"tp8_rows1": (11,)}
    assert len(part.packs) == 2 and all(name.startswith("tp8_rows1") for name in part.packs)
    assert [w.name for w in check(part).declared] == ["tp8_rows1"]
    assert check(record.only(Toy(), NAMES)) == check(record)
    with pytest.raises(RecordedError, match="no plan for 'tp8_rows64'"):
        record.only(Toy(), ("tp8_rows64",))


@pytest.mark.parametrize(
    "smaller", [{"declared": NAMES[:1], "checked": NAMES[:1]}, {"unseen": {"tp8_rows1": (11,)}}]
)
def test_a_smaller_exam_is_not_the_whole_one(record, smaller):
    require_whole(record, Toy())
    with pytest.raises(RecordedError) as error:
        require_whole(record.model_copy(update=smaller), Toy())
    assert error.value.reason == "recorded.workloads" and "tp8_rows4" in str(error.value)


def test_a_record_comes_back_as_it_was(record, tmp_path):
    path = tmp_path / "a.pack"
    size = pack_file.write(record, path)
    assert path.stat().st_size == size and list(tmp_path.iterdir()) == [path]
    assert pack_file.read(path) == record
    first = path.read_bytes()
    pack_file.write(record, path)
    assert path.read_bytes() == first
    workloads = check(record)
    # One layout for each seed, at what the contract draws from it, and marked as unseen.
    assert [w.name for w in workloads.unseen["tp8_rows4"]] == ["tp8_rows4_unseen", "tp8_rows4_unseen_2"]
    drawn = Toy().vary(Toy().workloads()[1], 13)
    assert workloads.unseen["tp8_rows4"][1].axes == drawn.axes and workloads.unseen["tp8_rows4"][1].held_out


CHANGES = {
    "schema": (dict(schema_version=2), "recorded.schema"),
    "model": (dict(model="other"), "recorded.model"),
    "op": (dict(candidate=candidate(KERNEL, "other")), "recorded.model"),
    "sources": (dict(candidate=candidate(KERNEL + "\n", "accumulate")), "recorded.candidate"),
    "config": (dict(candidate=candidate(KERNEL, "accumulate", {"a": 1})), "recorded.candidate"),
    "contract": (dict(contract_digest="e" * 64), "recorded.contract"),
    "judge": (dict(judge_digest="e" * 64), "recorded.judge"),
    "unknown workload": (dict(checked=("tp8_rows5",)), "recorded.workloads"),
    "nothing checked": (dict(checked=()), "recorded.workloads"),
    "one workload twice": (dict(checked=("tp8_rows1", "tp8_rows1")), "recorded.workloads"),
    "no unseen layout": (dict(unseen={"tp8_rows1": (11,)}), "recorded.workloads"),
    "another layout": (dict(unseen={"tp8_rows1": (11,), "tp8_rows4": (12,)}), "recorded.plans"),
    "no plans": (dict(packs={}), "recorded.plans"),
    "no code": (dict(codes=()), "recorded.codes"),
    "passed and stopped": (
        dict(stopped=(CheckResult(check="plan", title="t", outcome=Outcome.PASS),)), "recorded.stopped",
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_field_is_refused(record, change):
    fields, reason = CHANGES[change]
    with pytest.raises(RecordedError) as refused:
        check(record.model_copy(update=fields))
    assert refused.value.reason == reason


def changed_code(record: Recorded, **fields) -> Recorded:
    first, *rest = record.codes
    return record.model_copy(update={"codes": (first.model_copy(update=fields), *rest)})


def test_device_code_must_be_that_of_the_plans(record):
    for fields in (
        {"kernel": "other"}, {"target": "sm_80"}, {"parameters": ("x",)}, {"cubin": b"text"}, {"entry": "elsewhere"},
    ):  # fmt: skip
        with pytest.raises(RecordedError) as refused:
            check(changed_code(record, **fields))
        assert refused.value.reason == "recorded.codes", fields
    with pytest.raises(RecordedError, match="device code does not match"):
        check(record.model_copy(update={"codes": (*record.codes, record.codes[0])}))
    # Its listings have to agree with each other: here there are none.
    with pytest.raises(RecordedError) as refused:
        recorded.audits(record.codes)
    assert refused.value.reason == "recorded.codes"


def test_a_plan_of_another_workload_is_refused(record):
    packs = dict(record.packs)
    packs["tp8_rows4"] = packs["tp8_rows1"]
    with pytest.raises(RecordedError) as refused:
        check(record.model_copy(update={"packs": packs}))
    assert refused.value.reason == "recorded.candidate"


def test_an_op_with_pools_needs_its_far_workload(record):
    class Pooled(Toy):
        def far(self, workload):
            return Far(workload=workload.model_copy(update={"name": "far"}), shift=9, pages="slots", pools=("acc",))

    with pytest.raises(RecordedError, match="beyond 32 bits"):
        check(record, Pooled())


def rewritten(path, edit):
    """Changes the document in a pack file as text, leaving the digest as it is."""
    document = json.loads(gzip.decompress(path.read_bytes()))
    edit(document)
    path.write_bytes(gzip.compress(json.dumps(document).encode()))


EDITS = {
    "digest": (lambda d: d["record"].update(hardware="gb300"), "recorded.digest"),
    "format": (lambda d: d.update(format="other"), "recorded.format"),
    "extra key": (lambda d: d.update(more=1), "recorded.format"),
    "unknown field": (
        lambda d: (d["record"].update(more=1), d.update(digest=sha256(canonical_json(d["record"]).encode()))),
        "recorded.format",
    ),
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
def test_a_changed_file_is_refused(record, tmp_path, edit):
    path = tmp_path / "a.pack"
    pack_file.write(record, path)
    change, reason = EDITS[edit]
    rewritten(path, change)
    with pytest.raises(RecordedError) as refused:
        pack_file.read(path)
    assert refused.value.reason == reason


@pytest.mark.parametrize(
    "data", [b"", b"text", gzip.compress(b"[]"), gzip.compress(b"{")[:-9], gzip.compress(b"null")],
    ids=["empty", "text", "array", "cut off", "null"],
)  # fmt: skip
def test_what_is_no_pack_is_refused(tmp_path, data):
    path = tmp_path / "a.pack"
    path.write_bytes(data)
    with pytest.raises(RecordedError) as refused:
        pack_file.read(path)
    assert refused.value.reason == "recorded.format"


def test_a_file_that_unpacks_too_large_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(pack_file, "MAX_BYTES", 1000)
    path = tmp_path / "a.pack"
    path.write_bytes(gzip.compress(bytes(1001)))
    with pytest.raises(RecordedError) as refused:
        pack_file.read(path)
    assert refused.value.reason == "recorded.size"
    monkeypatch.setattr(pack_file, "MAX_FILE_BYTES", 10)
    with pytest.raises(RecordedError, match="larger than"):
        pack_file.read(path)
