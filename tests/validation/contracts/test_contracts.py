import ast
import subprocess
import sys

import pytest
from fasttrack_validation import contracts
from fasttrack_validation.contracts import kimi_k3
from fasttrack_validation.errors import UserError
from fasttrack_validation.records import sha256
from fasttrack_validation.tensors import DType


@pytest.fixture(scope="module")
def contract():
    return contracts.load("kimi_k3")


def test_models_and_ops(contract):
    assert contracts.models() == ("kimi_k3",)
    assert list(contract.ops) == ["kda_decode"]
    assert contract.op("kda_decode").op == "kda_decode"


@pytest.mark.parametrize(
    ("call", "what", "how"),
    [
        (lambda: contracts.load("kimi-k3"), "no model is called 'kimi-k3'", "did you mean 'kimi_k3'?"),
        (lambda: contracts.load("qwen"), "no model is called 'qwen'", "known: kimi_k3"),
        (lambda: contracts.load("kimi_k3").op("kda_decod"), "'kda_decod'", "did you mean 'kda_decode'?"),
        (lambda: contracts.contract_digest("kimi_k3", "kda"), "'kda'", "kda_decode"),
    ],
)
def test_unknown_names_get_the_nearest(call, what, how):
    with pytest.raises(UserError) as caught:
        call()
    assert what in caught.value.what and how in caught.value.how


def test_loading_imports_no_tensor_library():
    code = (
        "import sys; from fasttrack_validation import contracts; c = contracts.load('kimi_k3').op('kda_decode'); "
        "c.tensors(c.workloads()[0]); contracts.contract_digest('kimi_k3', 'kda_decode'); "
        "print([m for m in ('torch', 'triton', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def imported(start: str) -> set[str]:
    """Files of the package, relative to it, that importing `start` reads, lazily imported ones included."""
    found, waiting = set(), [start]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for node in ast.walk(ast.parse((contracts.ROOT / name).read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                parts = [*name.split("/")[: -node.level], *(node.module or "").split(".")]
                package = "/".join(part for part in parts if part)
                for option in (package, *(f"{package}/{alias.name}" for alias in node.names)):
                    option = option.lstrip("/")
                    waiting += [p for p in (f"{option}.py", f"{option}/__init__.py") if (contracts.ROOT / p).is_file()]
    return found


def test_no_file_of_the_exam_is_forgotten():
    listed = set(contracts.contract_files("kimi_k3", "kda_decode"))
    read = imported("contracts/kimi_k3/kda_decode/__init__.py") - {"errors.py", "__init__.py"}
    assert read <= listed
    # What is listed beside that is the model's own data and the shared rules of comparison.
    assert {name for name in listed - read if name.endswith(".py")} <= {
        "contracts/kimi_k3/__init__.py", "numerics/calibrate.py", "numerics/errors.py", "strict.py",
        "contracts/kimi_k3/architecture.py",
    }  # fmt: skip


def test_the_digest_follows_every_file_and_nothing_else():
    names = contracts.contract_files("kimi_k3", "kda_decode")
    files = {name: (contracts.ROOT / name).read_bytes() for name in names}
    whole = contracts.contract_digest("kimi_k3", "kda_decode")
    assert contracts.contract_digest("kimi_k3", "kda_decode", {**files, "judge/verdict.py": b"other"}) == whole
    by_hand = sha256("".join(f"{sha256(files[name])}  {name}\n" for name in sorted(names)).encode())
    assert whole == by_hand
    for name in names:
        assert contracts.contract_digest("kimi_k3", "kda_decode", {**files, name: files[name] + b" "}) != whole
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
        ({"verify_width": (1, 8)}, ("verify_width = [8], validated are [1]",)),
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
        ("ratio = 1.25\nfloor = 1.9", "ratio = 0.5\nfloor = 1.9", "ops.kda_decode.comparisons.1.ratio: "),
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
