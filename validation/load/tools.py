"""Who sends a load: `vllm bench serve` or AIPerf where they are installed and report what a record needs, else our driver.

A tool is run as its own command and its own file is read; what it did not write down is not filled in.
"""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from ..claims.repetition import repeated_ngrams
from ..errors import UserError
from ..performance.serving_grid import Load as Kind
from . import drive, prompts
from .answers import Answer, Counters, Run
from .counters import read as counted
from .servers import Load, Server


class Tool(StrEnum):
    """Who may send a load."""

    OWN = "own"
    VLLM = "vllm"
    AIPERF = "aiperf"


class Asked(NamedTuple):
    """One load: what of whom. `rate`: requests a second of an open loop, None for a closed one."""

    kind: Kind
    concurrency: int
    isl: int | None
    osl: int
    count: int
    seed: int
    rate: float | None
    load: Load
    folder: Path


class ToolFailed(Exception):
    """A tool ended without the file that it was to write, or with one of another schema."""


def why_not(tool: Tool, asked: Asked) -> str | None:
    """Why `tool` cannot send this load here; None where it can."""
    if tool is Tool.OWN:
        return None
    program = tool.value
    if shutil.which(program) is None:
        return f"{program} is not installed"
    if tool is Tool.VLLM:
        if asked.kind is Kind.AGENTIC:
            return "vllm bench serve has no sessions of several turns"
        if asked.load.prompts is not None:
            return "its prompts are its own"
    if tool is Tool.AIPERF and asked.kind is not Kind.AGENTIC:
        return "it counts its own synthetic prompts; single requests are sent by vllm bench or our driver"
    return None


def choose(tool: Tool | None, asked: Asked) -> Tool:
    """The named tool, or where none is named the first that can. Raises UserError where the named one cannot."""
    if tool is not None:
        if why := why_not(tool, asked):
            raise UserError(f"{tool} cannot send a load of {asked.kind.replace('_', ' ')}: {why}", "choose --tool auto")
        return tool
    return next(one for one in (Tool.VLLM, Tool.AIPERF, Tool.OWN) if why_not(one, asked) is None)


def send(tool: Tool, server: Server, asked: Asked) -> Run:
    """One load on one server. Raises ToolFailed where an outside tool gives no answer that can be read."""
    if tool is Tool.VLLM:
        return _vllm(server, asked)
    if tool is Tool.AIPERF:
        return _aiperf(server, asked)
    how: dict[str, Any] = {
        "temperature": asked.load.temperature, "seed": asked.seed, "timeout_s": asked.load.timeout_s,
    }
    if asked.kind is Kind.AGENTIC:
        made = prompts.sessions(asked.load, count=asked.count, seed=asked.seed, folder=asked.folder)
        return drive.replay(server, made, concurrency=asked.concurrency, **how)
    texts = prompts.prompts(
        asked.load, count=asked.count, isl=asked.isl, osl=asked.osl, seed=asked.seed, folder=asked.folder
    )
    if asked.rate is not None:
        return drive.open_(server, texts, rate=asked.rate, **how)
    return drive.closed(server, texts, concurrency=asked.concurrency, **how)


def vllm_command(server: Server, asked: Asked, out: Path) -> list[str]:
    """`vllm bench serve` for this load (options as of vLLM 0.27); prompts are its random tokens of exact length."""
    rate = "inf" if asked.rate is None else f"{asked.rate:g}"
    return [
        "vllm", "bench", "serve", "--backend", "openai", "--base-url", server.url.removesuffix("/").removesuffix("/v1"),
        "--endpoint", "/v1/completions", "--model", server.tokenizer or server.model, "--served-model-name",
        server.model, "--dataset-name", "random", "--random-input-len", str(asked.isl), "--random-output-len",
        str(asked.osl), "--num-prompts", str(asked.count), "--max-concurrency", str(asked.concurrency),
        "--request-rate", rate, "--ignore-eos", "--temperature", f"{asked.load.temperature:g}", "--seed",
        str(asked.seed % 2**31), "--save-result", "--save-detailed", "--result-dir", str(out.parent),
        "--result-filename", out.name,
    ]  # fmt: skip


def _vllm(server: Server, asked: Asked) -> Run:
    with tempfile.TemporaryDirectory(prefix="fasttrack-load-") as name:
        out = Path(name, "result.json")
        before = counted(server.url)
        _run(vllm_command(server, asked, out), asked)
        after = counted(server.url).since(before)
        return vllm_run(_json(out), asked.seed, after)


def vllm_run(data: dict[str, Any], seed: int, counters: Counters) -> Run:
    """The detailed result of `vllm bench serve` as a load. Raises ToolFailed naming a field that is not there."""
    arrays = {
        name: _list(data, name) for name in ("start_times", "ttfts", "itls", "input_lens", "output_lens", "errors")
    }
    began = min(arrays["start_times"], default=0.0)
    answers = []
    for start, first, gaps, inputs, outputs, error in zip(*arrays.values(), strict=True):
        why = error or (None if outputs and first else "no token came")
        times = {} if why else {"first": first, "gaps": tuple(gaps), "output_tokens": outputs}
        answers.append(Answer(sent=start - began, input_tokens=inputs, error=why and str(why)[:300], **times))
    own = {
        "drafts": data.get("spec_decode_num_drafts"), "accepted": data.get("spec_decode_accepted_tokens"),
    }  # what it counted around its own requests, without its first trial request
    found = counters.model_copy(update={name: value for name, value in own.items() if value is not None})
    texts = [one for one in data.get("generated_texts") or () if isinstance(one, str)]
    return Run(
        tool="vllm bench serve", seed=seed, answers=tuple(answers), seconds=data["duration"], counters=found,
        repeated_ngrams=repeated_ngrams(texts),
    )  # fmt: skip


def aiperf_command(server: Server, asked: Asked, sessions: Path, out: Path) -> list[str]:
    """`aiperf profile` that replays sessions."""
    return [
        "aiperf", "profile", "--model", server.model, "--url", server.url.removesuffix("/").removesuffix("/v1"),
        "--endpoint-type", "chat", "--streaming", "--use-server-token-count", "--tokenizer",
        server.tokenizer or server.model, "--custom-dataset-type", "multi_turn", "--input-file", str(sessions),
        "--concurrency", str(asked.concurrency), "--conversation-num", str(asked.count), "--random-seed",
        str(asked.seed % 2**31), "--extra-inputs", "ignore_eos:true", "--extra-inputs",
        f"temperature:{asked.load.temperature:g}", "--artifact-dir", str(out), "--export-level", "records",
        "--export-outputs-json", "--ui", "none",
    ]  # fmt: skip


def aiperf_sessions(made: Sequence[prompts.Session]) -> str:
    """Sessions as AIPerf's `multi_turn` input: a line for each; pauses in milliseconds."""
    return "".join(
        json.dumps({
            "session_id": f"s{number}",
            "turns": [
                {"text": turn.text, "output_length": turn.output_tokens}
                | ({"delay": turn.pause_s * 1e3} if turn.pause_s else {})
                for turn in session.turns
            ],
        }) + "\n"
        for number, session in enumerate(made)
    )  # fmt: skip


def _aiperf(server: Server, asked: Asked) -> Run:
    made = prompts.sessions(asked.load, count=asked.count, seed=asked.seed, folder=asked.folder)
    with tempfile.TemporaryDirectory(prefix="fasttrack-load-") as name:
        listed, out = Path(name, "sessions.jsonl"), Path(name, "out")
        listed.write_text(aiperf_sessions(made), "utf-8")
        before = counted(server.url)
        _run(aiperf_command(server, asked, listed, out), asked)
        after = counted(server.url).since(before)
        found = next(iter(sorted(out.rglob("profile_export.jsonl"))), None)
        if found is None:
            raise ToolFailed("aiperf wrote no profile_export.jsonl")
        texts = next(iter(out.rglob("outputs.json")), None)
        told = [] if texts is None else [one.get("response_text") for one in _json(texts).get("data", ())]
        run = aiperf_run(found.read_text("utf-8"), asked.seed, after)
        return run.model_copy(update={"repeated_ngrams": repeated_ngrams(one for one in told if one)})


def aiperf_run(text: str, seed: int, counters: Counters) -> Run:
    """AIPerf's records of single requests (`profile_export.jsonl`) as a load. Raises ToolFailed naming what is missing."""
    lines = [json.loads(line) for line in text.splitlines() if line.strip()]
    lines = [one for one in lines if one["metadata"].get("benchmark_phase", "profiling") == "profiling"]
    if not lines:
        raise ToolFailed("profile_export.jsonl holds no request")
    began = min(one["metadata"]["request_start_ns"] for one in lines)
    ended = max(one["metadata"]["request_end_ns"] for one in lines)
    answers = []
    for one in lines:
        sent, error = (one["metadata"]["request_start_ns"] - began) / 1e9, one.get("error")
        if error is not None:
            answers.append(Answer(sent=sent, error=str(error.get("message") or error)[:300]))
            continue
        metrics = one["metrics"]
        for name in ("time_to_first_token", "output_sequence_length", "input_sequence_length"):
            if name not in metrics:
                raise ToolFailed(f"profile_export.jsonl: metrics.{name} is missing: it is of another schema")
        gaps = metrics.get("inter_chunk_latency", {"value": [], "unit": "ms"})
        answers.append(Answer(
            sent=sent, first=_seconds(metrics["time_to_first_token"]), gaps=tuple(_seconds(gaps)),
            input_tokens=int(metrics["input_sequence_length"]["value"]),
            output_tokens=int(metrics["output_sequence_length"]["value"]),
        ))  # fmt: skip
    return Run(
        tool="aiperf profile", seed=seed, answers=tuple(answers), seconds=(ended - began) / 1e9, counters=counters
    )


def _seconds(metric: dict[str, Any]) -> Any:
    scale = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}.get(metric["unit"])
    if scale is None:
        raise ToolFailed(f"profile_export.jsonl: unit {metric['unit']!r} is not known")
    value = metric["value"]
    return [one * scale for one in value] if isinstance(value, list) else value * scale


def _run(command: Sequence[str], asked: Asked, call: Callable[..., Any] = subprocess.run) -> None:
    try:
        done = call(command, capture_output=True, text=True, timeout=asked.load.timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise ToolFailed(f"{' '.join(command[:3])} took more than {asked.load.timeout_s:g} s") from error
    if done.returncode:
        lines = [line.strip(" │") for line in f"{done.stdout or ''}\n{done.stderr or ''}".splitlines()]
        # Where a tool frames its messages, the reason is a line among many.
        said = [line for line in lines if re.match(r"Reason:|\w*Error\b", line)] or [line for line in lines if line]
        told = said[-1][:300] if said else "silently"
        raise ToolFailed(f"{' '.join(command[:2])} ended with {done.returncode}: {told}")


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ToolFailed(f"no result that can be read: {error}") from error
    if not isinstance(found, dict):
        raise ToolFailed("its result is no object")
    return found


def _list(data: dict[str, Any], name: str) -> list[Any]:
    value = data.get(name)
    if not isinstance(value, list):
        raise ToolFailed(f"its result has no {name}: run a version that writes it with --save-detailed")
    return value
