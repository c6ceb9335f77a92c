"""One answer as it grows, and the forms in which its parts are given: OpenAI's, vLLM's and SGLang's."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fasttrack_validation.generation.asked import Asked, Done, Event, Failed, Prompt, Score, Token

from .errors import ApiError


class Words:
    """Texts of token ids."""

    def __init__(self, symbols: Sequence[str], marks: int) -> None:
        self.symbols, self.marks = symbols, marks

    def token(self, token: int, *, as_id: bool = False) -> str:
        """The symbol of a token; marks by their names."""
        return f"token_id:{token}" if as_id else self.symbols[token]

    def text(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without marks."""
        return "".join(self.symbols[token] for token in tokens if token >= self.marks)


@dataclass
class Answer:
    """What has come of one `Asked` so far."""

    asked: Asked
    prompt: list[Score | None] = field(default_factory=list)
    tokens: list[Score] = field(default_factory=list)
    text: str = ""
    done: Done | None = None

    def add(self, event: Event) -> str:
        """Takes an event in; the text that it adds. Raises ApiError where the path failed."""
        match event:
            case Prompt(scores=scores):
                self.prompt += scores
                return ""
            case Token(score=score, text=text):
                self.tokens.append(score)
            case Done(text=text):
                self.done = event
            case Failed(what=what):
                raise ApiError(what, status=500)
        self.text += text
        return text

    @property
    def generated(self) -> list[int]:
        """Ids of the generated tokens, the one that ended the text included."""
        return [score.token for score in self.tokens]


def usage(answers: Sequence[Answer], prompts: int) -> dict[str, int]:
    """Counts of tokens; `prompts` are those of the prompts, each counted once."""
    generated = sum(len(answer.tokens) for answer in answers)
    return {"prompt_tokens": prompts, "completion_tokens": generated, "total_tokens": prompts + generated}


def vllm_prompt(words: Words, answer: Answer) -> list[dict[str, dict[str, Any]] | None]:
    """vLLM's `prompt_logprobs`: of each token None or {id: score}, its own and those of the likeliest."""
    return [None if score is None else _ranked(words, score) for score in answer.prompt]


def _ranked(words: Words, score: Score) -> dict[str, dict[str, Any]]:
    found = {score.token: (score.log_prob, score.rank)}
    for place, (token, log_prob) in enumerate(score.top, 1):
        found.setdefault(token, (log_prob, place))
    return {
        str(token): {"logprob": log_prob, "rank": rank, "decoded_token": words.token(token)}
        for token, (log_prob, rank) in found.items()
    }


def completion_logprobs(
    words: Words, scores: Sequence[Score | None], prompt: Sequence[int], top: int, offset: int, *, as_ids: bool
) -> dict[str, list]:
    """`logprobs` of a completion: parallel lists. `scores` of the prompt's tokens come first; their None has a token
    in `prompt`. The token itself is among its candidates, as OpenAI has it."""
    found: dict[str, list] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for place, score in enumerate(scores):
        token = prompt[place] if score is None else score.token
        found["tokens"].append(words.token(token, as_id=as_ids))
        found["token_logprobs"].append(None if score is None else score.log_prob)
        candidates = None if score is None else dict(score.top[:top]) | {score.token: score.log_prob}
        named = candidates and {words.token(one, as_id=as_ids): value for one, value in candidates.items()}
        found["top_logprobs"].append(named if top else None if score is None else {})
        found["text_offset"].append(offset)
        offset += len(words.text([token]))
    return found


def chat_logprobs(words: Words, scores: Sequence[Score], top: int, *, as_ids: bool) -> dict[str, list]:
    """`logprobs` of a chat's choice."""

    def entry(token: int, log_prob: float) -> dict[str, Any]:
        return {
            "token": words.token(token, as_id=as_ids), "logprob": log_prob, "bytes": list(words.token(token).encode()),
        }  # fmt: skip

    return {
        "content": [
            entry(score.token, score.log_prob) | {"top_logprobs": [entry(*one) for one in score.top[:top]]}
            for score in scores
        ],
        "refusal": None,
    }


def sglang(
    words: Words, answer: Answer, fields: dict[str, Any], *, logprobs: bool, top: int, text: bool
) -> dict[str, Any]:
    """SGLang's answer. Of the prompt's scores the first has no value: it is that of the token at logprob_start_len."""
    asked, done = answer.asked, answer.done
    reason = None
    if done is not None:
        reason = {"type": done.reason}
        if done.reason == "length":
            reason["length"] = len(answer.tokens)
        else:
            reason["matched"] = done.matched
    meta = {
        "finish_reason": reason, "prompt_tokens": len(asked.prompt), "completion_tokens": len(answer.tokens),
        "cached_tokens": 0, **fields,
    }  # fmt: skip
    if logprobs:

        def entry(token: int, log_prob: float | None) -> list:
            return [log_prob, token, words.token(token) if text else None]

        def best(score: Score) -> list:
            return [entry(*one) for one in score.top[:top]]

        scored = answer.prompt[1:]
        if asked.prompt_top is not None:
            first = entry(asked.prompt[asked.prompt_from], None)
            meta["input_token_logprobs"] = [first, *(entry(score.token, score.log_prob) for score in scored)]
            meta["input_top_logprobs"] = [None, *map(best, scored)] if top else []
        else:
            meta["input_token_logprobs"] = meta["input_top_logprobs"] = []
        meta["output_token_logprobs"] = [entry(score.token, score.log_prob) for score in answer.tokens]
        meta["output_top_logprobs"] = list(map(best, answer.tokens)) if top else []
    return {"text": answer.text, "output_ids": answer.generated, "meta_info": meta}
