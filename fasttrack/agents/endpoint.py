"""One request to an OpenAI-compatible endpoint: what is sent, and what every way of failing means."""

import json
import ssl
import time
from collections.abc import Iterator, Sequence
from enum import StrEnum

from fasttrack_validation.errors import UserError

from .answer import Answer, Assembly
from .capabilities import Capabilities, too_long
from .secrets import KEY, KEY_FILE, Scrubber
from .settings import ChatSettings

_SHOWN = 300


class Kind(StrEnum):
    """What a failed request means."""

    BUSY = "busy"
    """Not taken; it may be asked again later, and costs nothing."""
    CUT = "cut"
    """Taken, and the answer did not come whole: it has been paid for."""
    PARAMETER = "parameter"
    """Refused for what was sent beside the messages."""
    TOO_LONG = "too long"
    """Refused for the length of the prompt."""
    FATAL = "fatal"
    """No use in asking again."""


class Failure(Exception):
    """A request without a whole answer. `partial` is what came of it."""

    def __init__(
        self, kind: Kind, message: str, *, how: str = "", wait: float | None = None, parameter: str | None = None,
        partial: Answer | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.kind, self.message, self.how, self.wait = kind, message, how, wait
        self.parameter, self.partial = parameter, partial


class Endpoint:
    """Speaks to one endpoint. Retries nothing, learns nothing, keeps nothing."""

    def __init__(self, settings: ChatSettings, key: str | None, scrub: Scrubber) -> None:
        """Raises UserError where the `openai` package is missing or a proxy's address is no URL."""
        try:
            import httpx
            import openai
        except ImportError:
            raise UserError("the package openai is not installed", "pip install 'fasttrack[chat]'") from None
        self._settings, self._scrub = settings, scrub
        self._timeout = httpx.Timeout
        try:
            self._client = openai.OpenAI(
                base_url=settings.base_url, api_key=key or "none", max_retries=0,
                timeout=httpx.Timeout(settings.read_seconds, connect=settings.connect_seconds),
            )  # fmt: skip
        except (ValueError, TypeError, ImportError, httpx.HTTPError) as error:
            how = "correct HTTP_PROXY, HTTPS_PROXY, ALL_PROXY or NO_PROXY"
            raise UserError(f"the proxy settings cannot be used: {self._short(str(error))}", how) from None

    def close(self) -> None:
        """Closes connections."""
        self._client.close()

    def body(
        self, known: Capabilities, messages: Sequence[dict], tools: Sequence[dict], cap: int
    ) -> dict[str, object]:  # fmt: skip
        """What would be sent: messages, and those parameters that the endpoint is not known to refuse."""
        settings = self._settings
        body: dict[str, object] = {"model": known.served_model or settings.model, "messages": list(messages)}
        if known.cap_name:
            body[known.cap_name] = cap
        # A stream without a count of tokens at its end would leave the bill to estimates.
        if known.allows("stream") and known.allows("stream_options") and known.usage_in_streams:
            body["stream"] = True
            body["stream_options"] = {"include_usage": True}
        if tools:
            body |= {"tools": list(tools), "parallel_tool_calls": False}
        for name in ("temperature", "seed", "reasoning_effort"):
            body[name] = getattr(settings, name)
        return {name: value for name, value in body.items() if value is not None and known.allows(name)}

    def models(self) -> list[str]:
        """The ids that the endpoint lists. Raises Failure."""
        return self._guarded(lambda: [self._scrub(str(model.id)) for model in self._client.models.list()])

    def send(self, body: dict[str, object], cap: int) -> Answer:
        """The answer, without secrets in it. Raises Failure."""
        return self._guarded(lambda: self._send(body, cap))

    def _send(self, body: dict[str, object], cap: int) -> Answer:
        started = time.monotonic()
        # A whole answer is silent until it is through.
        silence = self._settings.read_seconds if body.get("stream") else self._settings.request_seconds
        limits = self._timeout(silence, connect=self._settings.connect_seconds)
        raw = self._client.chat.completions.with_raw_response.create(**body, timeout=limits)
        response, assembly = raw.http_response, Assembly()
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "text/event-stream":
            done = False
            try:
                for data in _events(response.iter_bytes()):
                    if done := data.startswith("[DONE]"):
                        break
                    part = json.loads(data)
                    if isinstance(part, dict) and part.get("error"):
                        raise ValueError(self._refusal(200, part, None).message)
                    assembly.add(part)
                    if time.monotonic() - started > self._settings.request_seconds:
                        raise TimeoutError(f"no end after {self._settings.request_seconds:g} seconds")
            except Exception as error:  # whatever ends a stream early, what was generated has been paid for
                partial = self._clean(assembly.answer(cap))
                raise Failure(Kind.CUT, self._short(f"the answer broke off: {_root(error)}"), partial=partial) from None
            finally:
                response.close()
            answer = self._clean(assembly.answer(cap))
            # A connection that is cut looks like the end of a body; a server that is through says so in one of three ways.
            if not done and answer.finish is None and answer.usage is None:
                raise Failure(
                    Kind.CUT, "the answer ended without a finish reason, a count of tokens or [DONE]", partial=answer
                )
            return answer
        text = response.text if response.is_closed else response.read().decode("utf-8", "replace")
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            data = None
        if not isinstance(data, dict):
            what = (
                "a web page"
                if "<html" in text[:2000].lower() or kind == "text/html"
                else f"{kind or 'nothing'} that is no JSON"
            )
            raise Failure(
                Kind.FATAL, f"{self._settings.base_url} answered with {what}: {self._short(text)}",
                how="check the address (it mostly ends in /v1), the proxy variables and whether a login page is in between",
            )  # fmt: skip
        if data.get("error"):
            raise self._refusal(200, data, None)
        assembly.add(data)
        if not assembly.parts:
            raise Failure(
                Kind.CUT, f"the answer has no choices: {self._short(text)}", partial=self._clean(assembly.answer(cap))
            )
        return self._clean(assembly.answer(cap))

    def _guarded(self, work):
        import httpx
        import openai

        host = self._settings.base_url
        try:
            return work()
        except Failure:
            raise
        except openai.APITimeoutError as error:
            if isinstance(error.__cause__, httpx.ConnectTimeout | httpx.PoolTimeout):
                raise Failure(
                    Kind.BUSY, f"{host} could not be reached in {self._settings.connect_seconds:g} s"
                ) from None
            silence = f"{host} was silent for {self._settings.read_seconds:g} seconds"
            raise Failure(Kind.CUT, silence) from None
        except openai.APIStatusError as error:
            raise self._refusal(error.status_code, error.body, error.response.headers) from None
        except openai.APIConnectionError as error:
            raise self._connection(error) from None
        except openai.APIError as error:
            raise Failure(Kind.CUT, self._short(f"{host} answered with what cannot be read: {error}")) from None
        except (ValueError, TypeError, AttributeError, httpx.HTTPError) as error:
            raise Failure(Kind.CUT, self._short(f"{host} answered with what cannot be read: {_root(error)}")) from None

    def _connection(self, error: Exception) -> Failure:
        import httpx

        host, cause = self._settings.base_url, _root(error)
        chain = list(_chain(error))
        if (
            any(isinstance(one, ssl.SSLError) for one in chain)
            or "CERTIFICATE_VERIFY" in str(cause)
            or "SSL" in str(cause)
        ):
            how = "check the address and the clock; for a private authority set SSL_CERT_FILE to its certificate"
            return Failure(Kind.FATAL, self._short(f"no TLS connection to {host}: {cause}"), how=how)
        text = " ".join(map(str, chain))
        if any(
            mark in text
            for mark in (
                "Name or service not known",
                "name resolution",
                "nodename nor servname",
                "No address associated",
            )
        ):
            return Failure(
                Kind.FATAL, f"there is no host of the name in {host}", how="check the address, or the proxy variables"
            )
        # A connection that broke once the request was out may have been answered at the other end.
        sent = any(isinstance(one, httpx.ReadError | httpx.RemoteProtocolError | httpx.WriteError) for one in chain)
        kind = Kind.CUT if sent else Kind.BUSY
        return Failure(
            kind, self._short(f"{host} cannot be reached: {cause}" if not sent else f"{host} broke off: {cause}")
        )

    def _refusal(self, status: int, body: object, headers) -> Failure:
        """What an error with a status and perhaps a body means."""
        error = body.get("error", body) if isinstance(body, dict) else body
        message = error.get("message") if isinstance(error, dict) else error
        parameter = error.get("param") if isinstance(error, dict) else None
        code = str(error.get("code") or error.get("type") or "") if isinstance(error, dict) else ""
        said = self._short(message if isinstance(message, str) else json.dumps(error) if error else "")
        said = said or "it says nothing more"
        if status in (401, 403) or code in ("invalid_api_key", "authentication_error"):
            return Failure(
                Kind.FATAL, f"{self._settings.base_url} does not accept the key ({status}): {said}",
                how=f"renew the key in ${KEY} or the file that ${KEY_FILE} names, then go on with `fasttrack propose --resume`",
            )  # fmt: skip
        if status == 402 or code in ("insufficient_quota", "billing_hard_limit_reached"):
            return Failure(
                Kind.FATAL, f"the account is out of credit: {said}", how="top it up, then go on with --resume"
            )
        if status in (404, 405):
            return Failure(Kind.FATAL, f"{self._settings.base_url} knows no such model or address ({status}): {said}",
                           how="check --endpoint and --llm", parameter="model" if "model" in said.lower() else None)  # fmt: skip
        if status == 413 or (status in (200, 400, 422, 500) and too_long(f"{said} {code}")):
            return Failure(Kind.TOO_LONG, f"the prompt is too long for the model: {said}")
        if status in (400, 415, 422, 501):
            named = parameter if isinstance(parameter, str) else None
            return Failure(Kind.PARAMETER, f"the endpoint refuses the request ({status}): {said}", parameter=named)
        if status in (408, 409, 425, 429) or status >= 500 or status == 200:
            return Failure(Kind.BUSY, f"the endpoint answers {status}: {said}", wait=_wait(headers))
        return Failure(Kind.FATAL, f"the endpoint answers {status}: {said}", how="check --endpoint")

    def _clean(self, answer: Answer) -> Answer:
        """The answer as it may be kept: an endpoint can repeat a key that it was sent."""
        return Answer.model_validate(self._scrub.data(answer.model_dump()))

    def _short(self, text: str) -> str:
        flat = " ".join(self._scrub(text).split())
        return flat if len(flat) <= _SHOWN else flat[:_SHOWN] + " ..."


def _events(chunks: Iterator[bytes]) -> Iterator[str]:
    """The data of server-sent events."""
    data: list[str] = []
    for line in _lines(chunks):
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line.strip() and data:
            yield "\n".join(data)
            data = []
    if data:
        yield "\n".join(data)


def _lines(chunks: Iterator[bytes]) -> Iterator[str]:
    """Lines of a stream. Not `iter_lines`, which also splits at U+2028 and its like, and these may stand in JSON."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line.removesuffix(b"\r").decode("utf-8", "replace") for line in lines)
    yield rest.removesuffix(b"\r").decode("utf-8", "replace")


def _wait(headers) -> float | None:
    """Seconds that the endpoint asks to wait (Retry-After in seconds or as a date, or retry-after-ms)."""
    from email.utils import parsedate_to_datetime

    headers = headers or {}
    try:
        if text := headers.get("retry-after-ms"):
            return max(0.0, float(text) / 1000)
        if not (text := headers.get("retry-after")):
            return None
        try:
            return max(0.0, float(text))
        except ValueError:
            return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def _chain(error: BaseException | None):
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _root(error: BaseException) -> str:
    """The innermost cause, in words."""
    last = list(_chain(error))[-1]
    return f"{last}" or type(last).__name__
