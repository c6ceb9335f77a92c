"""What servers answer, as it is read: both forms, and everything that is refused."""

import copy
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasttrack_validation.errors import UserError
from fasttrack_validation.numerics.servers.forms import Form, Refused, Unreadable, read, request
from fasttrack_validation.numerics.servers.identity import Identity, ask, comparable, different_builds
from fasttrack_validation.numerics.servers.journal import Journal, Piece, kept
from fasttrack_validation.numerics.servers.prompts import cuts, prompts

TOKENS = [1, 7, 9]


def entry(log_prob, rank, text="x"):
    return {"logprob": log_prob, "rank": rank, "decoded_token": text}


def vllm():
    """Token 7 is the third, beside the two likeliest; token 9 is the second of them."""
    return {"model": "m", "choices": [{"prompt_logprobs": [
        None,
        {"7": entry(-3.0, 3, "c"), "4": entry(-0.1, 1, "a"), "5": entry(-2.5, 2, "b")},
        {"4": entry(-0.2, 1, "a"), "9": entry(-1.9, 2, "d")},
    ]}]}  # fmt: skip


def sglang():
    """The same."""
    return {"text": "", "meta_info": {
        "input_token_logprobs": [[None, 1, "s"], [-3.0, 7, "c"], [-1.9, 9, "d"]],
        "input_top_logprobs": [None, [[-0.1, 4, "a"], [-2.5, 5, "b"]], [[-0.2, 4, "a"], [-1.9, 9, "d"]]],
    }}  # fmt: skip


@pytest.mark.parametrize(("form", "body"), [(Form.VLLM, vllm()), (Form.SGLANG, sglang())])
def test_both_forms_say_the_same(form, body):
    texts = {}
    one, two = read(form, body, TOKENS, 1, 2, texts)
    assert (one.token, one.log_prob, one.top) == (7, -3.0, ((4, -0.1), (5, -2.5)))
    assert (two.token, two.log_prob, two.top) == (9, -1.9, ((4, -0.2), (9, -1.9)))
    assert texts[4] == {"a"} and texts[9] == {"d"}


def test_a_later_piece_is_asked_for_as_each_server_counts():
    path, body = request(Form.VLLM, "m", TOKENS, 2, 5)
    assert path == "/v1/completions" and body["prompt"] == TOKENS and body["prompt_logprobs"] == 5
    assert [one.token for one in read(Form.VLLM, vllm(), TOKENS, 2, 2, {})] == [9]
    path, body = request(Form.SGLANG, "m", TOKENS, 2, 5)
    assert path == "/generate" and body["logprob_start_len"] == 1 and body["top_logprobs_num"] == 5
    part = sglang()
    for name in part["meta_info"]:
        part["meta_info"][name] = part["meta_info"][name][1:]
    assert [one.token for one in read(Form.SGLANG, part, TOKENS, 2, 2, {})] == [9]


def changed(body, *path, to):
    spoilt = copy.deepcopy(body)
    inner = spoilt
    for step in path[:-1]:
        inner = inner[step]
    if to is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return spoilt


_V, _S = ("choices", 0, "prompt_logprobs"), ("meta_info",)
BAD = {
    "no scores": (Form.VLLM, changed(vllm(), *_V, to=None), "missing"),
    "fewer tokens": (Form.VLLM, changed(vllm(), *_V, 2, to=None), "missing"),
    "own token missing": (Form.VLLM, changed(vllm(), *_V, 1, "7", to=None), "missing"),
    # Token 7 has come in addition: it is no second candidate.
    "one candidate": (Form.VLLM, changed(vllm(), *_V, 1, "5", to=None), "truncated"),
    "NaN": (Form.VLLM, changed(vllm(), *_V, 1, "4", "logprob", to=math.nan), "missing"),
    "a probability": (Form.VLLM, changed(vllm(), *_V, 1, "4", "logprob", to=0.9), "missing"),
    "sglang, no scores": (Form.SGLANG, changed(sglang(), *_S, "input_token_logprobs", to=None), "missing"),
    "sglang, generated only": (Form.SGLANG, changed(sglang(), *_S, "input_token_logprobs", to=[]), "missing"),
    "sglang, none": (Form.SGLANG, changed(sglang(), *_S, "input_token_logprobs", 1, 0, to="-3"), "missing"),
    "sglang, other token": (Form.SGLANG, changed(sglang(), *_S, "input_token_logprobs", 1, 1, to=8), "missing"),
    "sglang, one candidate": (Form.SGLANG, changed(sglang(), *_S, "input_top_logprobs", 1, 1, to=None), "truncated"),
}


@pytest.mark.parametrize("what", BAD)
def test_answers_without_all_that_was_asked_for_are_refused(what):
    form, body, reason = BAD[what]
    with pytest.raises(Refused) as refused:
        read(form, body, TOKENS, 1, 2, {})
    assert refused.value.reason == reason


@given(
    st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)
def test_whatever_else_comes_is_no_answer(body):
    for form in Form:
        with pytest.raises((Unreadable, Refused)):
            read(form, body, TOKENS, 1, 2, {})


@given(st.integers(2, 3000), st.integers(1, 700), st.sampled_from(Form))
def test_pieces_cover_each_token_once(count, size, form):
    pieces = cuts(count, size, form)
    assert [place for start, end in pieces for place in range(start, end)] == list(range(1, count))
    if form is Form.VLLM:
        assert sum(end for _, end in pieces) <= 3 * count  # every request begins at the prompt's beginning


WHO = Identity(model="m", tokenizer="t", revision="r", dtype="bfloat16", build="1")


@pytest.mark.parametrize("field", ["model", "tokenizer", "revision", "dtype"])
def test_servers_that_disagree_or_do_not_say_are_refused(field):
    comparable(WHO, WHO.model_copy(update={"build": "2"}), "candidate")
    with pytest.raises(Refused, match=f"disagree about {field}") as refused:
        comparable(WHO, WHO.model_copy(update={field: "other"}), "candidate")
    assert refused.value.reason == field
    with pytest.raises(Refused, match=f"candidate server does not say its {field}"):
        comparable(WHO, WHO.model_copy(update={field: None}), "candidate")


def test_one_build_is_not_compared_with_itself():
    other = WHO.model_copy(update={"build": "2"})
    different_builds({"stock": WHO, "candidate": other})
    with pytest.raises(Refused, match="stock and candidate are both build 1") as refused:
        different_builds({"stock": WHO, "candidate": WHO})
    assert refused.value.reason == "same_build"
    with pytest.raises(Refused, match="candidate and control-1"):  # its own noise
        different_builds({"stock": WHO, "candidate": other, "control-1": other})
    with pytest.raises(Refused, match="does not say its build"):
        different_builds({"stock": WHO, "candidate": WHO.model_copy(update={"build": None})})


def test_what_a_server_does_not_say_may_be_stated_but_not_contradicted():
    said = {
        "/v1/models": {"data": [{"id": "k3", "root": "org/K3"}]}, "/version": {"version": "0.14"},
    }  # fmt: skip
    who, form = ask(said.get, {"dtype": "bfloat16", "build": "0.14"})
    assert form is Form.VLLM and (who.model, who.served, who.dtype, who.revision) == ("org/K3", "k3", "bfloat16", None)
    assert who.declared == ("dtype",)
    with pytest.raises(UserError, match="it says build 0.14, --declare says 0.15"):
        ask(said.get, {"build": "0.15"})
    # One version, two backends: who says more of a build than the server does not contradict it.
    stock, _ = ask(said.get, {"build": "stock 0.14"})
    other, _ = ask(said.get, {"build": "specialised 3f2a1b on 0.14"})
    assert (stock.build, other.build, stock.declared) == ("stock 0.14", "specialised 3f2a1b on 0.14", ("build",))
    different_builds({"stock": stock, "candidate": other})
    for wrong in ("0.14.1", "specialised", "10.14+x", "v0.140"):
        with pytest.raises(UserError, match=f"--declare says {re.escape(wrong)}") as refused:
            ask(said.get, {"build": wrong})
        assert "0.14+candidate" in refused.value.how
    said = {
        "/get_model_info": {"model_path": "org/K3", "tokenizer_path": "org/K3"},
        "/get_server_info": {"dtype": "bfloat16", "revision": "abc", "version": "0.5"},
    }
    who, form = ask(said.get, {})
    assert form is Form.SGLANG and (who.dtype, who.revision, who.build) == ("bfloat16", "abc", "0.5")


def piece(start, prompt="a"):
    return Piece(arm="stock", prompt=prompt, start=start, tokens=(3,), log_probs=(-0.1,), top=(((3, -0.1), (4, -3.0)),))


def test_a_journal_goes_on_after_a_stop_at_any_byte(tmp_path):
    file = tmp_path / "j"
    journal = Journal(file, {"of": 1})
    journal.add(piece(1))
    journal.add(piece(2))
    journal.close()
    data = file.read_bytes()
    second = data.index(b"\n", data.index(b"\n") + 1) + 1
    for length in range(len(data)):
        file.write_bytes(data[:length])
        journal = Journal(file, {"of": 1})
        assert journal.keys <= {("stock", "a", 1), ("stock", "a", 2)} and (len(journal.keys) == 1) == (length >= second)
        for start in (1, 2):
            if ("stock", "a", start) not in journal.keys:
                journal.add(piece(start))
        with pytest.raises(ValueError, match="kept already"):
            journal.add(piece(1))
        journal.close()
        assert file.read_bytes() == data
    with pytest.raises(UserError, match="something else: of was 1 there, and is 2 now"):
        Journal(file, {"of": 2})
    file.write_bytes(data + data[second:])
    with pytest.raises(UserError, match="there twice"):
        Journal(file, {"of": 1})
    assert len(list(kept(file)[1])) == 3


@pytest.mark.parametrize(
    ("now", "says"),
    [
        ({"stock": {"build": "a", "dtype": "x"}, "candidate": {"build": "c"}}, "servers.candidate.build was 'b' there, and is 'c' now"),
        ({"stock": {"build": "a", "dtype": "x"}}, "servers.candidate was {'build': 'b'} there, and is None now"),
        ({"stock": {"build": "b"}, "candidate": {"build": "a", "dtype": "x"}}, "its servers have changed places"),
    ],
)  # fmt: skip
def test_a_journal_of_other_servers_names_what_is_another(tmp_path, now, says):
    file = tmp_path / "j"
    about = {"top": 8, "servers": {"stock": {"build": "a", "dtype": "x"}, "candidate": {"build": "b"}}}
    Journal(file, about).close()
    with pytest.raises(UserError) as raised:
        Journal(file, {**about, "servers": now})
    assert says in raised.value.what
    Journal(file, about).close()


@pytest.mark.parametrize("line", ['{"id": "a"}', "[1]", "[1, -2]", '["a", "b"]', "text", '{"tokens": [1, true]}'])
def test_prompts_that_are_none_are_named_by_line(tmp_path, line):
    file = tmp_path / "p"
    file.write_text(f'{{"id": "x", "tokens": [1, 2]}}\n{line}\n')
    with pytest.raises(UserError, match="p:2: "):
        list(prompts(file))
