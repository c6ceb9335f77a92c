"""What one load on one server gave, whichever tool sent it: when each request's tokens came. All times in seconds."""

from typing import Annotated

from pydantic import Field, model_validator

from ..records import Frozen

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


class Answer(Frozen):
    """One request. One that failed has an `error` and counts in no figure but that of failures."""

    sent: Seconds = Field(description="since the load began")
    first: Seconds | None = Field(None, description="from sending to the first token: TTFT")
    gaps: tuple[Seconds, ...] = Field((), description="between pieces of the stream, which hold one or more tokens each")
    input_tokens: Count | None = None
    cached_tokens: Count | None = Field(None, description="of the prompt, as the server counts them")
    output_tokens: Count | None = None
    error: str | None = None

    @model_validator(mode="after")
    def _whole(self) -> "Answer":
        if self.error is None and (self.first is None or not self.output_tokens):
            raise ValueError("an answer without tokens is an error, and says which")
        return self

    @property
    def latency(self) -> float:
        """From sending to the last token."""
        return (self.first or 0.0) + sum(self.gaps)


class Counters(Frozen):
    """What the server itself counted over the load (vLLM's /metrics); None where it does not say."""

    drafts: Count | None = Field(None, description="verify steps: each of them yields one token besides those accepted")
    accepted: Count | None = Field(None, description="draft tokens that were accepted")
    cache_queries: Count | None = Field(None, description="prompt tokens that the prefix cache was asked for")
    cache_hits: Count | None = None


class Run(Frozen):
    """One load from its first request to its last token."""

    tool: str = Field(min_length=1, description="who sent it, with its version")
    seed: int
    answers: tuple[Answer, ...] = Field(min_length=1)
    seconds: float = Field(gt=0, allow_inf_nan=False, description="from the first request to the last token")
    repeated_ngrams: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="share of an output's 8-grams seen before in it; the texts themselves are not kept"
    )
    counters: Counters = Counters()

    @property
    def whole(self) -> tuple[Answer, ...]:
        """The answers that did not fail."""
        return tuple(one for one in self.answers if one.error is None)
