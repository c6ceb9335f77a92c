"""Published exams are frozen from a hub over real HTTP: our own text in their published form, at a commit."""

import csv
import io
import json

import pyarrow
import pyarrow.parquet
import pytest
import recorded_answers as recorded
from fake_hub import FakeHub

from fasttrack.cli import run as cli
from fasttrack_validation.accuracy import build, frozen, published
from fasttrack_validation.accuracy.frozen import Scorer
from fasttrack_validation.accuracy.scoring import score
from fasttrack_validation.accuracy.verify import load, verify
from fasttrack_validation.errors import UserError

AIME, GPQA, MRCR = (published.DATASETS[name] for name in ("aime25", "gpqa_diamond", "mrcr"))
COMMIT, OTHER = "c" * 40, "d" * 40
SYNTHETIC = recorded.exam("mrcr_synthetic", needles=(2, 4, 8), words=(1000, 2000), items_each=1)


def aime(rows=30, answer=lambda n: n * 7 % 1000):
    lines = [{"id": str(n), "problem": f" What is {n} times 7? ", "answer": str(answer(n))} for n in range(rows)]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def gpqa(rows=198, **drop):
    names = ["Record ID", "Question", "Correct Answer", *(f"Incorrect Answer {n}" for n in (1, 2, 3)), "Canary String"]
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, [name for name in names if name not in drop.values()], extrasaction="ignore")
    table.writeheader()
    for n in range(rows):
        table.writerow({
            "Record ID": f"rec{n:04}", "Question": f'Which is {n}, "said, so"?\nTell.', "Correct Answer": f"{n}\n",
            **{f"Incorrect Answer {k}": f"{n + k}" for k in (1, 2, 3)}, "Canary String": "canary",
        })  # fmt: skip
    return text.getvalue().encode("utf-8")


def mrcr(needles, part):
    rows = [
        {
            "prompt": json.dumps([m.model_dump() for m in item.messages]), "answer": SYNTHETIC.keys[item.id].answer,
            "random_string_to_prepend": item.prefix, "n_needles": needles, "desired_msg_index": 1,
            "total_messages": len(item.messages), "n_chars": 1, "date_added": "04-12-2025",
        }
        for item in SYNTHETIC.items if item.needles == needles and (item.words > 1500) == bool(part)
    ]  # fmt: skip
    out = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), out)
    return out.getvalue().to_pybytes()


def words(text):
    return len(text.split())


@pytest.fixture
def hub(monkeypatch):
    files = {
        (AIME.repository, AIME.revision, "test.jsonl"): aime(),
        (AIME.repository, OTHER, "test.jsonl"): aime(29),
        (GPQA.repository, COMMIT, "gpqa_diamond.csv"): gpqa(),
        **{
            (MRCR.repository, MRCR.revision, f"{n}needle/{n}needle_{part}.parquet"): mrcr(n, part)
            for n in (2, 4, 8) for part in (0, 1)
        },
    }  # fmt: skip
    branches = {(GPQA.repository, "main"): COMMIT, (AIME.repository, "main"): OTHER}
    with FakeHub(files, gated={GPQA.repository: "hf_secret"}, branches=branches) as fake:
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        monkeypatch.setattr(published, "_o200k", lambda: words)
        yield fake


def made(kind, place, **more):
    draft = build.build(build.plan(kind, **more))
    frozen.write(draft, place)
    return load(place, draft.manifest().digest())


def test_aime_is_thirty_integers_at_the_pinned_commit(hub, tmp_path):
    exam = made("aime25", tmp_path / "exam")
    assert len(exam.items) == 30 and exam.manifest.scorer is Scorer.INTEGER
    assert exam.manifest.source.revision == AIME.revision and len(AIME.revision) == 40
    item = exam.items[3]
    assert "What is 3 times 7?\n" in item.messages[0].content and exam.keys[item.id].answer == "21"
    assert score(Scorer.INTEGER, item, exam.keys[item.id], "so \\boxed{21}").score == 1
    assert all(AIME.revision in asked for asked in hub.asked if AIME.repository in asked), hub.asked


def test_gpqa_is_gated_and_its_options_are_frozen(hub, tmp_path, monkeypatch):
    exam = made("gpqa_diamond", tmp_path / "exam", seed=3)
    assert len(exam.items) == 198 and exam.manifest.source.revision == COMMIT
    letters = {exam.keys[item.id].answer for item in exam.items}
    assert letters == set("ABCD")
    for number, item in enumerate(exam.items):
        assert sorted(item.options) == sorted(str(number + k) for k in range(4))
        assert item.options["ABCD".index(exam.keys[item.id].answer)] == str(number)
    assert made("gpqa_diamond", tmp_path / "again", seed=3).digest == exam.digest
    assert made("gpqa_diamond", tmp_path / "other", seed=4).digest != exam.digest
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(UserError, match="is gated") as told:
        made("gpqa_diamond", tmp_path / "none")
    assert "HF_TOKEN" in told.value.how
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(UserError, match="is gated") as told:
        made("gpqa_diamond", tmp_path / "none")
    assert "hf_wrong" not in str(told.value) and not (tmp_path / "none").exists()


def test_mrcr_is_cut_by_published_lengths(hub, tmp_path):
    exam = made("mrcr", tmp_path / "exam", needles=(2, 8))
    assert [item.needles for item in exam.items] == [2, 2, 8, 8]
    for item in exam.items:
        answer = exam.keys[item.id].answer
        assert item.tokens == sum(words(m.content) for m in item.messages) + words(answer)
        assert score(Scorer.MRCR, item, exam.keys[item.id], answer).score == 1
    longest = max(item.tokens for item in exam.items)
    short = made("mrcr", tmp_path / "short", needles=(2, 8), max_tokens=longest - 1)
    assert {item.id for item in short.items} == {item.id for item in exam.items if item.tokens < longest}
    assert exam.manifest.source.files.keys() == {f"{n}needle/{n}needle_{part}.parquet" for n in (2, 8) for part in (0, 1)}
    with pytest.raises(UserError, match="2, 4 and 8"):
        build.plan("mrcr", needles=(3,))
    with pytest.raises(UserError, match="gives 0 items"):
        made("mrcr", tmp_path / "none", max_tokens=1)


def test_bins_are_the_published_ones():
    """Edges by the dataset's card: the first bin closed, the others open at their lower edge."""
    expected = {
        4095: "below 4096", 4096: "4096 to 8192", 8192: "4096 to 8192", 8193: "8192 to 16384",
        1048576: "524288 to 1048576", 1048577: "above 1048576",
    }  # fmt: skip
    assert {tokens: published.bin_of(tokens) for tokens in expected} == expected


@pytest.mark.parametrize(("data", "match"), [
    (aime(answer=lambda n: "x"), "no integer from 0 to 999"),
    (aime(answer=lambda n: 1000), "no integer from 0 to 999"),
    (aime(29), "gives 29 items, 30 are published"),
    (aime().replace(b'"problem"', b'"question"'), "no column 'problem'"),
    (b"<html>", "does not have the published form"),
], ids=["text", "large", "missing", "column", "html"])  # fmt: skip
def test_what_is_not_the_published_form_is_refused(hub, tmp_path, data, match):
    hub.files[AIME.repository, AIME.revision, "test.jsonl"] = data
    with pytest.raises(UserError, match=match) as told:
        made("aime25", tmp_path / "exam")
    assert "210" not in str(told.value) and not (tmp_path / "exam").exists()


def test_a_hub_that_fails_is_told(hub, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="the hub answers 404"):
        made("aime25", tmp_path / "exam", revision="e" * 40)
    with pytest.raises(UserError, match="the hub answers 404"):
        made("gpqa_diamond", tmp_path / "exam", revision="no-such-branch")
    with pytest.raises(UserError, match="gives 29 items"):
        made("aime25", tmp_path / "exam", revision="main")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match="cannot be fetched from http://127.0.0.1:9"):
        made("aime25", tmp_path / "exam")


def test_the_command_prints_the_digest_that_verify_then_asks_for(hub, tmp_path, capsys):
    out = str(tmp_path / "exam")
    assert cli(["exam", "build", "mrcr", "--needles", "2", "--max-tokens", "9000", "-o", out, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["revision"] == MRCR.revision and told["items"] == 2
    assert cli(["exam", "verify", out]) == 1 and "unpinned" in capsys.readouterr().out
    assert cli(["exam", "verify", out, "--digest", told["sha256"]]) == 0
    capsys.readouterr()
    assert cli(["exam", "build", "aime25", "-o", str(tmp_path / "aime")]) == 0
    text = capsys.readouterr().out
    assert "30 items" in text and AIME.revision in text and "hf_secret" not in text
    assert cli(["exam", "build", "sample_integers", "--revision", COMMIT, "-o", str(tmp_path / "x")]) == 2


def test_an_edit_of_a_published_exam_is_found_by_its_digest(hub, tmp_path):
    exam = made("aime25", tmp_path / "exam")
    key = tmp_path / "exam" / frozen.KEY
    key.write_text(key.read_text().replace('"21"', '"22"'))
    assert {one.reason for one in verify(tmp_path / "exam", exam.digest)[1]} == {"file_changed"}
