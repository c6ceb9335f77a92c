"""Answers: nothing is guessed, nothing contradicts itself, and what does not fit is named."""

import json
import tomllib
from pathlib import Path

import pytest
from fasttrack.scaffold import answers
from fasttrack_validation.errors import UserError
from scaffolding import EXAMPLE, ROOT

KNOWN = tomllib.loads((ROOT / EXAMPLE).read_text("utf-8"))


def never(name: str, what: str) -> str:
    raise AssertionError(f"asked for {name}")


def file_of(folder: Path, **change) -> Path:
    """The example's answers with some of them changed, or left out where None, as a file."""
    values = {name: value for name, value in (KNOWN | change).items() if value is not None}
    path = folder / "answers.toml"
    path.write_text("\n".join(f"{name} = {_toml(value)}" for name, value in values.items()) + "\n", "utf-8")
    return path


def _toml(value) -> str:
    return json.dumps(value) if isinstance(value, str | list | int | float) else str(value)


def test_the_example_is_the_published_model():
    found = answers.gather(ROOT / EXAMPLE, None, never)
    # nemo_automodel/components/models/deepseek_v41/config.py: hidden_size, rms_norm_eps.
    assert (found.hidden_size, found.rms_norm_eps) == (5120, 1e-20)
    assert all("http" in source or "vLLM" in source for source in found.sources)


def test_what_is_missing_is_listed_at_once_and_not_guessed(tmp_path):
    path = file_of(tmp_path, hidden_size=None, owner=None)
    with pytest.raises(UserError) as caught:
        answers.gather(path, None, None)
    lines = caught.value.what.splitlines()
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["hidden_size", "owner"]
    with pytest.raises(UserError) as caught:
        answers.gather(None, None, None)
    assert all(f"  {name}: " in caught.value.what for name in answers.Answers.model_fields)


def test_only_what_is_missing_is_asked_for(tmp_path):
    asked = []

    def ask(name: str, what: str) -> str:
        asked.append(name)
        return {"hidden_size": "4096", "tp": "8, 4", "sources": "one; two", "rms_norm_eps": "1e-6"}[name]

    path = file_of(tmp_path, hidden_size=None, tp=None, sources=None, rms_norm_eps=None)
    found = answers.gather(path, None, ask)
    assert asked == ["sources", "hidden_size", "rms_norm_eps", "tp"]
    assert (found.hidden_size, found.tp, found.sources) == (4096, (4, 8), ("one", "two"))


@pytest.mark.parametrize("nested", [False, True])
def test_a_published_config_answers_for_width_and_epsilon(tmp_path, nested):
    text = {"hidden_size": 5120, "rms_norm_eps": 1e-20}
    config = tmp_path / "config.json"
    # A vision tower has a width of its own, which is not the backbone's.
    document = {"vision_config": {"hidden_size": 1024}, "text_config": text} if nested else text
    config.write_text(json.dumps(document))
    found = answers.gather(file_of(tmp_path, hidden_size=None, rms_norm_eps=None), config, never)
    assert (found.hidden_size, found.rms_norm_eps) == (5120, 1e-20)
    config.write_text(json.dumps(text | {"hidden_size": 4096}))
    with pytest.raises(UserError, match="hidden_size is 5120 in .*, and 4096 in"):
        answers.gather(file_of(tmp_path), config, never)


@pytest.mark.parametrize("content", ["", "[]", "{", "\udcff", "[" * 100_000])
def test_a_config_that_is_none_is_refused(tmp_path, content):
    config = tmp_path / "config.json"
    config.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError, match="config.json"):
        answers.gather(None, config, never)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"hidden_size": 5121}, "hidden_size = 5121"),
        ({"hidden_size": -8}, "hidden_size"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps"),
        ({"rounding": "thrice"}, "rounding"),
        ({"hardware": ["h100"]}, "'h100' is no hardware"),
        ({"hardware": []}, "hardware"),
        ({"tp": [0]}, "tp"),
        ({"max_rows": 0}, "max_rows"),
        ({"title": 'x"""\nimport os'}, "title"),
        ({"title": "{{ name }}"}, "title"),
        ({"owner": "two\nlines"}, "owner"),
        ({"owner": "a\u202eb"}, "owner"),
        ({"sources": [" "]}, "sources"),
        ({"remove_by": "2027-01-01"}, "remove_by must come after review_by"),
        ({"review_by": "soon"}, "review_by"),
        ({"layers": 40}, "'layers' is no question"),
    ],
)
def test_an_answer_that_does_not_fit_is_named(tmp_path, change, what):
    with pytest.raises(UserError) as caught:
        answers.gather(file_of(tmp_path, **change), None, never)
    assert what in caught.value.what


def test_questions_are_a_file_to_fill_in_that_is_no_answer_as_it_stands(tmp_path):
    blank = tmp_path / "blank.toml"
    blank.write_text(answers.questions())
    assert list(tomllib.loads(answers.questions())) == list(answers.Answers.model_fields)
    with pytest.raises(UserError):
        answers.gather(blank, None, never)


@pytest.mark.parametrize(
    ("most", "buckets", "held_out"),
    [(1, (1,), (1,)), (8, (1, 2, 4, 8), (1, 2, 3, 7)), (6, (1, 2, 4, 6), (1, 2, 3, 5))],
)
def test_buckets_end_at_the_most_rows(tmp_path, most, buckets, held_out):
    found = answers.gather(file_of(tmp_path, max_rows=most), None, never)
    assert (found.buckets, found.held_out) == (buckets, held_out)
