"""`fasttrack new-model` from the command line to a gate that passes, on a second real architecture.

The checkout is a copy with a git repository of its own. DeepSeek-V4.1-Flash is scaffolded from the answers that the
repository keeps for it; nothing that was written is edited before the gate passes.
"""

import json

import pytest
from long_tests import long
from scaffolding import EXAMPLE, Checkout

NAME = "deepseek_v4_1_flash"
KERNEL = f"models/{NAME}/kernels/rms_norm.py"
EXAM = f"tests/validation/contracts/test_{NAME}.py"
KERNELS = f"tests/models/test_{NAME}_kernels.py"
DIGEST = "from fasttrack_validation import contracts; print(contracts.contract_digest('kimi_k3', 'attn_res_norm'))"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Checkout:
    return Checkout(tmp_path_factory.mktemp("scaffold"))


@pytest.fixture(scope="module")
def scaffolded(checkout):
    """The checkout with the model written, and what the command said."""
    before, digest = checkout.tree(), checkout.python("-c", DIGEST).stdout
    done = checkout.fasttrack("new-model", NAME, "--answers", EXAMPLE, "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    return checkout, json.loads(done.stdout), before, digest


def gate(checkout, base: str, head: str):
    done = checkout.fasttrack("gate", "--base", base, "--head", head, "--model", NAME, "--json")
    answer = json.loads(done.stdout)
    reasons = {reason["id"] for stage in answer["stages"] for reason in stage["reasons"]}
    return done.returncode, reasons, {stage["stage"]: stage["status"] for stage in answer["stages"]}


def test_it_adds_what_it_says_and_touches_nothing_else(scaffolded):
    checkout, said, before, digest = scaffolded
    after = checkout.tree()
    assert {path: after[path] for path in before} == before
    assert sorted(after.keys() - before.keys()) == sorted(said["first_change"] + said["second_change"])
    assert all(path.startswith(f"models/{NAME}/") for path in said["second_change"])
    assert not any(path.startswith("models/") for path in said["first_change"])
    assert digest.strip() and checkout.python("-c", DIGEST).stdout == digest  # no other model's exam is another one


def test_its_own_tests_pass(scaffolded):
    done = scaffolded[0].python("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", EXAM, KERNELS)
    assert done.returncode == 0 and "skipped" not in done.stdout, done.stdout


def test_a_planted_fault_is_rejected_and_named(scaffolded, tmp_path):
    checkout = scaffolded[0]
    kernel = (checkout.path / KERNEL).read_text()
    assert kernel.count(" + EPSILON") == 1
    (tmp_path / "rms_norm.py").write_text(kernel.replace(" + EPSILON", ""))
    faulty = str(tmp_path / "rms_norm.py")
    done = checkout.fasttrack("evaluate", NAME, "--op", "rms_norm", "--candidate", faulty, "--json")
    verdict = json.loads(done.stdout)
    assert (done.returncode, verdict["status"]) == (1, "rejected")
    assert "epsilon is left out" in verdict["message"]


def test_a_second_call_refuses_and_leaves_everything_as_it_is(scaffolded):
    checkout = scaffolded[0]
    before = checkout.tree()
    done = checkout.fasttrack("new-model", NAME, "--answers", EXAMPLE)
    assert done.returncode == 2 and f"{NAME} exists already" in done.stderr
    assert checkout.tree() == before


def test_what_it_lacks_so_far_is_said_in_two_lines(scaffolded):
    checkout = scaffolded[0]
    for arguments, what in (
        (("grid", "show", NAME, "--hardware", "h200"), "has no performance grid"),
        (("evaluate", NAME, "--op", "rms_norm+rms_norm", "--candidate", KERNEL), "cannot be judged as one"),
        (("evaluate", NAME, "--op", "layer:kda", "--candidate", KERNEL), "no op of"),
        (("propose", NAME, "--dry-run"), f"has no contract of {NAME}"),  # nothing is committed yet
    ):
        done = checkout.fasttrack(*arguments)
        assert done.returncode == 2 and what in done.stderr and "Traceback" not in done.stderr, done.stderr


@long
def test_it_travels_as_two_changes_and_the_gate_passes_unedited(scaffolded):
    checkout, said, *_ = scaffolded
    written = {path: (checkout.path / path).read_bytes() for path in said["second_change"]}

    checkout.git("switch", "--quiet", "--create", "early", "main")
    early = checkout.commit("directory without a contract", f"models/{NAME}")
    code, reasons, _ = gate(checkout, "main", early)
    assert code == 1 and "evidence.no_contract" in reasons

    checkout.git("reset", "--quiet", "--soft", "main")
    checkout.git("restore", "--staged", "models")
    checkout.git("switch", "--quiet", "--create", "contract", "main")
    contract = checkout.commit("contract", *said["first_change"])
    code, reasons, _ = gate(checkout, "main", contract)
    assert code == 1 and "confinement.policy_change" in reasons  # people's, never the lane's
    alone = checkout.python("-m", "pytest", "-q", "-p", "no:cacheprovider", "--co", EXAM)
    assert alone.returncode == 0, alone.stdout
    checkout.git("switch", "--quiet", "main")
    checkout.git("merge", "--quiet", "--ff-only", "contract")

    checkout.git("switch", "--quiet", "--create", "start", "main")
    start = checkout.commit("directory", f"models/{NAME}")
    code, reasons, _ = gate(checkout, "main", start)
    assert code == 1 and "evidence.missing" in reasons

    done = checkout.fasttrack("submit", NAME, "--op", "rms_norm", "--candidate", KERNEL, "--branch", "proved", "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    # The run's report tells what the run touched; the change is both commits, and the gate says what its report lacks.
    code, reasons, _ = gate(checkout, "main", "proved")
    assert code == 1 and reasons == {"report.touched"}
    kept = checkout.git("rev-parse", "proved")
    checkout.git("switch", "--quiet", "proved")
    done = checkout.fasttrack("report", NAME, "--write", "--base", "main")
    assert done.returncode == 0, done.stderr
    checkout.commit("report", f"models/{NAME}/report")
    assert all(path.startswith(f"models/{NAME}/report/") for path in checkout.git("diff", "--name-only", kept, "proved").splitlines())
    code, _, stages = gate(checkout, "main", "proved")
    assert code == 0 and {stages[stage] for stage in ("confinement", "manifest", "evidence", "lifetime")} == {"pass"}
    # The table names its evidence now; all else is as it was scaffolded.
    edited = [path for path in written if path.endswith("dispatch/rms_norm.toml")]
    assert checkout.git("diff", "--name-only", "--diff-filter=M", start, "proved").splitlines() == edited
