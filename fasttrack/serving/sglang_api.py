"""SGLang's /generate: one text, its log-probabilities in `meta_info`; a stream gives the whole so far each time."""

import json
import secrets
from collections.abc import AsyncIterator

from fasttrack_validation.generation.asked import Asked, Prompt
from fasttrack_validation.generation.engine import Engine

from .answers import Answer, Words, sglang
from .build import Build
from .errors import ApiError
from .requests import GenerateRequest
from .running import events


class Generation:
    """How one request is answered."""

    def __init__(self, body: GenerateRequest, asked: Asked, words: Words, build: Build) -> None:
        self.body, self.asked, self.words = body, asked, words
        self._fields = {"id": body.rid or secrets.token_hex(16), "weight_version": build.path.revision}

    def answer(self, answer: Answer) -> dict:
        """The body of the answer so far."""
        return sglang(
            self.words, answer, self._fields, logprobs=self.body.return_logprob, top=self.body.top_logprobs_num,
            text=self.body.return_text_in_logprobs,
        )  # fmt: skip

    async def stream(self, engine: Engine) -> AsyncIterator[str]:
        """The same in events. An error is raised before the first event, and an event itself after it."""
        answer, started = Answer(self.asked), False
        try:
            async with events(engine, [self.asked]) as coming:
                async for _, event in coming:
                    answer.add(event)
                    if not isinstance(event, Prompt):
                        started = True
                        yield f"data: {json.dumps(self.answer(answer))}\n\n"
        except ApiError as error:
            if not started:
                raise
            yield f"data: {json.dumps(error.body)}\n\n"
        yield "data: [DONE]\n\n"
