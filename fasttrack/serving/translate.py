"""From the bodies of requests to what the engine is asked. Everything that can be refused is refused here."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from fasttrack_validation.errors import UserError
from fasttrack_validation.generation.asked import Asked, Sampling, ScoredBy
from fasttrack_validation.generation.small import SmallModel

from .errors import ApiError
from .requests import ChatRequest, CompletionRequest, GenerateRequest


@dataclass(frozen=True)
class Limits:
    """What this server can take."""

    model: str
    context: int
    vocabulary: int
    scored_by: ScoredBy
    """What computes the scores of prompts where a request does not say it"""


class Translator:
    """Reads requests for one small model."""

    def __init__(self, small: SmallModel, limits: Limits) -> None:
        self.small, self.limits = small, limits

    def completion(self, body: CompletionRequest) -> list[Asked]:
        """One for each choice: n of the first prompt, then n of the next. Choice i of a prompt has seed + i."""
        self.named(body.model)
        self._stream_options(body)
        prompts = self._prompts(body)
        scored = body.prompt_logprobs
        if body.echo and body.logprobs is not None:
            scored = max(scored or 0, body.logprobs)
        return [
            self._asked(body, prompt, body.max_tokens, choice, top=body.logprobs, prompt_top=scored)
            for prompt in prompts
            for choice in range(body.n or 1)
        ]

    def chat(self, body: ChatRequest) -> list[Asked]:
        """One for each choice."""
        self.named(body.model)
        self._stream_options(body)
        if body.top_logprobs is not None and not body.logprobs:
            raise ApiError("top_logprobs: it needs logprobs", param="top_logprobs")
        text = self.small.chat([(message.role, message.text) for message in body.messages])
        prompt = [self.small.BOS, *self.encode(text, "messages")]
        most = body.max_completion_tokens or body.max_tokens
        if most is None:
            most = max(1, self.limits.context - len(prompt))
        top = (body.top_logprobs or 0) if body.logprobs else None
        return [
            self._asked(body, prompt, most, choice, top=top, prompt_top=body.prompt_logprobs)
            for choice in range(body.n or 1)
        ]

    def generate(self, body: GenerateRequest) -> Asked:
        """SGLang's form."""
        if (body.text is None) == (body.input_ids is None):
            raise ApiError("give either text or input_ids", param="text")
        prompt = body.input_ids
        if prompt is None:
            prompt = [self.small.BOS, *self.encode(body.text, "text")]
        start = body.logprob_start_len
        scored = body.return_logprob and start >= 0
        if scored and start >= len(prompt):
            raise ApiError(
                f"logprob_start_len: {start}, in a prompt of {len(prompt)} tokens", param="logprob_start_len"
            )
        how = body.sampling_params
        sampling = Sampling(
            how.temperature, how.top_p, max(0, how.top_k), how.min_p, how.presence_penalty, how.frequency_penalty,
            seed=_seed(how.sampling_seed),
        )  # fmt: skip
        return self._checked(
            Asked(
                tuple(prompt), how.max_new_tokens, sampling, stop=_strings(how.stop),
                stop_tokens=tuple(how.stop_token_ids or ()), ignore_eos=how.ignore_eos, keep_stop=how.no_stop_trim,
                top=self._most(body.top_logprobs_num, "top_logprobs_num") if body.return_logprob else 0,
                prompt_top=body.top_logprobs_num if scored else None, prompt_from=max(start, 0),
                scored_by=body.prompt_logprobs_by or self.limits.scored_by,
            )
        )  # fmt: skip

    def named(self, model: str | None) -> None:
        """Raises ApiError unless `model` is the one that is served, or none is named."""
        if model not in (None, self.limits.model):
            raise ApiError(
                f"The model `{model}` does not exist; this server has `{self.limits.model}`",
                status=404, param="model", code="model_not_found",
            )  # fmt: skip

    def encode(self, text: str, param: str) -> list[int]:
        """Token ids without marks. Raises ApiError for what the tokenizer has no symbol for."""
        try:
            return self.small.encode(text)
        except UserError as error:
            raise ApiError(f"{param}: {error.what}; {error.how}", param=param) from error

    def _prompts(self, body: CompletionRequest) -> list[list[int]]:
        given = body.prompt
        if isinstance(given, str):
            given = [given]
        elif given and isinstance(given[0], int):
            given = [given]
        if not given:
            raise ApiError("prompt: it is empty", param="prompt")
        marks = [self.small.BOS] if body.add_special_tokens else []
        return [[*marks, *self.encode(one, "prompt")] if isinstance(one, str) else list(one) for one in given]

    def _asked(
        self, body: CompletionRequest | ChatRequest, prompt: Sequence[int], most: int | None, choice: int, *,
        top: int | None, prompt_top: int | None,
    ) -> Asked:  # fmt: skip
        bias = tuple((self._token(name), value) for name, value in (body.logit_bias or {}).items())
        sampling = Sampling(
            temperature=1.0 if body.temperature is None else body.temperature,
            top_p=1.0 if body.top_p is None else body.top_p, top_k=max(0, body.top_k or 0), min_p=body.min_p or 0.0,
            presence_penalty=body.presence_penalty or 0.0, frequency_penalty=body.frequency_penalty or 0.0,
            bias=bias, seed=_seed(body.seed) + choice,
        )  # fmt: skip
        return self._checked(
            Asked(
                tuple(prompt), 16 if most is None else most, sampling, stop=_strings(body.stop),
                stop_tokens=tuple(body.stop_token_ids or ()), ignore_eos=body.ignore_eos,
                keep_stop=body.include_stop_str_in_output, top=self._most(top or 0, "logprobs"),
                prompt_top=None if prompt_top is None else self._most(prompt_top, "prompt_logprobs"),
                scored_by=body.prompt_logprobs_by or self.limits.scored_by,
            )
        )  # fmt: skip

    def _checked(self, asked: Asked) -> Asked:
        limits, size = self.limits, len(asked.prompt)
        if not asked.prompt:
            raise ApiError("prompt: it has no tokens", param="prompt")
        if odd := [token for token in asked.prompt if token >= limits.vocabulary]:
            raise ApiError(f"prompt: {odd[0]} is no token; ids go from 0 to {limits.vocabulary - 1}", param="prompt")
        if size + asked.max_tokens > limits.context:
            raise ApiError(
                f"This model's maximum context length is {limits.context} tokens. However, you requested "
                f"{size + asked.max_tokens} tokens ({size} in the prompt, {asked.max_tokens} to be generated).",
                param="max_tokens" if size <= limits.context else "prompt", code="context_length_exceeded",
            )  # fmt: skip
        return asked

    def _most(self, count: int, param: str) -> int:
        if count > self.limits.vocabulary:
            raise ApiError(f"{param}: {count} candidates; there are {self.limits.vocabulary} tokens", param=param)
        return count

    def _token(self, name: str) -> int:
        token = int(name) if name.isascii() and name.isdigit() else -1
        if not 0 <= token < self.limits.vocabulary:
            raise ApiError(f"logit_bias: {name!r} is no token id", param="logit_bias")
        return token

    def _stream_options(self, body: CompletionRequest | ChatRequest) -> None:
        if body.stream_options is not None and not body.stream:
            raise ApiError("stream_options: it needs stream", param="stream_options")


def _strings(stop: str | list[str] | None) -> tuple[str, ...]:
    """All of them: a client that sends more than four means it."""
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def _seed(given: int | None) -> int:
    return secrets.randbits(63) if given is None else given
