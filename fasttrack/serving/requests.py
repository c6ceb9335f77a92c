"""The bodies of requests, strict: a parameter that would be ignored is an error.

Names are OpenAI's; `top_k`, `min_p`, `stop_token_ids`, `ignore_eos`, `include_stop_str_in_output`, `prompt_logprobs`,
`add_special_tokens`, `return_tokens_as_token_ids` and `return_token_ids` are vLLM's. `prompt_logprobs_by` is this
server's own.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

MOST_CHOICES = 128
TokenId = Annotated[int, Field(ge=0)]
Stop = Annotated[str, Field(min_length=1)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class StreamOptions(_Body):
    """What a stream carries beside text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False

    @field_validator("continuous_usage_stats")
    @classmethod
    def _not_here(cls, value: bool) -> bool:
        if value:
            raise ValueError("usage comes once, at the end of a stream")
        return value


class _Generation(_Body):
    """What completions and chat have in common. null is the default, as clients send it."""

    model: str | None = None
    temperature: float | None = Field(default=None, ge=0, le=100)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, description="-1 and 0: all")
    min_p: float | None = Field(default=None, ge=0, le=1)
    n: int | None = Field(default=None, ge=1, le=MOST_CHOICES)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Stop | list[Stop] | None = None
    stop_token_ids: list[TokenId] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    user: str | None = Field(default=None, description="noted nowhere")
    prompt_logprobs: int | None = Field(default=None, ge=0)
    prompt_logprobs_by: Literal["prefill", "decode"] | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None


class CompletionRequest(_Generation):
    """POST /v1/completions."""

    prompt: str | list[str] | list[TokenId] | list[list[TokenId]]
    max_tokens: int | None = Field(default=16, ge=0)
    echo: bool | None = None
    logprobs: int | None = Field(default=None, ge=0)
    add_special_tokens: bool = True
    best_of: int | None = None
    suffix: str | None = None

    @field_validator("best_of")
    @classmethod
    def _no_search(cls, value: int | None) -> int | None:
        if value not in (None, 1):
            raise ValueError("every choice is given as it was generated: use n")
        return value

    @field_validator("suffix")
    @classmethod
    def _no_insertion(cls, value: str | None) -> str | None:
        if value:
            raise ValueError("this model goes on with texts, it fills no gaps")
        return value


class Part(_Body):
    """One part of a message."""

    type: Literal["text"]
    text: str


class Message(_Body):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Part] | None = None
    name: str | None = None

    @property
    def text(self) -> str:
        """Its parts, joined."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content or ())


class ChatRequest(_Generation):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0)


class SglangSampling(_Body):
    """`sampling_params` of SGLang's /generate."""

    max_new_tokens: int = Field(default=128, ge=0)
    temperature: float = Field(default=1.0, ge=0, le=100)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=-1, ge=-1)
    min_p: float = Field(default=0.0, ge=0, le=1)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    stop: Stop | list[Stop] | None = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool = False
    no_stop_trim: bool = False
    n: Literal[1] = 1
    sampling_seed: int | None = None


class GenerateRequest(_Body):
    """POST /generate, one text at a time."""

    text: str | None = None
    input_ids: list[TokenId] | None = None
    sampling_params: SglangSampling = SglangSampling()
    return_logprob: bool = False
    logprob_start_len: int = Field(default=-1, ge=-1, description="-1: generated tokens only")
    top_logprobs_num: int = Field(default=0, ge=0)
    return_text_in_logprobs: bool = False
    stream: bool = False
    rid: str | None = None
    prompt_logprobs_by: Literal["prefill", "decode"] | None = None


class TokenizeRequest(_Body):
    """POST /tokenize."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool = True
    return_token_strs: bool | None = None


class DetokenizeRequest(_Body):
    """POST /detokenize."""

    tokens: list[TokenId]
    model: str | None = None


def parsed(kind: type[_Body], body: Any) -> Any:
    """`body` as a request of this kind. Raises ValidationError."""
    return kind.model_validate(body)
