"""A small repository with one model, and a gate on it: policy, manifest, kernel and statement that fit together."""

import tomllib
from types import SimpleNamespace

from fasttrack import attestation, evidence
from fasttrack.gate import GateResult, run_gate as full_gate
from fasttrack_validation.errors import UserError
from fasttrack_validation.judge.verdict import CheckResult, Outcome, Status, Verdict
from fasttrack_validation.records import digest_files

M = "models/alpha"
KERNEL = "kernels/k.py"
STATEMENT = "evidence/statements/decode.judge.json"
POLICY = {
    "contracts/base.py": b"BASE = 1\n",
    "contracts/alpha/decode.py": b"OP = 1\n",
    "contracts/beta/x.py": b"X = 1\n",
    "judge/verdict.py": b"JUDGE = 1\n",
}
CONTRACT = digest_files({name: POLICY[name] for name in ("contracts/base.py", "contracts/alpha/decode.py")})
JUDGE = digest_files({name: POLICY[name] for name in ("contracts/base.py", "judge/verdict.py")})
DATES = b"review_by = 2101-01-01\nremove_by = 2102-01-01\n"
TABLE = b'[[entry]]\nhardware = "h200"\ntp = 8\nrows = [1, 4]\nkernel = "kernels/k.py"\nbasis = "modelled"\n'
MANIFEST = b'[model]\nname = "alpha"\n' + DATES + b'[ops.decode]\nkernels = ["kernels/k.py"]\n'
INSIDE = {"fasttrack.toml": MANIFEST, KERNEL: b"from . import shared\n", "kernels/shared.py": b"A = 1\n",
          "dispatch/decode.toml": TABLE}  # fmt: skip


def contract_of(model, op, files):
    """The digest of the contract of the fixture's model."""
    names = [name for name in files if name == "contracts/base.py" or name.startswith(f"contracts/{model}/")]
    if len(names) < 2:
        raise UserError(f"no contract for model {model!r}", "onboard it")
    return digest_files({name: files[name] for name in names})


def run_gate(*arguments, **options) -> GateResult:
    return full_gate(*arguments, **{"contract_of": contract_of} | options)


PASSED = (CheckResult(check="C1", title="outputs", outcome=Outcome.PASS),)


def parse_manifest(text: str, path: str):
    data = tomllib.loads(text)
    if set(data) - {"model", "decode", "ops", "envelope"}:
        raise UserError(f"{path}: unknown key", "remove it")
    ops = {
        op: SimpleNamespace(**{"dispatch": f"dispatch/{op}.toml", "space": None} | entry)
        for op, entry in data.get("ops", {}).items()
    }
    envelope = data.get("envelope", [{"hardware": "h200", "tp": 8, "rows": [1, 4]}])
    return SimpleNamespace(
        decode=SimpleNamespace(**{"faster": None} | data["decode"]) if "decode" in data else None,
        model=SimpleNamespace(**{"contract": data["model"]["name"]} | data["model"]), ops=ops,
        envelope=[SimpleNamespace(**{"verify_width": 1, "dtypes": ["bf16"]} | one) for one in envelope],
    )  # fmt: skip


def statement(files: dict[str, bytes], *, performance=(), raw=(), kernels=(KERNEL,), **change) -> bytes:
    verdict = Verdict(
        **{
            "model": "alpha",
            "op": "decode",
            "status": Status.ACCEPTED,
            "candidate_digest": "a" * 64,
            "contract_digest": CONTRACT,
            "judge_digest": JUDGE,
            "config": {},
            "checks": PASSED,
            "executor": "interpreter",
            "sandbox": "namespaces",
        }
        | change
    )
    made = evidence.state(
        evidence.Stage.JUDGE,
        verdict,
        kernels,
        files,
        toolchain={},
        hardware={},
        software={},
        configuration={},
        performance=performance,
        raw=raw,
    )
    return (made.canonical_json() + "\n").encode()


def tree(inside: dict[str, bytes], policy: dict[str, bytes] = POLICY) -> dict[str, bytes]:
    return {f"{M}/{name}": data for name, data in inside.items()} | {
        f"validation/{name}": d for name, d in policy.items()
    }


def gate(forge, inside: dict[str, bytes], policy: dict[str, bytes] = POLICY, **options) -> GateResult:
    base = forge.commit(tree({"README.md": b"# alpha\n"}, policy))
    head = forge.commit(tree({"README.md": b"# alpha\n"} | inside, policy), base)
    return run_gate(forge.path, base, head, "alpha", parse_manifest=parse_manifest, **options)


def judged(forge, inside, signers: bytes | None, *, base_inside=None, head_signers=None):
    """The gate on a change that brings `inside`, where the base lets `signers` sign."""
    def files(own, allowed):
        return tree({"README.md": b"# alpha\n"} | own) | ({attestation.ALLOWED_SIGNERS: allowed} if allowed is not None else {})

    base = forge.commit(files(base_inside or {}, signers))
    head = forge.commit(files(inside, head_signers if head_signers is not None else signers), base)
    return run_gate(forge.path, base, head, "alpha", parse_manifest=parse_manifest)


def ids(result: GateResult, stage: str) -> list[str]:
    (found,) = (one for one in result.stages if one.stage == stage)
    return [reason.id for reason in found.reasons]


def statuses(result: GateResult) -> dict[str, str]:
    return {stage.stage: str(stage.status) for stage in result.stages}
