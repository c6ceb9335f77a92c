"""What is read out of an answer."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasttrack.agents.answer import Answer, Assembly, ToolCall
from fasttrack.agents.reading import blocks, read


def text(value: str):
    return read(Answer(text=value))


def test_files_by_path_and_the_entry_without_one():
    found = text("```python file=kernels/a.py\nA = 1\n```\n\n~~~\ndef launch(ctx):\n    pass\n~~~\n")
    assert found.files == {"kernels/a.py": "A = 1\n", None: "def launch(ctx):\n    pass\n"}


@pytest.mark.parametrize(
    "info",
    [
        "python kernels/a.py",
        "kernels/a.py",
        'python title="kernels/a.py"',
        "{.python file=kernels/a.py}",
        "python:kernels/a.py",
    ],
)
def test_paths_in_info_strings(info):
    assert list(text(f"```{info}\nx = 1\n```").files) == ["kernels/a.py"]


def test_a_fence_in_a_docstring_does_not_end_the_block():
    body = '"""Use\n```\nlaunch\n```\n"""\ndef launch(ctx):\n    pass\n'
    assert text(f"```python\n{body}```\nThat is all.\n```\nnot this\n```").files == {None: body}


def test_a_longer_fence_holds_shorter_ones():
    assert [b.text for b in blocks("````\n```\nx\n```\n````\n")] == ["```\nx\n```\n"]


def test_an_open_block_gives_no_file():
    found = text("```python\ndef launch(ctx):\n    pa")
    assert found.files == {} and found.open


def test_reasoning_is_never_read():
    hidden = "```python\ndef launch(ctx):\n    WRONG\n```"
    assert read(Answer(reasoning=hidden)).files == {} and text(f"<think>{hidden}").files == {}
    assert text(f"<think>{hidden}</think>ok").files == {}


def test_json_that_is_no_call_is_none():
    found = text('```json\n{"BLOCK": 64}\n```')
    assert found.calls == () and found.files == {}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": 1}', [{"a": 1}]), ('"{\\"a\\": 1}"', [{"a": 1}]), ('{"a": 1}{"a": 2}', [{"a": 1}, {"a": 2}]),
        ('[{"a": 1}, {"a": 2}]', [{"a": 1}, {"a": 2}]), ("", [{}]), ('{"a": "x\ny"}', [{"a": "x\ny"}]),
    ],
)  # fmt: skip
def test_arguments_of_a_function_call(arguments, expected):
    found = read(Answer(calls=(ToolCall(id="c", name="t", arguments=arguments),)))
    assert [call.arguments for call in found.calls] == expected and not any(call.problem for call in found.calls)


@pytest.mark.parametrize("arguments", ["{oops", "3", "[1, 2]", "{" * 5000, "[" * 100_000])
def test_arguments_that_cannot_be_read_are_a_problem(arguments):
    found = read(Answer(calls=(ToolCall(id="c", name="t", arguments=arguments),)))
    assert [bool(call.problem) for call in found.calls] == [True]


PIECES = [*'`~\n\r {}[]":,ab\\<>/.py', "```", "<think>", "</think>", "def launch(", '{"name": ', "kernels/a.py"]


@given(st.lists(st.sampled_from(PIECES), max_size=60).map("".join))
def test_no_text_breaks_it(value):
    found = text(value)
    assert all(isinstance(body, str) for body in found.files.values())


NAMES = st.sampled_from("choices delta message tool_calls function usage index content prompt_tokens completion_tokens "
                        "arguments name id".split())  # fmt: skip
DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=20,
)  # fmt: skip


@given(DATA)
def test_no_data_breaks_the_assembly(value):
    assembly = Assembly()
    assembly.add(value)
    assembly.add({"choices": [value]})
    assembly.add({"choices": [{"delta": value}], "usage": value})
    assembly.add({"choices": [{"delta": {"tool_calls": [value]}}]})
    json.loads(assembly.answer(10).canonical_json())


def test_an_answer_is_cut_by_its_reason_or_by_its_count():
    from fasttrack.agents.answer import Usage

    assert Answer(finish="length").cut
    assert Answer(finish="tool_calls", usage=Usage(prompt=1, completion=64), cap=64).cut
    assert not Answer(finish="stop", usage=Usage(prompt=1, completion=63), cap=64).cut
