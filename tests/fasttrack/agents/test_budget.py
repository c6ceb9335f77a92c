"""Prices, settings, the ledger of requests, and what is learned of an endpoint."""

import pytest

from fasttrack.agents import ledger
from fasttrack.agents.answer import Answer, Usage
from fasttrack.agents.capabilities import Capabilities, Memory, learn
from fasttrack.agents.settings import ChatOptions, Price, PriceTable, configured, parse_price, resolve
from fasttrack_validation.errors import UserError


def test_prices_by_hand():
    price = parse_price("2,8,0.5")
    # 1000 new tokens in at 2, 500 from the cache at 0.5, 250 out at 8, a million each.
    assert price.usd(1500, 250, 500) == pytest.approx((1000 * 2 + 500 * 0.5 + 250 * 8) / 1e6)
    assert parse_price("0") == Price(input=0, output=0) and parse_price("1,2").cached_input is None


@pytest.mark.parametrize("text", ["", "1", "-1,2", "nan,1", "inf,1", "1,2,3,4", "free", "1;2"])
def test_what_is_no_price_is_refused(text):
    with pytest.raises(UserError, match="is no price"):
        parse_price(text)


def test_a_row_with_the_model_goes_before_one_for_all():
    table = PriceTable.model_validate({"price": [
        {"endpoint": "https://a/v1/", "input": 1, "output": 1}, {"endpoint": "https://a/v1", "model": "m", "input": 2, "output": 2},
    ]})  # fmt: skip
    assert table.of("https://a/v1", "m").input == 2 and table.of("https://a/v1", None).input == 1
    assert table.of("https://b/v1", "m") is None


def test_options_before_the_file_before_the_environment(tmp_path):
    file = tmp_path / "s.toml"
    file.write_text("usd = 2.0\ntokens = 1000\ntemperature = 0.3\n")
    environment = {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1/", "FASTTRACK_MODEL": "env"}
    found = resolve(ChatOptions(llm="said", price="0", usd=1.0, settings=file), environment)
    assert (found.base_url, found.model, found.usd, found.tokens, found.temperature) == (
        "http://127.0.0.1:9/v1",
        "said",
        1.0,
        1000,
        0.3,
    )
    file.write_text("budget = 3\n")
    with pytest.raises(UserError, match="budget"):
        resolve(ChatOptions(price="0", settings=file), environment)


def test_auto_is_chat_only_where_model_and_endpoint_are_named():
    assert configured(ChatOptions(), {"FASTTRACK_MODEL": "m", "OPENAI_BASE_URL": "u"})
    assert configured(ChatOptions(llm="m"), {"OPENAI_API_KEY": "k"})
    assert not configured(ChatOptions(), {"FASTTRACK_MODEL": "m"}) and not configured(ChatOptions(endpoint="u"), {})


def test_a_claim_without_its_close_is_booked_at_its_cap_once(tmp_path):
    price, cap = Price(input=1, output=2), Usage(prompt=100, completion=50)
    first = ledger.Requests(tmp_path, price)
    number = first.claim((0, 0, 0), [{"role": "user", "content": "x"}], cap)
    assert ledger.bill(ledger.read(tmp_path)).tokens == 150  # while it is under way as well
    first.close()
    second = ledger.Requests(tmp_path, price)
    assert second.recovered == 1 and second.answer_at((0, 0, 0)) is None
    again = second.claim((0, 0, 0), [{"role": "user", "content": "x"}], cap)
    assert again == number + 1
    second.answered(again, Answer(text="y", usage=Usage(prompt=90, completion=10, cached=40)), 1.0)
    second.close()
    third = ledger.Requests(tmp_path, price)
    bill = third.bill
    assert third.recovered == 0 and third.answer_at((0, 0, 0)).text == "y"
    assert (bill.cut, bill.answered, bill.prompt, bill.completion, bill.cached) == (1, 1, 190, 60, 40)
    assert bill.usd == pytest.approx((190 + 2 * 60) / 1e6)
    third.close()


def test_a_damaged_ledger_is_named(tmp_path):
    (tmp_path / ledger.FILE).write_text('{"event": "answered"}\n')
    with pytest.raises(UserError, match="requests.jsonl:1 is not a record"):
        ledger.Requests(tmp_path, Price(input=0, output=0))


SENT = {
    "model": "m",
    "messages": [],
    "max_completion_tokens": 100,
    "stream": True,
    "stream_options": {},
    "tools": [],
    "seed": 1,
}


@pytest.mark.parametrize(
    ("message", "parameter", "expected"),
    [
        ("Unsupported parameter: 'max_completion_tokens'. Use 'max_tokens'.", None, {"cap_name": "max_tokens"}),
        ("bad", "seed", {"refused": ("seed",)}),
        ("stream_options not allowed", None, {"refused": ("stream_options",)}),
        ("This model does not support tool calling", None, {"refused": ("tools",)}),
        ("at most 64 tokens for max_completion_tokens", None, {"output_limit": 64}),
        ("", None, {"refused": ("stream_options",)}),
        ("unknown field: temperature", None, {"refused": ("stream_options",)}),  # it was not sent
    ],
)
def test_one_thing_is_learned_from_a_refusal(message, parameter, expected):
    found = learn(Capabilities(), SENT, message, parameter)
    assert {name: getattr(found, name) for name in expected} == expected


def test_refusals_without_a_reason_end_when_nothing_is_left():
    known, steps = Capabilities(), 0
    sent = dict(SENT)
    while known is not None:
        sent = {
            k: v for k, v in sent.items() if k not in known.refused and (not k.startswith("max_") or known.cap_name)
        }
        known, steps = learn(known, sent, "", None), steps + 1
        assert steps < 12
    # stream_options, seed, the cap in two names, tools, stream; then nothing is left.
    assert steps == 7


def test_what_is_known_is_kept_by_address_and_model(tmp_path):
    known = Capabilities(refused=("seed",))
    Memory(tmp_path, "http://a", "m").write(known)
    assert Memory(tmp_path, "http://a", "m").read() == known
    assert Memory(tmp_path, "http://a", "n").read() == Memory(tmp_path, "http://b", "m").read() == Capabilities()
    for path in tmp_path.iterdir():
        path.write_text("{}x")
    assert Memory(tmp_path, "http://a", "m").read() == Capabilities()
