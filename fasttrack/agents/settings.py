"""What a chat run is set to: endpoint, model, price, caps. Kept in the run's request; no secret is part of it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, ValidationError

from fasttrack_validation.errors import UserError
from fasttrack_validation.records import Frozen

from .. import strict_toml
from .secrets import KEY, KEY_FILE

BASE_URL, MODEL, PRICES = "OPENAI_BASE_URL", "FASTTRACK_MODEL", "FASTTRACK_PRICES"
DEFAULT_URL = "https://api.openai.com/v1"
PRICE_HELP = (
    "say it: --price IN,OUT in USD per million tokens, --price 0 for a model that costs nothing, "
    f"or a table of prices (--prices FILE, or ${PRICES})"
)


class Price(Frozen):
    """USD per million tokens. What costs nothing says 0."""

    input: float = Field(ge=0, allow_inf_nan=False)
    output: float = Field(ge=0, allow_inf_nan=False)
    cached_input: float | None = Field(default=None, ge=0, description="of prompt tokens served from a cache")

    def usd(self, prompt: int, completion: int, cached: int = 0) -> float:
        """The price of a request; `cached` of its `prompt` tokens came from a cache."""
        cheap = self.input if self.cached_input is None else self.cached_input
        return ((prompt - cached) * self.input + cached * cheap + completion * self.output) / 1e6


class PriceRow(Price):
    """The price of a model at an endpoint; without a model, of every model there."""

    endpoint: str
    model: str | None = None


class PriceTable(Frozen):
    """`[[price]]` entries of a TOML file."""

    price: tuple[PriceRow, ...] = ()

    def of(self, endpoint: str, model: str | None) -> Price | None:
        """The first price for this model there, else the first for every model there."""
        there = [row for row in self.price if row.endpoint.rstrip("/") == endpoint]
        row = next((r for r in there if model and r.model == model), None) or next(
            (r for r in there if not r.model), None
        )
        return row and Price(input=row.input, output=row.output, cached_input=row.cached_input)


class ChatSettings(Frozen):
    """Everything that a chat run depends on beside the key."""

    base_url: str
    model: str | None = Field(description="None: the only one that the endpoint lists")
    price: Price
    usd: float = Field(default=5.0, gt=0, description="money cap of the run")
    tokens: int = Field(default=4_000_000, gt=0, description="cap on tokens in and out of the run")
    wall_minutes: float = Field(default=480.0, gt=0, description="cap on requests and judging together, all sittings")
    output_tokens: int = Field(default=16_384, ge=64, description="cap of one answer")
    prompt_tokens: int = Field(default=32_768, ge=1024, description="cap of one prompt, estimated at 3 bytes a token")
    temperature: float | None = None
    seed: int | None = None
    reasoning_effort: str | None = None
    connect_seconds: float = 20.0
    read_seconds: float = Field(default=180.0, description="longest silence within an answer")
    request_seconds: float = Field(default=1800.0, description="longest answer")
    retries: int = Field(default=6, ge=0, description="of a request that the endpoint did not take")
    longest_wait: float = Field(default=600.0, description="seconds; an endpoint that asks for more ends the sitting")
    requests_a_round: int = Field(default=16, ge=1)


@dataclass(frozen=True)
class ChatOptions:
    """What a person says on the command line; None: not said."""

    endpoint: str | None = None
    llm: str | None = None
    price: str | None = None
    prices: Path | None = None
    settings: Path | None = None
    usd: float | None = None
    tokens: int | None = None
    wall_minutes: float | None = None


class _File(Frozen):
    """A file of settings: any of ChatSettings but endpoint, model and price."""

    usd: float | None = None
    tokens: int | None = None
    wall_minutes: float | None = None
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    reasoning_effort: str | None = None
    connect_seconds: float | None = None
    read_seconds: float | None = None
    request_seconds: float | None = None
    retries: int | None = None
    longest_wait: float | None = None
    requests_a_round: int | None = None


def configured(options: ChatOptions, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether somebody has named a model and an endpoint (a key alone stands for the default one)."""
    named = options.llm or environment.get(MODEL)
    place = options.endpoint or environment.get(BASE_URL) or environment.get(KEY) or environment.get(KEY_FILE)
    return bool(named and place)


def resolve(options: ChatOptions, environment: Mapping[str, str] = os.environ) -> ChatSettings:
    """The settings of a run: options before the file before the environment.

    Raises UserError, also for want of a price.
    """
    url = base_url(options.endpoint or environment.get(BASE_URL) or DEFAULT_URL)
    model = options.llm or environment.get(MODEL) or None
    file = strict_toml.parse(_read(options.settings), _File, options.settings) if options.settings else _File()
    said = {"usd": options.usd, "tokens": options.tokens, "wall_minutes": options.wall_minutes}
    values = {**file.model_dump(), **{name: value for name, value in said.items() if value is not None}}
    price = parse_price(options.price) if options.price is not None else None
    table = options.prices or (Path(environment[PRICES]) if environment.get(PRICES) else None)
    if price is None and table is not None:
        price = strict_toml.parse(_read(table), PriceTable, table).of(url, model)
    if price is None:
        raise UserError(f"the price of {model or 'the model'} at {url} is not known", PRICE_HELP)
    try:
        return ChatSettings(
            base_url=url,
            model=model,
            price=price,
            **{name: value for name, value in values.items() if value is not None},
        )
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise UserError(
            f"{'.'.join(map(str, first['loc']))}: {first['msg']}", "correct the option or the file"
        ) from error


def base_url(text: str) -> str:
    """An endpoint's URL without a slash at its end. Raises UserError for one that is none, or that carries a secret."""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        parts, usable = None, False
    if not usable:
        raise UserError(
            "the endpoint is no http or https URL", "give one like https://host/v1, or http://127.0.0.1:8080/v1"
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UserError(
            "the endpoint's URL carries more than an address",
            f"leave out user, password and query; the key comes from ${KEY} or the file that ${KEY_FILE} names",
        )
    return text.rstrip("/")


def parse_price(text: str) -> Price:
    """`IN,OUT` or `IN,OUT,CACHED` in USD per million tokens, or `0`. Raises UserError."""
    try:
        values = [float(part) for part in text.split(",")]
        if values == [0.0]:
            return Price(input=0, output=0)
        if len(values) in (2, 3):
            return Price(input=values[0], output=values[1], cached_input=values[2] if len(values) == 3 else None)
    except (ValueError, ValidationError):
        pass
    raise UserError(f"--price {text!r} is no price", PRICE_HELP)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}", "give a TOML file") from error
