"""Our own driver: thin, for loads that no installed tool sends or reports as records need them.

Closed loop: `concurrency` requests are in flight until all are sent. Open loop: requests are sent at times drawn from a
Poisson process, whatever is still in flight. Sessions: their turns wait for each other, sessions do not.
"""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from ..claims.repetition import repeated_ngrams
from ..errors import UserError
from .answers import Run
from .counters import read as counted
from .prompts import Prompt, Session
from .servers import Server
from .stream import Told, ask

if TYPE_CHECKING:
    from httpx import AsyncClient

TOOL = "fasttrack load/1"
Ask = Callable[["AsyncClient", float], Coroutine[Any, Any, list[Told]]]


def closed(
    server: Server, prompts: Sequence[Prompt], *, concurrency: int, temperature: float, seed: int, timeout_s: float
) -> Run:  # fmt: skip
    """All prompts with `concurrency` of them in flight."""
    return _run(server, [_one(server, p, temperature, seed + n) for n, p in enumerate(prompts)], seed, timeout_s,
                concurrency=concurrency)  # fmt: skip


def open_(
    server: Server, prompts: Sequence[Prompt], *, rate: float, temperature: float, seed: int, timeout_s: float
) -> Run:  # fmt: skip
    """All prompts at `rate` a second on average, exponential gaps drawn from `seed`."""
    source, at, starts = random.Random(f"{seed} arrivals"), 0.0, []
    for _ in prompts:
        starts.append(at)
        at += source.expovariate(rate)
    return _run(server, [_one(server, p, temperature, seed + n) for n, p in enumerate(prompts)], seed, timeout_s,
                starts=starts)  # fmt: skip


def replay(
    server: Server, sessions: Sequence[Session], *, concurrency: int, temperature: float, seed: int, timeout_s: float
) -> Run:  # fmt: skip
    """All sessions with `concurrency` of them in flight; each request holds the answers before it."""
    return _run(server, [_session(server, s, temperature, seed + n) for n, s in enumerate(sessions)], seed, timeout_s,
                concurrency=concurrency)  # fmt: skip


def _one(server: Server, prompt: Prompt, temperature: float, seed: int) -> Ask:
    body = {"model": server.model, "prompt": prompt.body, "max_tokens": prompt.output_tokens, "ignore_eos": True,
            "temperature": temperature, "seed": seed}  # fmt: skip

    async def asked(client: "AsyncClient", began: float) -> list[Told]:
        return [await ask(client, f"{server.url.rstrip('/')}/completions", body, began)]

    return asked


def _session(server: Server, session: Session, temperature: float, seed: int) -> Ask:
    async def asked(client: "AsyncClient", began: float) -> list[Told]:
        said: list[dict[str, str]] = []
        told: list[Told] = []
        for number, turn in enumerate(session.turns):
            if number and turn.pause_s:
                await asyncio.sleep(turn.pause_s)
            said.append({"role": "user", "content": turn.text})
            body = {"model": server.model, "messages": said, "max_tokens": turn.output_tokens, "ignore_eos": True,
                    "temperature": temperature, "seed": seed}  # fmt: skip
            told.append(await ask(client, f"{server.url.rstrip('/')}/chat/completions", body, began))
            if told[-1].answer.error is not None:
                break
            said.append({"role": "assistant", "content": told[-1].text})
        return told

    return asked


def _run(
    server: Server, asks: Sequence[Ask], seed: int, timeout_s: float, *, concurrency: int | None = None,
    starts: Sequence[float] | None = None,
) -> Run:  # fmt: skip
    try:
        import httpx
    except ImportError as error:
        raise UserError("loading a server needs httpx, which is not installed", "pip install 'fasttrack[servers]'") from error

    async def loaded() -> tuple[list[Told], float]:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        places = asyncio.Semaphore(concurrency or len(asks))
        timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, 60.0))
        # No proxy and no credentials of the environment: what is measured is this machine and that server.
        async with httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False) as client:
            began = time.perf_counter()

            async def one(number: int) -> list[Told]:
                if starts is not None:
                    await asyncio.sleep(max(0.0, began + starts[number] - time.perf_counter()))
                async with places:
                    return await asks[number](client, began)

            told = await asyncio.gather(*(one(number) for number in range(len(asks))))
            return [each for many in told for each in many], time.perf_counter() - began

    before = counted(server.url)
    told, seconds = asyncio.run(loaded())
    answers = tuple(one.answer for one in told)
    return Run(
        tool=TOOL, seed=seed, answers=answers, seconds=seconds, counters=counted(server.url).since(before),
        repeated_ngrams=repeated_ngrams(one.text for one in told if one.answer.error is None),
    )  # fmt: skip
