"""One server: requests that are repeated until a whole answer came, or until there is no point in it."""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import UserError
from .forms import Form, Refused, Scored, Unreadable, read, request
from .identity import Identity, ask

_AGAIN = frozenset({408, 409, 425, 429})
_LONGEST_WAIT = 30.0


class Server:
    """An address (with or without /v1 at its end). Thread-safe."""

    def __init__(
        self, name: str, url: str, declared: dict[str, str] | None = None, *, attempts: int = 8, silence: float = 600.0,
        pause: float = 0.5, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        """`attempts` for each answer, `silence` in seconds without a byte, `pause` before the first repetition, doubled
        with each. UserError where the package is missing or the address is none."""
        try:
            import httpx
        except ImportError:
            raise UserError("the package httpx is not installed", "pip install 'fasttrack[servers]'") from None
        if not url.startswith(("http://", "https://")):
            raise UserError(f"{url} is not an address", "give it as http://host:8000/v1")
        self.name, self.root = name, url.rstrip("/").removesuffix("/v1")
        self._httpx, self._attempts, self._pause, self._sleep = httpx, attempts, pause, sleep
        self._client = httpx.Client(timeout=httpx.Timeout(silence, connect=10.0))
        self._declared = declared or {}
        self.repeated = 0
        self.texts: dict[int, set[str]] = {}
        """Of every token that an answer named"""

    def close(self) -> None:
        """Closes connections."""
        self._client.close()

    def identity(self) -> tuple[Identity, Form]:
        """See `identity.ask`."""
        try:
            return ask(lambda path: self._try("GET", path, missing=True), self._declared)
        except UserError as error:
            raise UserError(f"{self.name} server {self.root}: {error.what}", error.how) from error

    def scores(self, form: Form, who: Identity, tokens: Sequence[int], start: int, top: int) -> list[Scored]:
        """The scores of tokens[start:]. Raises UserError where it cannot be had, Refused where it cannot be used."""
        path, body = request(form, who.served or who.model or "", tokens, start, top)

        def whole(answer: Any) -> list[Scored]:
            self._same(form, who, answer)
            return read(form, answer, tokens, start, top, self.texts)

        try:
            return self._try("POST", path, body, whole)
        except Refused as refused:
            raise Refused(refused.reason, f"{self.name} server: {refused.what}") from refused

    def _same(self, form: Form, who: Identity, answer: Any) -> None:
        """Whether the answer is of the server that was asked at the beginning."""
        if form is not Form.VLLM or not isinstance(answer, dict):
            return
        if answer.get("model") not in (None, who.served):
            raise Unreadable(f"the answer is of model {answer['model']!r}, {who.served!r} was asked")
        mark = answer.get("system_fingerprint")
        if mark is not None and who.build is not None and who.build.startswith("fp_") and mark != who.build:
            raise Refused("changed", f"build {mark} answered, it was {who.build} at the beginning")

    def _try(
        self, method: str, path: str, body: Any = None, whole: Callable[[Any], Any] = lambda answer: answer, *,
        missing: bool = False,
    ) -> Any:  # fmt: skip
        problem = ""
        for attempt in range(self._attempts):
            if attempt:
                self.repeated += 1
            wait = min(self._pause * 2**attempt, _LONGEST_WAIT)
            try:
                answer = self._client.request(method, self.root + path, json=body)
            except self._httpx.HTTPError as error:
                problem = f"{type(error).__name__}: {error}"
            else:
                if missing and answer.status_code in (404, 405, 501):
                    return None
                if answer.status_code == 200:
                    try:
                        return whole(json.loads(answer.content))
                    except (ValueError, RecursionError):
                        kind = answer.headers.get("content-type", "no type")
                        problem = f"an answer of {len(answer.content)} bytes ({kind}) that is no JSON"
                    except Unreadable as error:
                        problem = str(error)
                elif answer.status_code in _AGAIN or answer.status_code >= 500:
                    problem = f"status {answer.status_code}"
                    wait = _retry_after(answer.headers.get("retry-after"), wait)
                else:
                    raise UserError(
                        f"{self.name} server {self.root}{path} refuses the request ({answer.status_code}): "
                        f"{answer.text[:200]}",
                        "correct the prompts, --top or the server; what is known is kept",
                    )
            if attempt + 1 < self._attempts:
                self._sleep(wait)
        raise UserError(
            f"{self.name} server {self.root}{path} gave no whole answer in {self._attempts} attempts: {problem}",
            "see to the server, then run the same command again: what is known is kept",
        )


def _retry_after(text: str | None, wait: float) -> float:
    try:
        return min(max(float(text or ""), 0.0), 10 * _LONGEST_WAIT)
    except ValueError:
        return wait
