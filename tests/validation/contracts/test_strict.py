import json
import tomllib
from typing import Literal

import pytest
from fasttrack_validation import strict
from fasttrack_validation.errors import UserError
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, model_validator

TOML = '''# comment
title = "a"

[server] # table
port = 80
text = """
[not.a.table]
key = 1
"""
"quoted key".inner = 2

[[server.rules]]
name = "one"
[[server.rules]]
name = "two"
options = { deep = 3 }
[server.rules.more]
x = [
  1,
  2,
]
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("title",), 2),
        (("server",), 4),
        (("server", "port"), 5),
        (("server", "text"), 6),
        (("server", "quoted key", "inner"), 10),
        (("server", "rules"), 12),
        (("server", "rules", 0, "name"), 13),
        (("server", "rules", 1), 14),
        (("server", "rules", 1, "name"), 15),
        (("server", "rules", 1, "options", "deep"), 16),
        (("server", "rules", 1, "more", "x"), 18),
        (("server", "rules", 1, "more", "x", 1), 18),
        (("server", "missing"), 4),
        (("nowhere", "at", "all"), 1),
    ],
)
def test_line_of_toml(path, line):
    assert strict.line_of(TOML, path, suffix=".toml") == line


def test_line_ends_of_other_systems():
    text = 'a = "\u2028\x85"\r\n[t]\r\nb = 1\r\n'
    assert strict.line_of(text, ("t", "b"), suffix=".toml") == 3


JSON = """{
  "a": {"b": [10,
              {"c": "}, \\"x\\": ["}]},
  "d": [],
  "e": {}
}"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("a",), 2),
        (("a", "b", 0), 2),
        (("a", "b", 1), 3),
        (("a", "b", 1, "c"), 3),
        (("d",), 4),
        (("e",), 5),
        (("e", "f"), 5),
        (("z",), 1),
    ],
)
def test_line_of_json(path, line):
    assert strict.line_of(JSON, path, suffix=".json") == line


leaves = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
documents = st.dictionaries(
    st.text(max_size=4),
    st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
        max_leaves=8,
    ),
    min_size=1,
    max_size=4,
)


def paths(value, path=()):
    if path:
        yield path, value
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from paths(child, (*path, key))


@settings(max_examples=50, deadline=None)
@given(documents)
def test_every_json_path_is_found_on_its_line(document):
    text = json.dumps(document, indent=1, ensure_ascii=False)
    lines = text.split("\n")
    for path, value in paths(document):
        line = lines[strict.line_of(text, path, suffix=".json") - 1].strip()
        shown = json.dumps(value, ensure_ascii=False) if not isinstance(value, (dict, list)) else ""
        prefix = f"{json.dumps(path[-1], ensure_ascii=False)}: " if isinstance(path[-1], str) else ""
        assert line.startswith(prefix + shown)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.from_regex(r"[a-z]{1,4}", fullmatch=True), unique=True, min_size=1), st.integers(0, 3))
def test_toml_keys_after_blank_and_multiline_statements(keys, blanks):
    text, expected = "", {}
    for key in keys:
        text += "\n" * blanks + f'{key} = """\n{key} = 1\n"""\n'
        expected[key] = text.count("\n") - 2
    assert set(tomllib.loads(text)) == set(keys)
    assert {key: strict.line_of(text, (key,), suffix=".toml") for key in keys} == expected


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    n: int
    kind: Literal["x"] = "x"


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    inner: Inner
    pair: tuple[int, int] = (1, 2)

    @model_validator(mode="after")
    def _pair(self):
        if self.pair[0] > self.pair[1]:
            raise ValueError("the pair must ascend")
        return self


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("pair = [1, 2]\n", "f.toml:1: inner: is missing"),
        ("[inner]\n", "f.toml:1: inner.n: is missing"),
        ("\n[inner]\nn = '3'\n", "f.toml:3: inner.n: Input should be a valid integer, got '3'"),
        ("\n[inner]\nn = true\n", "f.toml:3: inner.n: Input should be a valid integer, got True"),
        ("[inner]\nn = 3\nm = 4\n", "f.toml:3: inner.m: is not a known key"),
        ("[inner]\nn = 3\nkind = 'y'\n", "f.toml:3: inner.kind: Input should be 'x', got 'y'"),
        ("pair = [2, 1]\n[inner]\nn = 3\n", "f.toml:1: (the whole file): the pair must ascend"),
        ("[inner]\nn = \n", "f.toml:2: not valid TOML"),
        ("[inner]\nn = 1\nn = 2\n", "f.toml:3: not valid TOML"),
        ("[inner]\nn = 2026-01-01\n", "f.toml:1: "),
    ],
)
def test_parse_names_file_line_and_key(text, what):
    with pytest.raises(UserError) as caught:
        strict.parse(text, Outer, "f.toml")
    assert caught.value.what.startswith(what)
    assert caught.value.how


def test_json_syntax_and_duplicate_keys():
    with pytest.raises(UserError, match="f.json:2: not valid JSON"):
        strict.parse('{"inner":\n}', Outer, "f.json")
    with pytest.raises(UserError, match="'n' is set twice"):
        strict.parse('{"inner": {"n": 1, "n": 2}}', Outer, "f.json")


@pytest.mark.parametrize("value", ["1" + "0" * 5000, "[" * 100_000])
def test_json_that_python_cannot_hold(value):
    with pytest.raises(UserError, match="f.json: cannot be parsed"):
        strict.parse(f'{{"inner": {value}', Outer, "f.json")


def test_read(tmp_path):
    path = tmp_path / "f.toml"
    with pytest.raises(UserError, match="cannot be read"):
        strict.read(path, Outer)
    path.write_text("[inner]\nn = 3\n")
    assert strict.read(path, Outer).inner.n == 3
