"""One report with something in every section."""

import json

import pytest
from fasttrack import evidence
from fasttrack.confinement.check import ChangedFile
from fasttrack.report import data as d
from fasttrack.report.model_level import servers_results
from fasttrack.report.token_records import traced
from fasttrack_validation.claims.cells import Measured, Modelled, NotMeasured
from fasttrack_validation.judge.pack import BufferArgument, KernelPack, KernelVariant, Launch, Role
from fasttrack_validation.judge.verdict import (
    CheckResult,
    KernelAudit,
    Outcome,
    Status,
    TensorError,
    Verdict,
    WorkloadResult,
)
from fasttrack_validation.tensors import DType
from kept_tokens import kept, unit

NO_GPU = "no GPU on this machine"
KIT = "evidence/kits/gb300-25539c8aaaaa/numerics/verdict.json"
FILES = {"kernels/kda_decode.py": b"import triton\n"}
MODELLED = Modelled(microseconds=7.43, model="launch-latency-bytes-1", hardware="H200", bound="launch")


def measured(value: float) -> Measured:
    return Measured(
        microseconds=value, low=value * 0.99, high=value * 1.01, repetitions=5, method="graph replay", hardware="H200"
    )


def error(tensor: str, scale: float) -> TensorError:
    return TensorError(
        tensor=tensor,
        values=131072,
        median=1.1e-3 * scale,
        p999=8e-3 * scale,
        maximum=1.2e-2 * scale,
        plain_median=1e-3,
        plain_p999=1e-2,
        plain_maximum=1.3e-2,
    )


def plan() -> KernelPack:
    def variant(name: str, warps: int) -> KernelVariant:
        return KernelVariant(
            file="kda_decode.py",
            function=name,
            signature={"x": "*bf16"},
            constexprs={},
            divisible_by_16=("x",),
            options={"num_warps": warps, "launch_pdl": name == "update_state"},
        )

    def launch(kernel: str, grid: tuple[int, int, int], *buffers: str, **change) -> Launch:
        arguments = {name: BufferArgument(buffer=name, offset=0, dtype=DType.BF16) for name in buffers}
        return Launch(kernel=kernel, grid=grid, arguments=arguments, **change)

    return KernelPack(
        op="kda_decode",
        workload="tp8-b4",
        candidate_digest="a" * 64,
        scratch={},
        prepared={},
        toolchain={},
        kernels={
            "short_conv": variant("short_conv", 4),
            "update_state": variant("update_state", 8),
            "warm_l2": variant("warm_l2", 4),
            "gated_norm_output": variant("gated_norm_output", 4),
        },
        launches=(
            launch("short_conv", (12, 4, 1), "x", "q"),
            launch("warm_l2", (66, 1, 1), "w", stream="side", role=Role.PREFETCH),
            launch("update_state", (12, 4, 4), "q", "state"),
            launch("gated_norm_output", (12, 4, 1), "state", "w", "out"),
        ),
    )


def servers(message: str = "") -> dict:
    """What `fasttrack validate --stock-url URL --candidate-url URL` keeps."""
    from fasttrack_validation.numerics.servers.compare import ServersVerdict

    spreads = [
        {"metric": "log_prob", "band": band, "path": path, "values": 65_536, "median": scale, "p999": 9 * scale, "maximum": 30 * scale}
        for band in ("0-1k", "1k-8k") for path, scale in (("candidate", 1.2e-3), ("again", 1e-3))
    ]  # fmt: skip
    verdict = {
        "result": "inconclusive", "reference": "stock", "tokens": 131_072, "noise": ["again"], "deterministic": False,
        "checks": [], "worst": [], "spreads": spreads, "text": "the tail of log_prob is within its limit" + message,
        "flips": {"tokens": 131_072, "flips": {"candidate": 40, "again": 37}, "ties": 39, "bugs": 1, "margin_limit": 0.01},
    }  # fmt: skip
    return ServersVerdict.model_validate(verdict).model_dump(mode="json")


def make(message: str = "", measured_cells: bool = False) -> d.ReportData:
    checks = (
        CheckResult(check="C1", title="outputs against the oracle", outcome=Outcome.PASS),
        CheckResult(check="C19", title="compute-sanitizer", outcome=Outcome.NOT_RUN, message=NO_GPU),
    )
    audits = tuple(
        KernelAudit(
            kernel=kernel,
            target=target,
            registers=registers,
            spill_store_bytes=0,
            spill_load_bytes=0,
            stack_bytes=0,
            shared_bytes=shared,
            threads=threads,
            mma_types=mma,
            conversions={},
            code_bytes=4096,
            compiler="ptxas 13.0",
        )
        for kernel, registers, shared, threads, mma in (
            ("short_conv", 40, 0, 128, ()),
            ("update_state", 168, 34816, 256, ("bf16",)),
            ("gated_norm_output", 56, 1024, 128, ()),
        )
        for target in ("sm_90", "sm_103")
    )
    workloads = tuple(
        WorkloadResult(
            workload=name,
            axes={"tp": 8, "rows": rows},
            held_out=False,
            launches=4,
            trials=6,
            distributions=("normal",),
            errors=(error("out", scale), error("state", 0.9)),
        )
        for name, rows, scale in (("tp8-b1", 1, 1.0), ("tp8-b4", 4, 1.2))
    )
    verdict = Verdict(
        model="kimi_k3",
        op="kda_decode",
        status=Status.ACCEPTED,
        message=message,
        candidate_digest="a" * 64,
        contract_digest="b" * 64,
        judge_digest="c" * 64,
        config={"block": 64},
        checks=checks,
        workloads=workloads,
        audits=audits,
        executor="interpreter",
        sandbox="namespaces, seccomp",
    )
    absent = NotMeasured(reason=NO_GPU, modelled=MODELLED)
    performance = [
        evidence.PerformanceCell(
            hardware="H200", tp=8, bucket=bucket, candidate=absent, stock=NotMeasured(reason=NO_GPU)
        )
        for bucket in ("1", "2-4")
    ]
    if measured_cells:
        performance[0] = evidence.PerformanceCell(
            hardware="H200", tp=8, bucket="1", candidate=measured(8.0), stock=measured(12.0)
        )
        performance[1] = evidence.PerformanceCell(
            hardware="H200",
            tp=8,
            bucket="2-4",
            candidate=measured(9.0),
            stock=NotMeasured(reason="fla-core is not installed"),
        )
    statement = evidence.state(
        evidence.Stage.JUDGE,
        verdict,
        ["kernels/kda_decode.py"],
        FILES,
        hardware={"cpu": "two cores"},
        toolchain={"triton": "3.9.0", "torch": "2.13.0"},
        software={},
        configuration={},
        performance=tuple(performance),
    )
    source = "evidence/statements/kda_decode.judge.json"
    op = d.OpReport(
        statement=statement,
        source=source,
        plan=plan(),
        plan_source="evidence/plans/kda_decode.json",
        predictions=(
            d.Prediction(workload="tp8-b4", bytes=6_291_456, flops=25_165_824, floors=(MODELLED,), source=source),
        ),
        rationale="Conv, gate and norm are fused around one pass over the recurrent state, which stays in fp32."
        + message,
    )
    files = tuple(
        ChangedFile(path=f"models/kimi_k3/{name}", status="A", old_mode="000000", new_mode="100644", bytes=size)
        for name, size in (("kernels/kda_decode.py", 14), (source, 5120), ("report/design.html", 30000))
    )
    attempts = (
        d.Attempt(
            candidate="3f1c9ab2",
            op="kda_decode",
            round=1,
            status=Status.REJECTED,
            reason="C4.error",
            source="evidence/archive.json",
            message="out is off where beta is rounded to bf16 before the update" + message,
        ),
        d.Attempt(
            candidate="77d0e1c4", op="kda_decode", round=2, status=Status.INCONCLUSIVE, source="evidence/archive.json"
        ),
        d.Attempt(
            candidate="a41b22f0",
            op="kda_decode",
            round=3,
            status=Status.ACCEPTED,
            picked=True,
            source="evidence/archive.json",
        ),
    )
    return d.ReportData(
        model="kimi_k3",
        directory="models/kimi_k3",
        problem="At small batch the linear-attention layers of Kimi K3 spend their time on launches, not on bytes.",
        ops=(op,),
        manifest_ops=("kda_decode", "front_gemm"),
        envelope={"Hardware": "H200, GB300", "Tensor parallel": "8, 16", "Batch": "1 to 64 rows", "State": "fp32"},
        switch_off="decode_backend: stock",
        files=files,
        attempts=attempts,
        exams=(
            d.Exam(name="AIME25", reason="needs a server of the full model"),
            d.Exam(name="GPQA-Diamond", reason="needs a server of the full model"),
        ),
        grid=d.Grid(hardware=("H200", "GB300"), tp=(8, 16), buckets=("1", "2-4", "5-16", "17-64")),
        risks=(
            d.Risk(
                mechanism="early programmatic launch",
                where="kda_decode: update_state",
                ask="is every read of an earlier kernel's output behind the wait?",
            ),
        ),
        provenance=d.Provenance(
            agent="search",
            seed=7,
            rounds=3,
            base_commit="25539c8" + "0" * 33,
            source="evidence/archive.json",
            author="fasttrack <fasttrack@localhost>",
            fallback_identity=True,
        ),
        owner_paragraph="",
        maintenance=d.Maintenance(
            owner="kernels@example.org",
            review="2027-03-01",
            removal="2027-09-01",
            obsolete_when="the stock path fuses the same chain",
        ),
        decisions=(d.Decision(question="Is the state worth a layout of its own?", source=source),),
        servers=servers_results({KIT: json.dumps(servers(message)).encode()}) if measured_cells else (),
        traced=traced(kept([unit(message=message, moved=1000)], {"lost.jsonl.gz": "0" * 64})) if measured_cells else (),
    )


@pytest.fixture
def report() -> d.ReportData:
    """A report made without a GPU."""
    return make()


@pytest.fixture
def make_report():
    """The maker itself: `message` goes into every generated text; `measured_cells` fills two cells."""
    return make
