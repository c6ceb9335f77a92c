"""What a kit does, step by step, and how long that takes: data, from which its files are written."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from fasttrack_validation.performance.hardware import profile
from fasttrack_validation.performance.serving_grid import Drafting, Load, ServingCell, ServingGrid
from fasttrack_validation.records import Frozen

FORMAT = "fasttrack.kit/1"
ROUNDS = 6
PORTS = {"stock": 8101, "specialised": 8102}
URLS = {arm: f"http://127.0.0.1:{port}/v1" for arm, port in PORTS.items()}

# What the hours are worked out from, none of it measured on such a machine: seconds of a decode step, and of it more for
# every request; prompt tokens a second; loading the weights.
STEP_SECONDS, ROW_SECONDS, PREFILL_TOKENS_A_SECOND, START_HOURS = 0.008, 0.0002, 20_000.0, 0.3
NUMERICS_HOURS, EXAM_HOURS = 1.0, 8.0
# Two cells of layers took 72 s on one H200, starting and compiling among it; a whole step was not timed.
RANK_CELL_HOURS = 36 / 3600

Hours = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Pair(Frozen):
    """Two servers that run side by side, stock and specialised."""

    tp: int = Field(ge=1)
    speculation: Drafting

    @property
    def name(self) -> str:
        """As files and steps call it."""
        return f"tp{self.tp}-{self.speculation}"

    @property
    def gpus(self) -> int:
        """Of both servers together."""
        return 2 * self.tp


class Command(Frozen):
    """One command of `fasttrack`. Where what it `makes` is there already, it is not run again."""

    arguments: tuple[str, ...] = Field(min_length=1)
    makes: str | None = None


class Step(Frozen):
    """One step: its commands, and the pair of servers that has to run meanwhile."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    title: str
    commands: tuple[Command, ...] = Field(min_length=1)
    hours: Hours
    pair: str | None = None


class Requirement(Frozen):
    """What `check_machine.py` looks for before anything is started."""

    gpu: str | None = Field(description="part of the name that nvidia-smi prints; None where no GPU is needed")
    gpus: int = Field(ge=0, description="linked ones, for the largest pair")
    driver: str | None = Field(None, description="the oldest NVIDIA driver that runs this CUDA")
    disk_gb: int
    memory_gb: int
    python: tuple[int, int] = (3, 11)
    programs: tuple[str, ...]
    stated: tuple[str, ...] = Field(("engine_build", "model_revision"), description="what nobody can look up: its owner says it")


class Kit(Frozen):
    """kit.json."""

    format: Literal["fasttrack.kit/1"] = FORMAT
    model: str
    hardware: str
    rehearsal: bool
    commit: str = Field(min_length=1, description="of the sources in the kit, as git names it")
    subject: str = Field(description="digest of the model directory's decode path, kernels and dispatch tables")
    validation: str = Field(description="digest of judge, contracts, thresholds, exams and harness")
    requirement: Requirement
    pairs: tuple[Pair, ...]
    cells: tuple[str, ...] = Field((), description="of one rank's grid, on one GPU")
    left_out: dict[str, str] = Field(description="pair or step -> why it is not part of this kit")
    steps: tuple[Step, ...]
    pins: tuple[str, ...] = Field(description="versions, as pip takes them")

    @property
    def hours(self) -> float:
        """Of all steps."""
        return sum(step.hours for step in self.steps)


def gpu_name(hardware: str) -> str:
    """What the name of such a GPU has in it, as nvidia-smi prints it."""
    return profile(hardware).cuda_name.split()[-1]


def pairs(grid: ServingGrid, gpus: int) -> tuple[tuple[Pair, ...], dict[str, str]]:
    """(pairs of servers that a grid takes, in its order; those that `gpus` linked GPUs cannot hold, with why)."""
    found = dict.fromkeys(Pair(tp=cell.tp, speculation=cell.speculation) for cell in grid.cells)
    fits = tuple(pair for pair in found if pair.gpus <= gpus)
    why = "both servers run at once, for their loads take turns"
    return fits, {p.name: f"takes {p.gpus} GPUs of {gpus}: {why}" for p in found if p not in fits}


def cell_hours(cell: ServingCell, grid: ServingGrid, rounds: int = ROUNDS) -> float:
    """Of one cell: two arms, a warm-up and `rounds` loads each, at the assumptions above."""
    accepted = 1.0 if cell.speculation is Drafting.OFF else grid.forced_acceptance
    step = STEP_SECONDS + ROW_SECONDS * cell.concurrency
    decode = grid.osl * step / accepted
    waves = {Load.DECODE_ONLY: 1, Load.MIXED_PREFILL: 4, Load.AGENTIC: 2 * 8}[cell.load]
    prompts = cell.concurrency * (cell.isl or 2048) / PREFILL_TOKENS_A_SECOND
    return 2 * (1 + rounds * waves) * (decode + prompts) / 3600


def grid_hours(pair: Pair, grid: ServingGrid) -> float:
    """Of a pair's cells, its servers' start included."""
    mine = [cell for cell in grid.cells if (cell.tp, cell.speculation) == (pair.tp, pair.speculation)]
    return START_HOURS + sum(cell_hours(cell, grid) for cell in mine)


class Exam(Frozen):
    """An exam of a kit: how it is frozen, and its plan."""

    name: str
    build: tuple[str, ...]
    plan: tuple[str, ...]

    def of(self, model: str) -> "Exam":
        """With the model's name where {model} stands."""
        kind, *more = self.build
        return Exam(name=self.name.format(model=model), build=(kind.format(model=model), *more), plan=self.plan)


PUBLISHED = (
    Exam(
        name="aime25", build=("aime25",),
        plan=("--margin", "3", "--looks", "16,32", "--temperature", "1.0", "--max-tokens", "98304"),
    ),
    Exam(
        name="gpqa_diamond", build=("gpqa_diamond",),
        plan=("--margin", "3", "--looks", "4,8", "--temperature", "1.0", "--max-tokens", "65536"),
    ),
    Exam(
        name="mrcr", build=("mrcr", "--needles", "2,4,8"),
        plan=("--margin", "3", "--looks", "1", "--temperature", "0.0", "--max-tokens", "16384"),
    ),
)  # fmt: skip
REHEARSED = (
    Exam(
        name="{model}_nano_product", build=("{model}_nano_product", "--items-each", "8"),
        plan=("--margin", "50", "--looks", "1", "--temperature", "0.0", "--max-tokens", "10"),
    ),
)  # fmt: skip


def rank_steps(model: str, hardware: str, cells: Sequence[str], patterns: Sequence[str]) -> tuple[Step, ...]:
    """The steps of one rank's share on one GPU: `cells`, which `patterns` choose (none: all). They need no weights and no
    engine, so they come first."""
    where = ("--hardware", hardware, "--records", "results/rank")
    chosen = tuple(option for pattern in patterns for option in ("--cell", pattern))
    return (
        Step(
            id="versions", title="Installed versions against pinned ones", hours=0.0,
            commands=_one("fasttrack", "doctor", "--pins", "constraints.txt"),
        ),
        Step(
            id="rank", title="One rank's share on one GPU, against the oracle and the stock path",
            hours=len(cells) * RANK_CELL_HOURS, commands=_one("fasttrack", "grid", "run", model, *where, *chosen),
        ),
        Step(
            id="rank-claims", title="What may be said of one rank's share", hours=0.0,
            commands=(
                *_one("fasttrack", "grid", "claim", model, *where, "--with", "conditions.toml", "-o", "results/rank-claims.json"),
                *_one("fasttrack", "claims", "check", "results/rank-claims.json"),
            ),
        ),
    )  # fmt: skip


def steps(model: str, hardware: str, grid: ServingGrid, fits: Sequence[Pair], *, rehearsal: bool) -> tuple[Step, ...]:
    """The steps of servers, in order. Numerics come before exams, exams before speed: nobody tunes what is wrong."""
    exams = [exam.of(model) for exam in (REHEARSED if rehearsal else PUBLISHED)]
    own = ("--grid", "grid.toml") if rehearsal else ()
    where = ("--hardware", hardware, "--scope", "server", *own, "--records", "results/grid")
    # A server of the small model says of itself what the engine's does not.
    declared = () if rehearsal else ("--declare", "inputs/declare.json")
    plain = next((pair for pair in fits if pair.speculation is Drafting.OFF), fits[0])
    build = [
        Command(arguments=("fasttrack", "exam", "build", *exam.build, "-o", place), makes=place)
        for exam in exams if (place := f"exams/{exam.name}")
    ]  # fmt: skip
    build += [
        Command(arguments=("fasttrack", "exam", "plan", f"exams/{exam.name}", *exam.plan, "-o", place), makes=place)
        for exam in exams if (place := f"plans/{exam.name}.toml")
    ]  # fmt: skip
    plans = [option for exam in exams for option in ("--plan", f"plans/{exam.name}.toml")]
    found = [
        Step(id="exams", title="Freeze exams and plans", hours=0.2, commands=tuple(build)),
        Step(
            id="numerics", title="Token by token, server against server", pair=plain.name,
            hours=0.1 if rehearsal else NUMERICS_HOURS,
            commands=_one(
                "fasttrack", "validate", model, "--stage", "numerics", "--stock-url", URLS["stock"], "--candidate-url",
                URLS["specialised"], "--tokens", "inputs/tokens.jsonl", *declared, "--out", "results/numerics",
            ),
        ),
        Step(
            id="accuracy", title="Exams, server against server", pair=plain.name, hours=0.2 if rehearsal else EXAM_HOURS,
            commands=_one(
                "fasttrack", "validate", model, "--stage", "accuracy", *plans, "--exams", "exams", "--stock-url",
                URLS["stock"], "--candidate-url", URLS["specialised"], "--out", "results/accuracy",
            ),
        ),
    ]  # fmt: skip
    found += [
        Step(
            id=f"grid-{pair.name}", title=f"The performance grid, TP {pair.tp}, speculation {pair.speculation}",
            pair=pair.name, hours=0.2 if rehearsal else grid_hours(pair, grid),
            commands=_one(
                "fasttrack", "grid", "run", model, *where, "--servers", f"servers/{pair.name}.toml", "--cell",
                f"tp{pair.tp}-*-{pair.speculation}", "--raw", "results/raw",
            ),
        )
        for pair in fits
    ]  # fmt: skip
    found.append(
        Step(
            id="claims", title="What may be said of it", hours=0.0,
            commands=(
                *_one("fasttrack", "grid", "claim", model, *where, "-o", "results/claims.json"),
                *_one("fasttrack", "claims", "check", "results/claims.json"),
            ),
        )
    )
    return tuple(found)


def _one(*arguments: str) -> tuple[Command, ...]:
    return (Command(arguments=arguments),)
