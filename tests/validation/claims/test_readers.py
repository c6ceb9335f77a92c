"""Result files of each tool become records: what they hold is in them, what they do not hold is unknown, and a field of
another schema is named."""

import json

import pytest
import result_files as files

from fasttrack_validation.claims import readers
from fasttrack_validation.claims.conditions import missing
from fasttrack_validation.claims.measurement import Metric, known
from fasttrack_validation.errors import UserError


def read(tmp_path, data, format="auto", conditions=None):
    path = tmp_path / "result.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    side = None
    if conditions is not None:
        side = tmp_path / "conditions.toml"
        side.write_text(conditions)
    return readers.read(path, format, side)


# path: value in base units, worked out from the file by hand
EXPECTED = {
    "vllm": {
        "identity.engine": "vllm", "identity.model": "moonshotai/Kimi-K3", "workload.isl_achieved": 1024.0,
        "workload.osl_achieved": 4.0, "workload.concurrency": 4, "workload.request_rate": "unlimited",
        "speculation.acceptance_length": 4.2, "speculation.draft_tokens": 7, "speculation.forced": None,
        "speculation.method": None, "result.ttft": 0.2055, "result.tpot": 0.0105, "result.itl": 0.0105,
        "result.request_latency": 0.2355, "result.tok_s_system": 61.54, "result.tok_s_user": None,
        "result.completed": 4, "result.failed": 0, "result.statistic": "median", "result.per_request.ttft": 0.20,
        "result.per_request.output_tokens": (4, 4, 4, 4), "validity.repeated_ngrams": 0.0, "hardware.sku": None,
        "hardware.gpus": None, "topology.tp": None, "engine.prefix_cache": None, "taken": None,
    },
    "sglang": {
        "identity.engine_version": "0.5.14", "identity.model": "moonshotai/Kimi-K3", "topology.tp": 8,
        "topology.dp_attention": False, "engine.prefix_cache": True, "engine.prefix_cache_hit_rate": 0.25,
        "identity.precision.kv_cache": "fp8_e4m3", "identity.model_revision": None, "speculation.method": "off",
        "speculation.acceptance_length": None, "workload.data": "random", "workload.isl_asked": 1024,
        "workload.osl_asked": 4, "workload.request_rate": "unlimited", "result.ttft": 0.2055,
        "result.request_latency": 0.2355, "result.failed": 0, "hardware.sku": None, "topology.disaggregated": None,
    },
    "aiperf": {
        "identity.model": "moonshotai/Kimi-K3", "hardware.sku": "NVIDIA H200", "hardware.gpus": None,
        "workload.concurrency": 4, "workload.seeds": (42,), "workload.isl_achieved": 1024.0, "result.ttft": 0.205,
        "result.tpot": 0.010, "result.itl": None, "result.tok_s_user": 100.0, "result.tok_s_system": 61.54,
        "result.completed": 4, "result.failed": 1, "result.statistic": "mean", "speculation.method": None,
    },
    "inferencex": {
        "identity.engine": "vllm", "identity.build": "vllm/vllm-openai:v0.27", "identity.precision.weights": "fp4",
        "identity.precision.kv_cache": None, "hardware.sku": "h200", "hardware.gpus": 8, "topology.tp": 8,
        "topology.dcp": 1, "topology.dp_attention": False, "topology.disaggregated": False, "workload.isl_asked": 1024,
        "workload.isl_achieved": None, "workload.concurrency": 4, "speculation.method": "off", "result.completed": 39,
        "result.failed": 1, "result.ttft": 0.20705, "result.tpot": 0.0101, "result.tok_s_user": 101.0,
        "result.tok_s_gpu": 49.0, "hardware.nodes": None,
    },
}  # fmt: skip


@pytest.mark.parametrize("tool", files.FILES)
def test_what_a_file_holds_and_what_it_does_not(tmp_path, tool):
    (found,) = read(tmp_path, files.FILES[tool]())
    assert found.source.format == tool
    for path, value in EXPECTED[tool].items():
        given = known(found, path)
        if hasattr(given, "base"):
            given = given.base[0] if isinstance(given.base, tuple) else given.base
        assert given == (pytest.approx(value) if isinstance(value, float) else value), path
    # Nobody could compare it yet: drivers, clocks and repetitions are in none of these files.
    lacking = missing(found, Metric.TPOT)
    assert {"hardware.driver", "hardware.throttled", "result.repetitions", "identity.commit"} <= set(lacking)


# Fields that a record has a place for; all others have to be kept as they stood.
PLACED = {
    "vllm": {"backend", "model_id", "num_prompts", "request_rate", "max_concurrency", "completed", "failed",
             "total_input_tokens", "total_output_tokens", "output_throughput", "input_lens", "output_lens", "ttfts",
             "latencies", "spec_decode_acceptance_length", "median_ttft_ms", "median_tpot_ms", "median_itl_ms",
             "median_e2el_ms", "generated_texts"},
    "sglang": {"backend", "dataset_name", "max_concurrency", "random_input_len", "random_output_len", "completed",
               "total_input_tokens", "total_output_tokens", "output_throughput", "input_lens", "output_lens", "ttfts",
               "median_ttft_ms", "median_tpot_ms", "median_itl_ms", "median_e2e_latency_ms", "accept_length",
               "generated_texts"},
    "aiperf": {"schema_version", "was_cancelled"},
    "inferencex": {"hw", "conc", "image", "model", "framework", "precision", "spec_decoding", "disagg", "isl", "osl",
                   "tp", "pp", "dcp_size", "ep", "dp_attention", "median_ttft", "median_tpot", "median_itl",
                   "median_e2el", "median_intvty"},
}  # fmt: skip


@pytest.mark.parametrize("tool", files.FILES)
def test_nothing_is_lost(tmp_path, tool):
    data = files.FILES[tool]()
    (found,) = read(tmp_path, data)
    kept = found.source.other
    assert set(data) - set(kept) - PLACED[tool] == set()
    for name, value in kept.items():
        # JSON has no infinity: it is kept as a text.
        assert value == data[name] or value == str(data[name])
    assert found.source.left_out == (("generated_texts",) if "generated_texts" in data else ())
    again = type(found).model_validate_json(found.model_dump_json())
    assert again == found


@pytest.mark.parametrize("tool", files.FILES)
def test_a_newer_schema_names_its_field(tmp_path, tool):
    with pytest.raises(UserError, match="brand_new: is not a field that this reader knows"):
        read(tmp_path, files.FILES[tool](brand_new=1.5), tool)


@pytest.mark.parametrize(
    ("tool", "without"),
    [("vllm", "failed"), ("vllm", "total_token_throughput"), ("sglang", "total_throughput"), ("sglang", "accept_length"),
     ("aiperf", "schema_version"), ("inferencex", "spec_decoding"), ("inferencex", "isl")],
)  # fmt: skip
def test_an_older_schema_names_its_field(tmp_path, tool, without):
    data = files.FILES[tool]()
    del data[without]
    with pytest.raises(UserError, match=f"{without}: is missing"):
        read(tmp_path, data, tool)


@pytest.mark.parametrize(
    ("tool", "changes", "words"),
    [
        ("vllm", {"completed": "four"}, "completed: is 'four', not a number"),
        ("vllm", {"ttfts": 3}, "ttfts: is not a list"),
        ("vllm", {"max_concurrency": 2.5}, "max_concurrency: is 2.5, not a whole number"),
        ("sglang", {"server_info": "gone"}, "server_info: is not an object"),
        ("aiperf", {"schema_version": "2.0"}, "schema_version: is '2.0'"),
        (
            "aiperf",
            {"inter_token_latency": {"unit": "fortnights", "avg": 1}},
            "inter_token_latency.unit: is 'fortnights'",
        ),
        ("aiperf", {"inter_token_latency": {"avg": 1}}, "inter_token_latency.unit: is missing"),
        ("aiperf", {"was_cancelled": True}, "was_cancelled: the run was interrupted"),
        ("inferencex", {"mtp": "on"}, "mtp: is of the schema before"),
        ("inferencex", {"request_metrics": {}}, "request_metrics: is of an agentic"),
        ("inferencex", {"dp_attention": "maybe"}, "dp_attention: is 'maybe'"),
    ],
)
def test_fields_of_another_kind(tmp_path, tool, changes, words):
    with pytest.raises(UserError) as caught:
        read(tmp_path, files.FILES[tool](**changes), tool)
    assert words in caught.value.what


def test_metadata_stands_where_vllm_puts_it(tmp_path):
    (found,) = read(tmp_path, files.vllm())
    assert found.source.other["tp"] == "8" and found.topology.tp is None
    moved = files.vllm()
    moved["tp"] = moved.pop("tp")
    with pytest.raises(UserError, match="tp: is not a field"):
        read(tmp_path, moved)


def test_requests_that_failed(tmp_path):
    data = files.vllm(completed=3, failed=0, num_prompts=4, ttfts=[0.2, 0.0, 0.2, 0.2])
    (found,) = read(tmp_path, data)
    assert found.result.failed == 1 and found.result.per_request.ttft is None
    assert found.source.other["ttfts"] == [0.2, 0.0, 0.2, 0.2]
    (found,) = read(tmp_path, files.sglang(errors=["", "timeout", "", ""], completed=3))
    assert found.result.failed == 1
    (found,) = read(tmp_path, files.aiperf(error_request_count=None))
    assert found.result.failed == 0


def test_degenerate_outputs_are_seen(tmp_path):
    (found,) = read(tmp_path, files.vllm(generated_texts=["the same words " * 30] * 4))
    assert found.validity.repeated_ngrams > 0.9


def test_sglang_writes_a_line_for_each_run(tmp_path):
    text = "".join(json.dumps(files.sglang(max_concurrency=n)) + "\n" for n in (1, 8))
    assert [one.workload.concurrency for one in read(tmp_path, text)] == [1, 8]
    speculative = {**files.sglang()["server_info"], "speculative_algorithm": "DSPARK"}
    (trace,) = read(
        tmp_path, json.dumps(files.sglang(request_rate="trace", accept_length=3.1, server_info=speculative))
    )
    assert trace.workload.request_rate is None
    assert (trace.speculation.method, trace.speculation.acceptance_length) == ("DSPARK", 3.1)
    # A server that says nothing of it is not one without.
    (silent,) = read(tmp_path, json.dumps(files.sglang(server_info=None)))
    assert silent.speculation.method is None and silent.engine.prefix_cache is None
    (limited,) = read(tmp_path, json.dumps(files.sglang(request_rate=2.5)))
    assert limited.workload.request_rate == 2.5


def test_several_nodes_of_inferencex(tmp_path):
    data = files.inferencex(**files.MULTINODE)
    for name in ("tp", "pp", "ep", "dp_attention", "dcp_size", "pcp_size"):
        del data[name]
    (found,) = read(tmp_path, [data])
    assert (found.hardware.gpus, found.hardware.gpus_prefill, found.hardware.gpus_decode) == (16, 8, 8)
    # The file divides the output by decode GPUs only: that is not tok/s/GPU of the system.
    assert found.result.tok_s_gpu is None and found.source.other["output_tput_per_gpu"] == 49.0
    assert found.topology.disaggregated is True


def test_conditions_that_the_tool_did_not_write(tmp_path):
    side = 'taken = 2026-09-20\n[hardware]\nsku = "h200"\ngpus = 8\n[engine.options]\n"max-num-seqs" = "64"\n'
    (found,) = read(tmp_path, files.vllm(), conditions=side)
    assert (found.hardware.gpus, found.engine.options, str(found.taken)) == (8, {"max-num-seqs": "64"}, "2026-09-20")
    with pytest.raises(UserError, match="workload.concurrency is 4 there, and given as 8"):
        read(tmp_path, files.vllm(), conditions="[workload]\nconcurrency = 8\n")
    with pytest.raises(UserError, match="hardware.colour"):
        read(tmp_path, files.vllm(), conditions='[hardware]\ncolour = "green"\n')


@pytest.mark.parametrize("text", ["{", "3", "[]", "", '{"a": 1}', '["a"]'])
def test_what_is_no_result(tmp_path, text):
    with pytest.raises(UserError):
        read(tmp_path, text)
