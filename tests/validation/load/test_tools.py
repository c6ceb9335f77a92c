"""Outside tools: their commands, and their files. AIPerf's lines are of a run of version 0.13.0; vLLM's fields of 0.27."""

import json
import os
import stat
import sys
from pathlib import Path

import pytest
from load_server import LoadServer

from fasttrack_validation.errors import UserError
from fasttrack_validation.load import figures, tools
from fasttrack_validation.load.answers import Counters
from fasttrack_validation.load.servers import Load, Server
from fasttrack_validation.load.tools import Asked, Tool, ToolFailed
from fasttrack_validation.performance.serving_grid import Load as Kind

SERVER = Server(arm="stock", url="http://127.0.0.1:8000/v1", model="k3", tp=8, speculation="off", tokenizer="moonshotai/Kimi-K3")


def asked(kind=Kind.MIXED_PREFILL, **more):
    return Asked(**{"kind": kind, "concurrency": 4, "isl": 32, "osl": 8, "count": 6, "seed": 7, "rate": None,
                    "load": Load(timeout_s=60), "folder": Path("."), **more})  # fmt: skip


def vllm_file(**more):
    return {
        "start_times": [100.0, 100.5], "ttfts": [0.5, 0.25], "itls": [[0.01, 0.03], [0.02, 0.02]],
        "input_lens": [32, 32], "output_lens": [3, 3], "errors": ["", ""], "generated_texts": ["a b", "c d"],
        "duration": 1.0, **more,
    }  # fmt: skip


def test_a_detailed_result_is_a_load():
    run = tools.vllm_run(vllm_file(spec_decode_num_drafts=4, spec_decode_accepted_tokens=8), 7, Counters(cache_hits=1))
    assert [one.sent for one in run.answers] == [0.0, 0.5] and run.counters.cache_hits == 1
    found = figures.of(run, decode_only=False)
    assert found.ttft == pytest.approx(0.375) and found.tpot == pytest.approx(0.02)
    assert found.tok_s_system == pytest.approx(6) and figures.acceptance([run]) == pytest.approx(3.0)


def test_failures_and_other_schemas_of_vllm():
    failed = vllm_file(errors=["", "Service Unavailable"], ttfts=[0.5, 0.0], itls=[[0.01, 0.03], []], output_lens=[3, 0])
    run = tools.vllm_run(failed, 7, Counters())
    assert [one.error for one in run.answers] == [None, "Service Unavailable"]
    for name in ("start_times", "itls"):
        data = vllm_file()
        del data[name]
        with pytest.raises(ToolFailed, match=name):
            tools.vllm_run(data, 7, Counters())


AIPERF = {
    "metadata": {"session_num": 0, "conversation_id": "s0", "turn_index": 0, "request_start_ns": 1_000_000_000,
                 "request_end_ns": 1_500_000_000, "benchmark_phase": "profiling", "was_cancelled": False},
    "metrics": {
        "input_sequence_length": {"value": 1024, "unit": "tokens"}, "output_sequence_length": {"value": 5, "unit": "tokens"},
        "time_to_first_token": {"value": 100.0, "unit": "ms"}, "request_latency": {"value": 500.0, "unit": "ms"},
        "inter_chunk_latency": {"value": [100.0, 100.0, 100.0, 100.0], "unit": "ms"},
    },
    "error": None,
}  # fmt: skip


def test_records_of_aiperf_are_a_load():
    later = json.loads(json.dumps(AIPERF))
    later["metadata"] |= {"request_start_ns": 2_000_000_000, "request_end_ns": 3_000_000_000}
    later |= {"metrics": {"error_isl": {"value": 9, "unit": "tokens"}}, "error": {"code": 503, "message": "overloaded"}}
    warm = json.loads(json.dumps(AIPERF))
    warm["metadata"]["benchmark_phase"] = "warmup"
    text = "\n".join(map(json.dumps, (AIPERF, later, warm)))
    run = tools.aiperf_run(text, 7, Counters())
    assert len(run.answers) == 2 and run.seconds == pytest.approx(2.0)
    assert run.answers[0].first == pytest.approx(0.1) and sum(run.answers[0].gaps) == pytest.approx(0.4)
    assert run.answers[1].error == "overloaded" and run.answers[1].sent == pytest.approx(1.0)
    for broken, said in (({"unit": "parsec", "value": 1.0}, "parsec"), (None, "time_to_first_token")):
        one = json.loads(json.dumps(AIPERF))
        if broken is None:
            del one["metrics"]["time_to_first_token"]
        else:
            one["metrics"]["time_to_first_token"] = broken
        with pytest.raises(ToolFailed, match=said):
            tools.aiperf_run(json.dumps(one), 7, Counters())
    with pytest.raises(ToolFailed, match="no request"):
        tools.aiperf_run("", 7, Counters())


def program(folder, name, body):
    path = folder / name
    path.write_text(f"#!{sys.executable}\n{body}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


# What a benchmark does, in short: sends real requests one by one, and writes the file that its options name.
STAND_IN = '''
import json, sys, time, urllib.request
option = {a: b for a, b in zip(sys.argv, sys.argv[1:])}
result = {name: [] for name in ("start_times", "ttfts", "itls", "input_lens", "output_lens", "errors", "generated_texts")}
began = time.perf_counter()
for number in range(int(option["--num-prompts"])):
    body = {"model": option["--served-model-name"], "prompt": "x " * int(option["--random-input-len"]), "stream": True,
            "max_tokens": int(option["--random-output-len"]), "seed": int(option["--seed"])}
    sent, times = time.perf_counter(), []
    request = urllib.request.Request(option["--base-url"] + option["--endpoint"], json.dumps(body).encode())
    with urllib.request.urlopen(request) as response:
        for line in response:
            if line.startswith(b"data: {") and json.loads(line[6:])["choices"][:1] and b'"length"' not in line:
                times.append(time.perf_counter())
    result["start_times"].append(sent); result["ttfts"].append(times[0] - sent)
    result["itls"].append([b - a for a, b in zip(times, times[1:])])
    result["input_lens"].append(int(option["--random-input-len"])); result["output_lens"].append(len(times))
    result["errors"].append(""); result["generated_texts"].append("a b c")
result["duration"] = time.perf_counter() - began
open(option["--result-dir"] + "/" + option["--result-filename"], "w").write(json.dumps(result))
'''


def test_an_installed_tool_is_run_with_the_cells_options_and_its_file_is_read(tmp_path, monkeypatch):
    program(tmp_path, "vllm", STAND_IN)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with LoadServer() as running:
        server = SERVER.model_copy(update={"url": running.url, "model": "tiny"})
        assert tools.choose(None, asked()) is Tool.VLLM
        run = tools.send(Tool.VLLM, server, asked())
    assert run.tool == "vllm bench serve" and len(run.whole) == 6 and {one.output_tokens for one in run.answers} == {8}
    assert len(running.requests) == 6 and {body["max_tokens"] for _, body in running.requests} == {8}
    command = tools.vllm_command(SERVER, asked(rate=2.5), Path("/d/r.json"))
    assert command[command.index("--request-rate") + 1] == "2.5" and "--save-detailed" in command
    assert command[command.index("--base-url") + 1] == "http://127.0.0.1:8000"


def test_a_tool_that_fails_says_why(tmp_path, monkeypatch):
    program(tmp_path, "vllm", "import sys\nsys.exit('ValueError: no such tokenizer')")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(ToolFailed, match="ended with 1: ValueError: no such tokenizer"):
        tools.send(Tool.VLLM, SERVER, asked())
    program(tmp_path, "vllm", "")
    with pytest.raises(ToolFailed, match="no result that can be read"):
        tools.send(Tool.VLLM, SERVER, asked())
    program(tmp_path, "vllm", "import time\ntime.sleep(9)")
    with pytest.raises(ToolFailed, match="more than 0.5 s"):
        tools.send(Tool.VLLM, SERVER, asked(load=Load(timeout_s=0.5)))


def test_who_sends_what(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tools.choose(None, asked()) is Tool.OWN
    with pytest.raises(UserError, match="vllm is not installed"):
        tools.choose(Tool.VLLM, asked())
    for name in ("vllm", "aiperf"):
        program(tmp_path, name, "")
    assert tools.choose(None, asked(Kind.AGENTIC)) is Tool.AIPERF
    assert tools.choose(None, asked(load=Load(prompts="p.jsonl"))) is Tool.OWN
    with pytest.raises(UserError, match="no sessions"):
        tools.choose(Tool.VLLM, asked(Kind.AGENTIC))
    sessions = tools.prompts.sessions(Load(), count=2, seed=1, folder=tmp_path)
    lines = [json.loads(line) for line in tools.aiperf_sessions(sessions).splitlines()]
    assert [one["session_id"] for one in lines] == ["s0", "s1"] and lines[0]["turns"][0]["output_length"] == 64
