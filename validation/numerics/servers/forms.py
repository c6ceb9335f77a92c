"""What is sent to a server for the scores of a prompt, and how its answer is read: vLLM's form and SGLang's. Pure."""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from ...records import Frozen


class Form(StrEnum):
    """Whose interface a server speaks."""

    VLLM = "vllm"
    """POST /v1/completions with `prompt_logprobs`"""
    SGLANG = "sglang"
    """POST /generate with `return_logprob`, `logprob_start_len` and `top_logprobs_num`"""


class Refused(Exception):
    """The servers, or their answers, cannot be compared: `reason` is an id, the text says what was found."""

    def __init__(self, reason: str, what: str) -> None:
        super().__init__(what)
        self.reason, self.what = reason, what


class Unreadable(Exception):
    """No whole answer: worth another request."""


class Scored(Frozen):
    """One token of a prompt, given all before it."""

    token: int
    log_prob: float
    top: tuple[tuple[int, float], ...]
    """(token id, log-probability), likeliest first, as many as were asked for"""


def request(form: Form, model: str, tokens: Sequence[int], start: int, top: int) -> tuple[str, dict[str, Any]]:
    """(path, body) that asks for the scores of `tokens` from place `start` (1 or more) on."""
    if form is Form.VLLM:
        # vLLM generates one token at least, and scores prompts from their beginning.
        return "/v1/completions", {
            "model": model, "prompt": list(tokens), "max_tokens": 1, "temperature": 0, "prompt_logprobs": top,
        }  # fmt: skip
    # SGLang gives no score for the very token at logprob_start_len.
    return "/generate", {
        "input_ids": list(tokens), "sampling_params": {"max_new_tokens": 1, "temperature": 0}, "return_logprob": True,
        "logprob_start_len": start - 1, "top_logprobs_num": top, "return_text_in_logprobs": True,
    }  # fmt: skip


def read(
    form: Form, body: Any, tokens: Sequence[int], start: int, top: int, texts: dict[int, set[str]]
) -> list[Scored]:
    """The scores of tokens[start:]; `texts` gets the texts of every token that the answer names.

    Raises Unreadable for what is no answer, and Refused for an answer that lacks scores, gives fewer candidates than
    were asked for, or scores other tokens.
    """
    rows = (_vllm if form is Form.VLLM else _sglang)(body, len(tokens), start, top)
    if len(rows) != len(tokens) - start:
        raise Refused("missing", f"{len(rows)} scores came for {len(tokens) - start} tokens of the prompt")
    found = []
    for place, (token, row) in enumerate(zip(tokens[start:], rows, strict=True), start):
        own, candidates = row(token)
        found.append(_checked(token, place, own, candidates, top, texts))
    return found


def _checked(
    token: int, place: int, own: Any, candidates: Sequence[tuple[int, Any, str | None]], top: int,
    texts: dict[int, set[str]],
) -> Scored:  # fmt: skip
    where = f"position {place}"
    for one, value, text in candidates:
        # Bytes that are no character alone have another text in every context.
        if isinstance(text, str) and "\ufffd" not in text:
            texts.setdefault(one, set()).add(text)
    numbers = [own, *(value for _, value, _ in candidates)]
    for value in numbers:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value > 1e-4:
            raise Refused("missing", f"{where}: {value!r} is no log-probability")
    best = sorted(((one, float(value)) for one, value, _ in candidates), key=lambda pair: (-pair[1], pair[0]))
    if len({one for one, _ in best}) != len(best):
        raise Refused("truncated", f"{where}: one token is twice among the candidates")
    if len(best) < top:
        raise Refused("truncated", f"{where}: {len(best)} candidates came, {top} were asked for")
    return Scored(token=token, log_prob=float(own), top=tuple(best[:top]))


def _vllm(body: Any, count: int, start: int, top: int) -> list:
    try:
        (choice,) = body["choices"]
    except (TypeError, KeyError, ValueError) as error:
        raise Unreadable(f"no answer of a completions server: {str(body)[:120]}") from error
    given = choice.get("prompt_logprobs", body.get("prompt_logprobs"))
    if not isinstance(given, list):
        raise Refused("missing", "the answer has no prompt_logprobs")
    if len(given) != count:
        raise Refused("missing", f"prompt_logprobs has {len(given)} entries for {count} tokens")

    def row(entry: Any):
        def of(token: int) -> tuple[Any, list]:
            if not isinstance(entry, Mapping) or str(token) not in entry:
                raise Refused("missing", f"prompt_logprobs has no score of token {token}, which is in the prompt")
            try:
                # The prompt's own token comes in addition where it is not among the likeliest: it makes up for none.
                each = [
                    (int(name), one["logprob"], one.get("decoded_token"))
                    for name, one in entry.items()
                    if name != str(token) or (one.get("rank") or 0) <= top
                ]
            except (TypeError, KeyError, ValueError, AttributeError) as error:
                raise Unreadable(f"prompt_logprobs cannot be read: {str(entry)[:120]}") from error
            own = entry[str(token)]["logprob"]
            return own, each

        return of

    return [row(entry) for entry in given[start:]]


def _sglang(body: Any, count: int, start: int, top: int) -> list:
    try:
        meta = body["meta_info"]
    except (TypeError, KeyError) as error:
        raise Unreadable(f"no answer of /generate: {str(body)[:120]}") from error
    own, best = meta.get("input_token_logprobs"), meta.get("input_top_logprobs")
    if not own or not best:
        raise Refused("missing", "the answer has no input_token_logprobs and input_top_logprobs")
    if len(own) != count - start + 1 or len(best) != len(own):
        raise Refused("missing", f"input_token_logprobs has {len(own)} entries for {count - start + 1} tokens")

    def row(entry: Any, candidates: Any):
        def of(token: int) -> tuple[Any, list]:
            try:
                value, named, _ = entry
                each = [(int(one), log_prob, text) for log_prob, one, text in candidates or ()]
            except (TypeError, ValueError) as error:
                raise Unreadable(f"input_token_logprobs cannot be read: {str(entry)[:120]}") from error
            if named != token:
                raise Refused("missing", f"the score of token {named} came for token {token}")
            return value, each

        return of

    return [row(*pair) for pair in zip(own[1:], best[1:], strict=True)]
