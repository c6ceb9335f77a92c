"""OpenAI's completions and chat: bodies of answers, whole or in server-sent events."""

import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence

from fasttrack_validation.generation.asked import Asked, Prompt, Token
from fasttrack_validation.generation.engine import Engine

from .answers import Answer, Words, chat_logprobs, completion_logprobs, usage, vllm_prompt
from .build import Build
from .errors import ApiError
from .requests import ChatRequest, CompletionRequest
from .running import events

Request = CompletionRequest | ChatRequest


class Form:
    """How one request is answered."""

    def __init__(self, body: Request, asked: Sequence[Asked], words: Words, build: Build) -> None:
        self.body, self.asked, self.words = body, asked, words
        self.is_chat = isinstance(body, ChatRequest)
        self.as_ids = bool(body.return_tokens_as_token_ids)
        self.echo = not self.is_chat and bool(body.echo)
        self._head = {
            "id": ("chatcmpl-" if self.is_chat else "cmpl-") + secrets.token_hex(12),
            "object": "chat.completion" if self.is_chat else "text_completion",
            "created": int(time.time()),
            "model": build.model,
            "system_fingerprint": build.fingerprint,
        }

    def answer(self, answers: Sequence[Answer]) -> dict:
        """The body of a whole answer."""
        choices = [self._choice(*one) for one in enumerate(answers)]
        body = self._head | {"choices": choices, "usage": self._usage(answers)}
        if self.is_chat:
            body |= self._prompt_fields(answers[0], prompt_logprobs=True)
        return body

    async def stream(self, engine: Engine) -> AsyncIterator[str]:
        """The same in events. An error is raised before the first event, and an event itself after it."""
        answers = [Answer(one) for one in self.asked]
        started: set[int] = set()
        try:
            async with events(engine, self.asked) as coming:
                async for which, event in coming:
                    answer = answers[which]
                    text = answer.add(event)
                    if isinstance(event, Prompt):
                        continue
                    first = which not in started
                    started.add(which)
                    scores = [event.score] if isinstance(event, Token) else []
                    yield _data(self._chunk(which, answer, scores, text, first))
            if self.body.stream_options and self.body.stream_options.include_usage:
                yield _data(self._streamed | {"choices": [], "usage": self._usage(answers)})
        except ApiError as error:
            if not started:  # a status can still say it
                raise
            yield _data(error.body)
        yield "data: [DONE]\n\n"

    @property
    def _streamed(self) -> dict:
        return self._head | ({"object": "chat.completion.chunk"} if self.is_chat else {})

    def _usage(self, answers: Sequence[Answer]) -> dict[str, int]:
        return usage(answers, sum(len(one.prompt) for one in self.asked[:: self.body.n or 1]))

    def _choice(self, index: int, answer: Answer) -> dict:
        choice = {
            "index": index,
            "finish_reason": answer.done.reason,
            "stop_reason": answer.done.matched if answer.done.reason == "stop" else None,
        }
        if self.is_chat:
            return choice | {
                "message": {"role": "assistant", "content": answer.text, "refusal": None},
                "logprobs": self._chat_logprobs(answer.tokens),
            } | self._ids(answer.generated)  # fmt: skip
        prompt = answer.asked.prompt
        return choice | {
            "text": (self.words.text(prompt) if self.echo else "") + answer.text,
            "logprobs": self._completion_logprobs(answer, answer.tokens, first=True, offset=0),
        } | self._prompt_fields(answer, prompt_logprobs=True) | self._ids(answer.generated)  # fmt: skip

    def _chunk(self, which: int, answer: Answer, scores: list, text: str, first: bool) -> dict:
        done = answer.done
        choice: dict = {"index": which, "finish_reason": done.reason if done else None}
        if done:
            choice["stop_reason"] = done.matched if done.reason == "stop" else None
        more: dict = {}
        if self.is_chat:
            choice["delta"] = ({"role": "assistant"} if first else {}) | {"content": text}
            choice["logprobs"] = self._chat_logprobs(scores) if scores else None
            more = self._prompt_fields(answer, prompt_logprobs=first) if first else {}
        else:
            before = len(answer.text) - len(text)
            echoed = self.words.text(answer.asked.prompt) if self.echo else ""
            choice["text"] = (echoed if first else "") + text
            offset = 0 if first else len(echoed) + before
            choice["logprobs"] = self._completion_logprobs(answer, scores, first=first, offset=offset)
            if first:
                choice |= self._prompt_fields(answer, prompt_logprobs=True)
        choice |= self._ids([score.token for score in scores])
        return self._streamed | more | {"choices": [choice]}

    def _completion_logprobs(self, answer: Answer, scores: Sequence, *, first: bool, offset: int) -> dict | None:
        if self.body.logprobs is None:
            return None
        echoed = answer.prompt if first and self.echo else []
        return completion_logprobs(
            self.words, [*echoed, *scores], answer.asked.prompt, self.body.logprobs, offset, as_ids=self.as_ids
        )

    def _chat_logprobs(self, scores: Sequence) -> dict | None:
        if not self.body.logprobs:
            return None
        return chat_logprobs(self.words, scores, self.body.top_logprobs or 0, as_ids=self.as_ids)

    def _prompt_fields(self, answer: Answer, *, prompt_logprobs: bool) -> dict:
        """vLLM's fields about the prompt; those of an answer to a chat stand beside the choices."""
        found: dict = {}
        if prompt_logprobs and self.body.prompt_logprobs is not None:
            found["prompt_logprobs"] = vllm_prompt(self.words, answer)
        if self.body.return_token_ids:
            found["prompt_token_ids"] = list(answer.asked.prompt)
        return found

    def _ids(self, tokens: list[int]) -> dict:
        return {"token_ids": tokens} if self.body.return_token_ids else {}


def _data(value: dict) -> str:
    return f"data: {json.dumps(value, separators=(',', ':'))}\n\n"
