import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from fasttrack_validation import contracts
from fasttrack_validation.contracts import kimi_k3
from fasttrack_validation.contracts.kimi_k3 import layers
from fasttrack_validation.errors import UserError
from fasttrack_validation.records import sha256
from fasttrack_validation.tensors import DType


OWN = contracts.ROOT / "contracts/kimi_k3"


@pytest.fixture(scope="module")
def contract():
    return contracts.load("kimi_k3")


def test_models_and_ops(contract):
    assert "kimi_k3" in contracts.models() and "trace" not in contracts.models()
    assert list(contract.ops) == list(kimi_k3.FILES)
    assert contract.op("kda_decode").op == "kda_decode"


@pytest.mark.parametrize(
    ("call", "what", "how"),
    [
        (lambda: contracts.load("kimi-k3"), "no model is called 'kimi-k3'", "did you mean 'kimi_k3'?"),
        (lambda: contracts.load("qwen"), "no model is called 'qwen'", "kimi_k3"),
        (lambda: contracts.load("kimi_k3").op("kda_decod"), "'kda_decod'", "did you mean 'kda_decode'?"),
        (lambda: contracts.contract_digest("kimi_k3", "kda"), "'kda'", "kda_decode"),
    ],
)
def test_unknown_names_get_the_nearest(call, what, how):
    with pytest.raises(UserError) as caught:
        call()
    assert what in caught.value.what and how in caught.value.how


def test_a_tree_without_the_contract_is_told_from_one_that_lacks_a_file():
    names = contracts.contract_files("kimi_k3", "kda_decode")
    for files, what in (
        ({"judge/verdict.py": b""}, "that tree has no contract of kimi_k3"),
        (dict.fromkeys(names[:-1], b""), f"the contract of kimi_k3/kda_decode lacks validation/{names[-1]}"),
    ):
        with pytest.raises(UserError) as caught:
            contracts.contract_digest("kimi_k3", "kda_decode", files)
        assert caught.value.what == what


def test_loading_imports_no_tensor_library():
    code = (
        "import sys; from fasttrack_validation import contracts; c = contracts.load('kimi_k3'); "
        "[(op.tensors(w), op.cost(w)) for op in c.ops.values() for w in op.workloads()]; "
        " contracts.contract_digest('kimi_k3', 'kda_decode'); "
        "print([m for m in ('torch', 'triton', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def imported(path: Path) -> set[Path]:
    """Files of the model's directory that `path` imports, at whatever depth of a function, and their packages."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        base = path.parents[node.level - 1]
        module = base.joinpath(*(node.module or "").split("."))
        candidates = [module.with_suffix(".py"), *(module / f"{alias.name}.py" for alias in node.names)]
        candidates += [module / "__init__.py"]
        found |= {candidate for candidate in candidates if candidate.is_file()}
    found |= {parent / "__init__.py" for file in found for parent in file.parents}
    return {file for file in found if OWN in file.parents and file.is_file()}


def reached_from(*files: Path) -> set[str]:
    """Files of the model's directory that these reach by their imports, relative to it."""
    reached, todo = set(), {OWN / "__init__.py", *files}
    while todo:
        reached |= todo
        todo = {file for path in todo for file in imported(path)} - reached
    return {path.relative_to(OWN).as_posix() for path in reached} - {"registry.py"}


@pytest.mark.parametrize("op", kimi_k3.FILES)
def test_no_file_of_the_exam_is_forgotten(op):
    """What the op's package reaches by its imports, and the data that loading reads. No other op's files."""
    assert set(kimi_k3.FILES[op]) == reached_from(*(OWN / op).rglob("*.py")) | {"config.json", "contract.toml"}


def test_no_file_of_the_exam_of_a_step_or_a_part_is_forgotten():
    data = {"config.json", "contract.toml", "nano.json", "layers.py"}
    assert set(layers.STEP_FILES) == reached_from(*(OWN / "decode_step").rglob("*.py")) | data
    own = reached_from(OWN / "part.py", OWN / "choice.py") - reached_from()
    listed = {name.removeprefix("contracts/kimi_k3/") for name in contracts.contract_files("kimi_k3", "front+routing")}
    assert own <= listed
    assert {f"contracts/{name}.py" for name in ("drawn", "joined", "subgraph")} <= set(contracts.contract_files("kimi_k3", "layer:mla"))


@pytest.mark.parametrize(("name", "near"), [("layer:kdaa", "layer:kda"), ("steps", "step"), ("layer:moe", "layer:")])
def test_layers_and_the_step_are_among_the_known_names(contract, name, near):
    with pytest.raises(UserError) as caught:
        contract.op(name)
    assert near in caught.value.how


def test_the_digest_follows_every_file_and_nothing_else():
    names = contracts.contract_files("kimi_k3", "kda_decode")
    files = {name: (contracts.ROOT / name).read_bytes() for name in names}
    whole = contracts.contract_digest("kimi_k3", "kda_decode")
    assert contracts.contract_digest("kimi_k3", "kda_decode", {**files, "judge/verdict.py": b"other"}) == whole
    policy = "contracts/kimi_k3/contract.toml"
    document = tomllib.loads(files[policy].decode())
    section = {"envelope": document["envelope"], "op": document["ops"]["kda_decode"]}
    text = json.dumps(section, sort_keys=True, separators=(",", ":")).encode()
    hashed = {**files, policy: text}
    by_hand = sha256("".join(f"{sha256(hashed[name])}  {name}\n" for name in sorted(names)).encode())
    assert whole == by_hand
    for name in set(names) - {policy}:
        assert contracts.contract_digest("kimi_k3", "kda_decode", {**files, name: files[name] + b" "}) != whole
    for change, same in (
        ((b"# What every", b"# Which every"), True),
        ((b"[[ops.attn_res_norm.comparisons]]", b"[[ops.attn_res_norm.comparisons]]\nratio = 2.0"), True),
        ((b"[[ops.kda_decode.comparisons]]", b"[[ops.kda_decode.comparisons]]\nratio = 2.0"), False),
        ((b"max_rows = 64", b"max_rows = 65"), False),
    ):
        changed = {**files, policy: files[policy].replace(*change, 1)}
        assert changed != files
        assert (contracts.contract_digest("kimi_k3", "kda_decode", changed) == whole) is same, change
    with pytest.raises(UserError, match="contract.toml"):
        contracts.contract_digest("kimi_k3", "kda_decode", {**files, policy: b"[envelope"})
    del files["contracts/base.py"]
    with pytest.raises(UserError, match="lacks validation/contracts/base.py"):
        contracts.contract_digest("kimi_k3", "kda_decode", files)


def test_envelopes(contract):
    assert set(contract.envelope) == {"h200", "gb300"}
    for envelope in contract.envelope.values():
        assert (envelope.tp, envelope.min_rows, envelope.max_rows) == ((8, 16), 1, 64)
    assert contract.envelope["h200"].compute_capability == (9, 0)
    assert contract.envelope["gb300"].compute_capability == (10, 3)


@pytest.mark.parametrize(
    ("claim", "excess"),
    [
        ({}, ()),
        ({"tp": (8,), "min_rows": 2, "max_rows": 16}, ()),
        ({"tp": (4, 8)}, ("tp = [4], validated are [8, 16]",)),
        ({"max_rows": 65}, ("rows 1 to 65, validated are 1 to 64",)),
        ({"verify_width": (1, 8)}, ()),
        ({"verify_width": (8, 9)}, ("verify_width = [9], validated are [1, 2, 3, 4, 5, 6, 7, 8]",)),
        ({"recurrent_state": DType.BF16}, ("recurrent_state = bf16, validated is fp32",)),
    ],
)
def test_a_claim_may_not_exceed_the_envelope(contract, claim, excess):
    envelope = contract.envelope["h200"]
    assert envelope.excess(type(envelope)(**{**envelope.model_dump(), **claim})) == excess


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        ("tp = [8, 16]\nbatch", "tp = [8, '16']\nbatch", "ops.kda_decode.tp.1: Input should be a valid integer"),
        ("batch_buckets = [1, 2,", "batch_buckets = [2, 1,", "ops.kda_decode.batch_buckets: batch buckets must ascend"),
        ("29, 61]", "29, 65]", "ops.kda_decode.held_out_rows: held-out rows must not pass"),
        ("[ops.kda_decode]", "[ops.kda_decode]\nratio = 2", "ops.kda_decode.ratio: is not a known key"),
        ("ratio = 1.25\nfloor = 7.6", "ratio = 0.5\nfloor = 7.6", "ops.kda_decode.comparisons.1.ratio: "),
        ("[ops.kda_decode]", "[ops.kda_decodes]", "ops.kda_decodes"),
    ],
)
def test_a_policy_that_does_not_fit_is_named_with_its_line(tmp_path, before, after, what):
    text = kimi_k3.POLICY.read_text()
    assert before in text
    path = tmp_path / "contract.toml"
    path.write_text(text.replace(before, after, 1))
    with pytest.raises(UserError) as caught:
        kimi_k3.load(path)
    assert caught.value.what.startswith(f"{path}:")
    assert what in caught.value.what
