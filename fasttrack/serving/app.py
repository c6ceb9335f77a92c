"""The routes: what is asked, read, computed and given."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from fasttrack_validation.generation.engine import Engine
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from .answers import Words
from .build import Build
from .errors import ApiError, misfit
from .openai_api import Form
from .requests import ChatRequest, CompletionRequest, DetokenizeRequest, GenerateRequest, TokenizeRequest, parsed
from .running import whole
from .sglang_api import Generation
from .translate import Limits, Translator

LARGEST_BODY = 64 * 2**20


class Server:
    """The handlers around one engine."""

    def __init__(self, engine: Engine, build: Build) -> None:
        small, card = engine.small, build.path
        self.engine, self.build, self.started = engine, build, int(time.time())
        self.words = Words(small.SYMBOLS, small.MARKS)
        self.translator = Translator(
            small, Limits(build.model, card.context, card.vocabulary, build.prompt_scores)
        )

    async def completions(self, request: Request) -> Response:
        body = parsed(CompletionRequest, await _json(request))
        return await self._openai(request, body, self.translator.completion(body))

    async def chat(self, request: Request) -> Response:
        body = parsed(ChatRequest, await _json(request))
        return await self._openai(request, body, self.translator.chat(body))

    async def _openai(self, request: Request, body: Any, asked: list) -> Response:
        form = Form(body, asked, self.words, self.build)
        if body.stream:
            return await _streaming(form.stream(self.engine))
        return JSONResponse(form.answer(await whole(self.engine, asked, request)))

    async def generate(self, request: Request) -> Response:
        body = parsed(GenerateRequest, await _json(request))
        asked = self.translator.generate(body)
        form = Generation(body, asked, self.words, self.build)
        if body.stream:
            return await _streaming(form.stream(self.engine))
        (answer,) = await whole(self.engine, [asked], request)
        return JSONResponse(form.answer(answer))

    async def tokenize(self, request: Request) -> Response:
        body = parsed(TokenizeRequest, await _json(request))
        self.translator.named(body.model)
        marks = [self.engine.small.BOS] if body.add_special_tokens else []
        tokens = [*marks, *self.translator.encode(body.prompt, "prompt")]
        names = [self.words.token(token) for token in tokens] if body.return_token_strs else None
        found = {"count": len(tokens), "max_model_len": self.build.path.context, "tokens": tokens, "token_strs": names}
        return JSONResponse(found)

    async def detokenize(self, request: Request) -> Response:
        body = parsed(DetokenizeRequest, await _json(request))
        self.translator.named(body.model)
        if odd := [token for token in body.tokens if token >= self.build.path.vocabulary]:
            raise ApiError(f"tokens: {odd[0]} is no token", param="tokens")
        return JSONResponse({"prompt": "".join(map(self.words.token, body.tokens))})

    async def models(self, request: Request) -> Response:
        card = self.build.path
        model = {
            "id": self.build.model, "object": "model", "created": self.started, "owned_by": "fasttrack",
            "root": self.build.model, "parent": None, "max_model_len": card.context,
            "fasttrack": self.build.model_dump(mode="json"),
        }  # fmt: skip
        if (name := request.path_params.get("name")) is None:
            return JSONResponse({"object": "list", "data": [model]})
        self.translator.named(name)
        return JSONResponse(model)

    async def version(self, request: Request) -> Response:
        found = {"version": self.build.package, "build": self.build.model_dump(mode="json")}
        return JSONResponse(found | {"system_fingerprint": self.build.fingerprint})

    async def model_info(self, request: Request) -> Response:
        """SGLang's account of a model."""
        card = self.build.path
        return JSONResponse({
            "model_path": self.build.model, "tokenizer_path": self.build.model, "is_generation": True,
            "weight_version": card.revision, "dtype": card.dtype, "revision": card.revision,
            "tokenizer_digest": card.tokenizer, "version": self.build.package,
            "system_fingerprint": self.build.fingerprint,
        })  # fmt: skip

    async def counters(self, request: Request) -> Response:
        """What ran: launches of the model directory's kernels by op, since the model was loaded."""
        return JSONResponse({"kernels": self.engine.path.launches, "acceptance_forced": False})

    async def health(self, request: Request) -> Response:
        """200 while requests are worked on."""
        active, waiting = self.engine.load
        fine = self.engine.alive and self.engine.path.pid is not None
        return JSONResponse({"ok": fine, "active": active, "waiting": waiting}, 200 if fine else 503)


def app(engine: Engine, build: Build) -> Starlette:
    """The application. Answers only to loopback names: a page in a browser cannot reach it under another."""
    server = Server(engine, build)
    routes = [
        Route("/v1/completions", server.completions, methods=["POST"]),
        Route("/v1/chat/completions", server.chat, methods=["POST"]),
        Route("/v1/models", server.models),
        Route("/v1/models/{name:path}", server.models),
        Route("/generate", server.generate, methods=["POST"]),
        Route("/tokenize", server.tokenize, methods=["POST"]),
        Route("/detokenize", server.detokenize, methods=["POST"]),
        Route("/version", server.version),
        Route("/get_model_info", server.model_info),
        Route("/health", server.health),
        Route("/v1/fasttrack/counters", server.counters),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])],
        exception_handlers={ApiError: _refused, ValidationError: _misfit, HTTPException: _unknown, Exception: _defect},
    )


async def _json(request: Request) -> Any:
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > LARGEST_BODY:
            raise ApiError(f"the body is larger than {LARGEST_BODY} bytes", status=413)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ApiError(f"the body is no JSON: {error}") from error


async def _streaming(events: AsyncIterator[str]) -> Response:
    """Answers once there is a first event, so that what fails before it has its own status."""
    first = await anext(events)

    async def all_of_them() -> AsyncIterator[str]:
        async with aclosing(events):
            yield first
            async for event in events:
                yield event

    return StreamingResponse(all_of_them(), media_type="text/event-stream")


async def _refused(request: Request, error: ApiError) -> Response:
    headers = {"Retry-After": "1"} if error.status == 429 else None
    return JSONResponse(error.body, error.status, headers=headers)


async def _misfit(request: Request, error: ValidationError) -> Response:
    return await _refused(request, misfit(error))


async def _unknown(request: Request, error: HTTPException) -> Response:
    what = f"{request.method} {request.url.path}: {error.detail}"
    return await _refused(request, ApiError(what, status=error.status_code))


async def _defect(request: Request, error: Exception) -> Response:
    return await _refused(request, ApiError("a defect of the server; its log says more", status=500))
