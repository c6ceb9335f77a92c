"""What endpoints do that no specification says: each gives progress, or one clear message. No traceback, no endless retry.

A quirk is a script that plays it, and what must follow: `accepted` (a candidate got through), or a part of the message
that the run ends with. The number of requests bounds what it may cost.
"""

import json
import socket
import time
from dataclasses import dataclass
from email.utils import format_datetime

import chatting
import lane_fakes as fakes
import pytest
from chatting import KEY, Ear, run, with_settings
from model_server import Exchange, ModelServer, Play, envelope, refuse, say, tool, write

from fasttrack_validation.errors import UserError

GOOD = write(chatting.RIGHT, config={"BLOCK": 64})
TEXT = f"Here it is.\n\n```python file=kernels/copy.py\n{chatting.RIGHT}```\n"


def needs(without: str, message: str, status: int = 400, then: Play = GOOD, **fields) -> Play:
    """Refuses a request that has the parameter."""

    def play(exchange: Exchange) -> None:
        if without in exchange.body:
            exchange.error(status, message, **fields)
        else:
            then(exchange)

    return play


def rejects_both_caps(exchange: Exchange) -> None:
    for name in ("max_completion_tokens", "max_tokens"):
        if name in exchange.body:
            exchange.error(400, f"Unsupported parameter: '{name}'", param=name)
            return
    GOOD(exchange)


def empty_400_for_stream_options(exchange: Exchange) -> None:
    if "stream_options" in exchange.body:
        exchange.raw(400, b"")
    else:
        GOOD(exchange)


def caps_at_4096(exchange: Exchange) -> None:
    if exchange.body.get("max_completion_tokens", 0) > 4096:
        exchange.error(
            400, "max_completion_tokens is too large: 16384. This model supports at most 4096 completion tokens."
        )
    else:
        GOOD(exchange)


def retry_after_date(exchange: Exchange) -> None:
    import datetime

    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=1)
    exchange.error(429, "slow down", Retry_After=format_datetime(soon, usegmt=True))


def breaks_off(exchange: Exchange) -> None:
    exchange.bill(7)
    exchange.start_stream()
    exchange.chunk({"content": "```python file=kernels/copy.py\ndef lau"})
    exchange.handler.connection.shutdown(socket.SHUT_RDWR)


def stops_without_a_word(exchange: Exchange) -> None:
    exchange.start_stream()
    exchange.chunk({"content": "hm"})


def never_finishes(exchange: Exchange) -> None:
    exchange.start_stream()
    exchange.chunk({"content": TEXT})
    exchange.event("[DONE]")


def falls_silent(exchange: Exchange) -> None:
    exchange.start_stream()
    exchange.chunk({"content": "let me think"})
    time.sleep(4)


def error_in_stream(exchange: Exchange) -> None:
    exchange.start_stream()
    exchange.chunk({"content": "hm"})
    exchange.event({"error": {"message": "the backend went away", "code": 500}})


def garbage_in_stream(exchange: Exchange) -> None:
    exchange.start_stream()
    exchange.event('{"choices": [{"delta"')


def half_block(exchange: Exchange) -> None:
    """Length, with half a code block; the rest comes when it is asked for, with the fence opened anew."""
    if len(exchange.body["messages"]) == 2:
        say(TEXT[:45], finish="length")(exchange)
    else:
        assert "Go on exactly" in exchange.body["messages"][-1]["content"]
        say("```python\n" + TEXT[45:])(exchange)


def cut_call(exchange: Exchange) -> None:
    """finish_reason tool_calls on an answer that was cut: the count equals the cap."""
    if len(exchange.body["messages"]) == 2:
        cap = exchange.body["max_completion_tokens"]
        short = tool("write_candidate", "w", files=[{"path": "kernels/copy.py", "text": "def launch(ctx, WRONG half"}])
        say(calls=[short], completion=cap)(exchange)
    else:
        assert "was cut" in exchange.body["messages"][-1]["content"]
        GOOD(exchange)


def call_with(arguments: str, name: str = "write_candidate") -> Play:
    """The call with these very arguments, then `evaluate`."""
    made = {"id": "w", "type": "function", "function": {"name": name, "arguments": arguments}}
    return lambda exchange: say(calls=[made, tool("evaluate", "e")])(exchange)


ARGUMENTS = json.dumps({"files": [{"path": "kernels/copy.py", "text": chatting.RIGHT}]})


def after(first: Play, *rest: Play) -> Play:
    """`first`, then the others by turn, the last one for ever."""

    def play(exchange: Exchange) -> None:
        script = (first, *rest)
        script[min(exchange.number, len(script) - 1)](exchange)

    return play


def function_call(exchange: Exchange) -> None:
    """The old form of a call."""
    old = {"name": "write_candidate", "arguments": ARGUMENTS}
    if exchange.number == 0:
        say(None, function_call=old, stream=False, finish="function_call")(exchange)
    else:
        say(None, function_call={"name": "evaluate", "arguments": "{}"}, stream=False)(exchange)


def arguments_as_data(exchange: Exchange) -> None:
    call = {"id": "w", "type": "function", "function": {"name": "write_candidate", "arguments": json.loads(ARGUMENTS)}}
    usage = exchange.bill(30)
    message = {"role": "assistant", "content": None, "tool_calls": [call, tool("evaluate", "e")]}
    exchange.json(200, envelope(choices=[{"index": 0, "message": message, "finish_reason": "tool_calls"}], usage=usage))


def same_index(exchange: Exchange) -> None:
    """Two calls streamed whole, both with index 0."""
    exchange.start_stream()
    for made in (tool("write_candidate", "w", **json.loads(ARGUMENTS)), tool("evaluate", "e")):
        exchange.chunk({"tool_calls": [{**made, "index": 0}]})
    exchange.chunk({}, finish_reason="tool_calls")
    exchange.event(envelope(choices=[], usage=exchange.bill(30)))
    exchange.event("[DONE]")


def no_choices(exchange: Exchange) -> None:
    exchange.json(200, envelope(choices=[]))


def content_parts(exchange: Exchange) -> None:
    usage = exchange.bill(20)
    message = {
        "role": "assistant",
        "content": [{"type": "text", "text": TEXT[:20]}, {"type": "text", "text": TEXT[20:]}],
    }
    exchange.json(200, envelope(choices=[{"index": 0, "message": message, "finish_reason": "stop"}], usage=usage))


def line_separators(exchange: Exchange) -> None:
    """U+2028 stands unescaped in JSON, and is no end of a line there."""
    exchange.start_stream()
    part = envelope(
        choices=[
            {"index": 0, "delta": {"content": TEXT.replace("# right", "# right\u2028\x85")}, "finish_reason": "stop"}
        ]
    )
    exchange.event(json.dumps({**part, "usage": exchange.bill(30)}, ensure_ascii=False))
    exchange.event("[DONE]")


def too_long_at_first(exchange: Exchange) -> None:
    if exchange.prompt_tokens > 1700:
        exchange.error(
            400,
            "This model's maximum context length is 1700 tokens. However, you requested more.",
            code="context_length_exceeded",
        )
    else:
        GOOD(exchange)


def reasoning_counted_apart(exchange: Exchange) -> None:
    """completion_tokens without the reasoning; total_tokens has it."""
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [tool("write_candidate", "w", **json.loads(ARGUMENTS)), tool("evaluate", "e")],
    }
    exchange.server.billed.append((100, 90))
    usage = {"prompt_tokens": 100, "completion_tokens": 40, "total_tokens": 190}
    exchange.json(200, envelope(choices=[{"index": 0, "message": message, "finish_reason": "tool_calls"}], usage=usage))


HTML = b"<!doctype html><html><body>Please sign in to the guest network</body></html>"


@dataclass
class Quirk:
    play: Play
    ends: str = "accepted"
    requests: int = 3
    billed: bool = True
    """Whether the bill must equal the server's count."""


QUIRKS = {
    # What may be sent.
    "max_completion_tokens is refused": Quirk(needs("max_completion_tokens", "Unrecognized request argument supplied: max_completion_tokens"), requests=2),
    "max_tokens is demanded": Quirk(needs("max_completion_tokens", "'max_completion_tokens' is not supported, use 'max_tokens'", param="max_completion_tokens"), requests=2),
    "both caps are refused": Quirk(rejects_both_caps),
    "the cap is too large": Quirk(caps_at_4096, requests=2),
    "stream_options are refused": Quirk(needs("stream_options", "extra fields not permitted: stream_options", 422), requests=2),
    "400 with an empty body": Quirk(empty_400_for_stream_options, requests=2),
    "parallel_tool_calls are refused": Quirk(needs("parallel_tool_calls", "Unknown parameter", param="parallel_tool_calls"), requests=2),
    "tools are refused": Quirk(needs("tools", "this model does not support tools", then=say(TEXT)), requests=2),
    "streams are refused": Quirk(needs("stream", "stream is not supported here", 501), requests=3),
    "the stream is ignored": Quirk(write(chatting.RIGHT, stream=False), requests=1),
    "the prompt is too long": Quirk(too_long_at_first, requests=5),
    "everything is refused": Quirk(refuse(400, "no"), "the endpoint refuses the request (400): no", 9),
    # Busy, broken, gone.
    "429 with Retry-After": Quirk(after(refuse(429, "slow", Retry_After="0.2"), GOOD), requests=2),
    "429 with a date": Quirk(after(retry_after_date, GOOD), requests=2),
    "429 without Retry-After": Quirk(after(refuse(429, "slow"), GOOD), requests=2),
    "429 for an hour": Quirk(refuse(429, "slow", Retry_After="3600"), "asks to wait 3600 seconds", 1),
    "429 for ever": Quirk(refuse(429, "slow", Retry_After="0"), "slow (3 times in a row)", 3),
    "500, then success": Quirk(after(refuse(500, "oops"), GOOD), requests=2),
    "503 with a web page": Quirk(after(lambda e: e.raw(503, HTML, "text/html"), GOOD), requests=2),
    "200 with an error inside": Quirk(after(lambda e: e.json(200, {"error": {"message": "overloaded"}}), GOOD), requests=2),
    "a login page": Quirk(lambda e: e.raw(200, HTML, "text/html"), "answered with a web page", 1),
    "an empty answer with 200": Quirk(lambda e: e.raw(200, b""), "that is no JSON", 1),
    "an expired key": Quirk(refuse(401, f"Incorrect API key provided: {KEY}", code="invalid_api_key"), "does not accept the key (401)", 1),
    "no credit": Quirk(refuse(429, "You exceeded your current quota", code="insufficient_quota"), "out of credit", 1),
    "no such model": Quirk(refuse(404, "The model `scripted-1` does not exist", code="model_not_found"), "knows no such model", 1),
    # Answers that do not come whole.
    "a stream that breaks off once": Quirk(after(breaks_off, GOOD), requests=2, billed=False),
    "a stream that breaks off for ever": Quirk(breaks_off, "cut off twice in a row", 2, billed=False),
    "a stream without finish, usage and end, once": Quirk(after(stops_without_a_word, GOOD), requests=2, billed=False),
    "no finish reason, ever": Quirk(never_finishes, requests=1, billed=False),
    "silence within an answer": Quirk(after(falls_silent, GOOD), requests=2, billed=False),
    "an error within a stream": Quirk(after(error_in_stream, GOOD), requests=2, billed=False),
    "half a JSON in a stream": Quirk(after(garbage_in_stream, GOOD), requests=2, billed=False),
    "no choices": Quirk(after(no_choices, GOOD), requests=2, billed=False),
    "length with half a block": Quirk(half_block, requests=2),
    "cut for ever": Quirk(say("and then " * 50, finish="length"), "were cut at their cap", 15),
    "tool_calls on a cut answer": Quirk(cut_call, requests=2),
    # Answers that are odd.
    "content null, all in reasoning_content": Quirk(after(say(None, reasoning_content=TEXT), GOOD), requests=2),
    "reasoning before a call": Quirk(write(chatting.RIGHT, reasoning_content="first, a WRONG idea"), requests=1),
    "think tags with code in them": Quirk(say(f"<think>\n```python file=kernels/copy.py\n# WRONG\n```\n</think>\n{TEXT}"), requests=1),
    "reasoning is counted apart": Quirk(reasoning_counted_apart, requests=1),
    "arguments that are no JSON": Quirk(after(call_with("{files: oops"), GOOD), requests=2),
    "arguments in a string": Quirk(call_with(json.dumps(ARGUMENTS)), requests=1),
    "arguments as data": Quirk(arguments_as_data, requests=1),
    "line ends within JSON strings": Quirk(call_with(ARGUMENTS.replace("\\n", "\n")), requests=1),
    "two objects in one call": Quirk(call_with(ARGUMENTS + '{"config": {"BLOCK": 64}}'), requests=1),
    "two calls with one index": Quirk(same_index, requests=1),
    "the old function_call": Quirk(function_call, requests=2),
    "an unknown tool": Quirk(after(say(calls=[tool("bash", command="ls")]), GOOD), requests=2),
    "unknown arguments": Quirk(after(say(calls=[tool("evaluate", force=True)]), GOOD), requests=2),
    "a call written as text": Quirk(after(say('{"name": "write_candidate", "arguments": ' + ARGUMENTS + "}"), say('<tool_call>{"name": "evaluate"}</tool_call>')), requests=2),
    "a fence without a language": Quirk(say(f"```\n{chatting.RIGHT}```"), requests=1),
    "a fence of tildes": Quirk(say(f"~~~~ python\n{chatting.RIGHT}~~~~"), requests=1),
    "nested fences": Quirk(say(f'```python\n"""Use:\n\n```\ncopy\n```\n"""\n{chatting.RIGHT}```'), requests=1),
    "Windows line ends": Quirk(say(TEXT.replace("\n", "\r\n")), requests=1),
    "a path in the info string": Quirk(say(f"```kernels/copy.py\n{chatting.RIGHT}```"), requests=1),
    "a path in the first line": Quirk(say(f"```python\n# file: models/toy/kernels/copy.py\n{chatting.RIGHT}```"), requests=1),
    "a very long line": Quirk(say(f"```python\n{chatting.RIGHT}# {'x' * 300_000}\n```", completion=900), requests=1),
    "line separators in a stream": Quirk(line_separators, requests=1),
    "content in parts": Quirk(content_parts, requests=1),
    "another language": Quirk(after(say("Натурально, вот ядро: оно быстрое."), say(f"Вот:\n\n{TEXT}")), requests=2),
    "a refusal": Quirk(say(None, refusal="I can't help with that."), "the model refused: I can't help with that.", 9),
    "nothing but empty answers": Quirk(say(""), "its answer was empty", 9),
    "a file outside of the op": Quirk(after(write("x = 1\n", path="../../.github/workflows/ci.yml"), GOOD), requests=2),
    "the same candidate twice": Quirk(GOOD, requests=1),
}  # fmt: skip


@pytest.mark.parametrize("name", QUIRKS)
def test_progress_or_one_clear_message(name, checkout, tmp_path, monkeypatch, capfd):
    quirk, ear = QUIRKS[name], Ear()
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr("random.uniform", lambda low, high: 0.1)
    options = {"rounds": 1, "price": "0", "settings": with_settings(tmp_path), "voice": ear}
    with ModelServer([quirk.play]) as server:
        if quirk.ends == "accepted":
            outcome = run(checkout, server, **options)
            assert outcome.exit_code == 0, (outcome, ear.lines)
            assert fakes.git(checkout, "show", f"{outcome.branch}:models/toy/kernels/copy.py")
            if quirk.billed:
                assert (outcome.bill.prompt, outcome.bill.completion) == server.totals
        else:
            try:
                outcome = run(checkout, server, **options)
                message = f"{outcome.message} {outcome.stopped}"
                assert outcome.exit_code == 4
            except UserError as error:
                message = f"{error.what} {error.how}"
                assert error.how
            assert quirk.ends in message and "\n" not in message
        assert len(server.requests) <= quirk.requests
    assert "Traceback" not in capfd.readouterr().err
    kept = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert kept and not any(KEY.encode() in path.read_bytes() for path in kept)


def test_there_are_at_least_thirty():
    assert len(QUIRKS) >= 30


# What is there before an endpoint can answer.


def failed(checkout, tmp_path, server_url, **changes):
    class Nowhere:
        url = server_url

    with pytest.raises(UserError) as error:
        run(checkout, Nowhere, price="0", settings=with_settings(tmp_path, **changes))
    return error.value


def test_nobody_listens(checkout, tmp_path, monkeypatch):
    monkeypatch.setattr("random.uniform", lambda low, high: 0.05)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    error = failed(checkout, tmp_path, f"http://127.0.0.1:{port}/v1")
    assert "cannot be reached" in error.what and "3 times in a row" in error.what and "--resume" in error.how


def test_no_such_host(checkout, tmp_path):
    error = failed(checkout, tmp_path, "http://no-such-host.invalid/v1")
    assert error.what.startswith("there is no host of the name in http://no-such-host.invalid/v1")


def test_no_tls(checkout, tmp_path):
    with ModelServer([GOOD]) as server:
        error = failed(checkout, tmp_path, server.url.replace("http://", "https://"))
    assert error.what.startswith("no TLS connection") and "SSL_CERT_FILE" in error.how


def test_a_proxy_is_used_and_its_password_kept_nowhere(checkout, tmp_path, monkeypatch):
    with ModelServer([GOOD]) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://user:hunter2-hunter2@127.0.0.1:{proxy.port}")
        proxied = ModelServer.url.fget
        monkeypatch.setattr(ModelServer, "url", property(lambda self: "http://models.invalid/v1"))
        outcome = run(checkout, proxy, rounds=1)
        monkeypatch.setattr(ModelServer, "url", property(proxied))
    assert outcome.exit_code == 0 and proxy.paths == ["http://models.invalid/v1/chat/completions"]
    assert not any(b"hunter2" in p.read_bytes() for p in (tmp_path / "state").rglob("*") if p.is_file())


def test_the_model_is_read_from_the_list_where_none_is_named(checkout):
    with ModelServer([GOOD], models=["only-one"]) as server:
        outcome = run(checkout, server, llm=None, rounds=1)
        assert outcome.exit_code == 0 and server.requests[0]["model"] == "only-one" and "/v1/models" in server.paths
    with ModelServer([GOOD], models=["a", "b"]) as server, pytest.raises(UserError, match="lists 2: a, b"):
        run(checkout, server, llm=None, rounds=1)


def test_what_was_learned_is_kept_for_the_next_run(checkout):
    play = needs(
        "max_completion_tokens", "Unsupported parameter: 'max_completion_tokens'", param="max_completion_tokens"
    )
    with ModelServer([play]) as server:
        run(checkout, server, rounds=1)
        assert len(server.requests) == 2
        run(checkout, server, rounds=1)
        assert len(server.requests) == 3 and "max_tokens" in server.requests[2]


def test_nothing_is_decided_from_a_models_name(checkout):
    with ModelServer([GOOD]) as server:
        for name in ("o1-mini", "gpt-4", "llama"):
            run(checkout, server, rounds=1, llm=name)
    sent = [{k: v for k, v in request.items() if k not in ("model", "messages")} for request in server.requests]
    assert sent[0] == sent[1] == sent[2]
