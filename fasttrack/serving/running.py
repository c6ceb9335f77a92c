"""From requests to events: jobs of the engine seen from asyncio, ended when nobody reads any more."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from fasttrack_validation.generation.asked import Asked, Done, Event, Failed
from fasttrack_validation.generation.engine import Busy, Engine
from starlette.requests import Request

from .answers import Answer
from .errors import ApiError

_ASK_EVERY = 0.5
"""Seconds between looks at whether the client is still there"""


@asynccontextmanager
async def events(engine: Engine, asked: Sequence[Asked]) -> AsyncIterator[AsyncIterator[tuple[int, Event]]]:
    """(which, event) as they come, until every answer is over. Leaving the context cancels what is not. Raises
    ApiError 429 where too many wait."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue()
    jobs = []

    def emit(which: int, event: Event) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody reads
            loop.call_soon_threadsafe(queue.put_nowait, (which, event))

    async def each() -> AsyncIterator[tuple[int, Event]]:
        left = len(asked)
        while left:
            which, event = await queue.get()
            left -= isinstance(event, Done | Failed)
            yield which, event

    try:
        jobs = engine.submit(asked, emit)
        yield each()
    except Busy as busy:
        raise ApiError(f"{busy}; ask again later", status=429, code="rate_limit_exceeded") from busy
    finally:
        for job in jobs:
            job.cancel()


async def whole(engine: Engine, asked: Sequence[Asked], request: Request) -> list[Answer]:
    """The whole answers. Work stops when the client hangs up."""

    async def collect() -> list[Answer]:
        answers = [Answer(one) for one in asked]
        async with events(engine, asked) as coming:
            async for which, event in coming:
                answers[which].add(event)
        return answers

    work = asyncio.ensure_future(collect())
    try:
        while not (await asyncio.wait({work}, timeout=_ASK_EVERY))[0]:
            if await request.is_disconnected():
                raise ApiError("the client hung up", status=499)
        return work.result()
    finally:
        work.cancel()
