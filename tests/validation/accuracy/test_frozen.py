"""Frozen exams: the same bytes everywhere; every edit is found by its reason; no answer is told."""

import json
import shutil
from hashlib import sha256

import pytest

from fasttrack_validation.accuracy import build, frozen
from fasttrack_validation.accuracy.draw import Draw
from fasttrack_validation.accuracy.frozen import ITEMS, KEY, MANIFEST
from fasttrack_validation.accuracy.verify import load, verify
from fasttrack_validation.errors import UserError
from fasttrack_validation.records import canonical_json

SMALL = {"seed": 0, "needles": (2, 4, 8), "words": (1000,), "items_each": 2}
PINNED = {
    "sample_integers": "9a0b009133fc929272e731402281a2867130db21fd0f7b5f2bd1b1d78b735085",
    "sample_choices": "72b0a2da705df92b934d580c60bf0a9f052227689855700b81ac682709a76988",
}


def made(kind, place, **more):
    frozen.write(build.build(build.plan(kind, **{**SMALL, **more})), place)
    return place


@pytest.fixture(scope="module")
def exams(tmp_path_factory):
    root = tmp_path_factory.mktemp("exams")
    return {kind: made(kind, root / kind) for kind in build.KINDS}


def refreeze(place, *, items=None, keys=None, manifest=None):
    """Edits lines and makes every digest fit again, as whoever owns the directory can."""
    for name, change in ((ITEMS, items), (KEY, keys)):
        if change:
            lines = [json.loads(line) for line in (place / name).read_text().splitlines()]
            change(lines)
            for line in lines:
                if "messages" in line:
                    prompt = canonical_json([line["messages"], line["options"]])
                    line["prompt_sha256"] = sha256(prompt.encode()).hexdigest()
            (place / name).write_text("".join(canonical_json(line) + "\n" for line in lines))
    data = json.loads((place / MANIFEST).read_text())
    data["files"] = {name: sha256((place / name).read_bytes()).hexdigest() for name in (ITEMS, KEY)}
    if manifest:
        manifest(data)
    (place / MANIFEST).write_text(canonical_json(data) + "\n")


def reasons(place, digest=None):
    return {finding.reason for finding in verify(place, digest)[1]}


@pytest.mark.parametrize("kind", list(build.KINDS))
def test_an_exam_is_the_same_bytes_every_time_and_verifies(kind, exams, tmp_path):
    again = made(kind, tmp_path / "again")
    for name in (MANIFEST, ITEMS, KEY):
        assert (again / name).read_bytes() == (exams[kind] / name).read_bytes()
    exam, findings = verify(again)
    assert findings == () and len(exam.items) == len(exam.keys) == exam.manifest.items
    assert exam.digest == sha256((again / MANIFEST).read_bytes().rstrip()).hexdigest()
    if kind in PINNED:
        assert exam.digest == PINNED[kind]
    assert reasons(again, digest="0" * 64) == {"other_exam"}


def test_another_seed_is_another_exam_and_may_order_options_otherwise(exams, tmp_path):
    other = load(made("sample_choices", tmp_path / "x", seed=1))
    this = load(exams["sample_choices"])
    assert other.digest != this.digest
    assert {i.id: sorted(i.options) for i in other.items} == {i.id: sorted(i.options) for i in this.items}
    assert any(a.options != b.options for a, b in zip(other.items, this.items, strict=True))


def swap(lines):
    lines[0]["options"] = lines[0]["options"][::-1]


def repeat(lines):
    lines[1].update({key: lines[0][key] for key in ("messages", "options")})


def answer(lines):
    lines[0]["answer"] = "C" if lines[0]["answer"] != "C" else "D"


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda p: (p / KEY).unlink(), "file_missing"),
        (lambda p: (p / "notes.txt").write_text("x"), "file_unknown"),
        (lambda p: (p / MANIFEST).write_text("{}"), "manifest"),
        (lambda p: (p / ITEMS).write_text((p / ITEMS).read_text().replace("stone", "brick")), "file_changed"),
        (lambda p: (p / ITEMS).write_bytes((p / ITEMS).read_bytes()[:-40]), "unreadable"),
        (lambda p: refreeze(p, items=lambda lines: lines.pop()), "item_count"),
        (lambda p: refreeze(p, items=lambda lines: lines.append(lines[0])), "item_twice"),
        (lambda p: refreeze(p, items=lambda lines: lines[0].update(id="other")), "key_items"),
        (lambda p: refreeze(p, items=repeat), "prompt_twice"),
        (lambda p: refreeze(p, keys=lambda lines: lines[0].update(answer="E")), "item"),
        (lambda p: refreeze(p, items=swap), "item"),
        (lambda p: refreeze(p, keys=answer), "not_rebuilt"),
        (lambda p: refreeze(p, manifest=lambda m: m["source"].update(kind="elsewhere")), "unpinned"),
    ],
)  # fmt: skip
def test_every_edit_is_found_by_its_reason(edit, reason, exams, tmp_path):
    place = tmp_path / "exam"
    shutil.copytree(exams["sample_choices"], place)
    assert reasons(place) == set()
    edit(place)
    assert reason in reasons(place)
    with pytest.raises(UserError):
        load(place)


def test_a_prompt_whose_hash_no_longer_fits_is_found(exams, tmp_path):
    place = tmp_path / "exam"
    shutil.copytree(exams["sample_integers"], place)
    (place / ITEMS).write_text((place / ITEMS).read_text().replace("7^2026", "7^2027"))
    refreeze(place)
    assert "prompt_changed" in reasons(place)


def test_an_exam_of_another_kind_stands_once_its_digest_is_given(exams, tmp_path):
    place = tmp_path / "exam"
    shutil.copytree(exams["sample_choices"], place)
    refreeze(place, manifest=lambda m: m["source"].update(kind="elsewhere"))
    exam, _ = verify(place)
    assert verify(place, exam.digest)[1] == ()


def test_findings_never_quote_an_answer(exams, tmp_path):
    place = tmp_path / "exam"
    shutil.copytree(exams["mrcr_synthetic"], place)
    refreeze(place, keys=lambda lines: lines[0].update(answer=lines[0]["answer"] + " SECRET"))
    exam, findings = verify(place)
    assert {finding.reason for finding in findings} >= {"item"}
    assert "SECRET" not in str(findings) and "SECRET" not in repr(exam)
    (place / KEY).write_text('{"item": 3, "answer": "SECRET"}\n')
    refreeze(place)
    assert "unreadable" in reasons(place) and "SECRET" not in str(verify(place)[1])


def test_a_frozen_exam_is_not_written_over_and_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    made("sample_integers", tmp_path / "a")
    with pytest.raises(UserError, match="exists"):
        made("sample_integers", tmp_path / "a")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fasttrack_validation.accuracy.frozen.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        made("sample_integers", tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(
    ("more", "word"),
    [({"needles": ()}, "at least one"), ({"needles": (1,)}, "from 2 to 8"), ({"needles": (2, 2)}, "distinct"),
     ({"words": (10,)}, "from 1000"), ({"words": (1000, 1000)}, "distinct")],
)  # fmt: skip
def test_sizes_that_cannot_be_are_refused(more, word):
    with pytest.raises(UserError, match=word):
        build.plan("mrcr_synthetic", **{**SMALL, **more})
    with pytest.raises(UserError, match="aime2025"):
        build.plan("aime2025", **SMALL)


def test_draws_are_a_stream_of_digests():
    """By hand: the first draw of the key ("k", 1) is SHA-256 of its bytes, a zero and "1"."""
    assert Draw("k", 1).below(10**6) == int.from_bytes(sha256(b"k\x001\x001").digest()) % 10**6
    assert sorted(Draw("x").shuffled(range(20))) == list(range(20))
    counts = [0] * 4
    draw = Draw("even")
    for _ in range(4000):
        counts[draw.below(4)] += 1
    assert all(abs(count - 1000) < 5 * (4000 * 3 / 16) ** 0.5 for count in counts)
