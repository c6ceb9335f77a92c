"""Writes a kit's directory: whole, or not at all."""

import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import jinja2

from fasttrack_validation import digests, strict
from fasttrack_validation.contracts.grid import CellSpec, Span
from fasttrack_validation.durable import sync_directory
from fasttrack_validation.errors import UserError
from fasttrack_validation.performance.hardware import datasheet
from fasttrack_validation.performance.serving_grid import ServingGrid, serving_grid

from .. import model_dir, services
from ..grid import Grid, Standing
from ..model_dir import ModelDirectory
from ..server_grid import subject
from . import inputs, known, origin, plan
from .plan import Kit, Pair

SOURCES = "fasttrack-source"
REHEARSAL_GRID = """# The published grid's shape, small enough for a CPU.
hardware = "cpu"
model = "{model}-nano"
draft = "none"
osl = 6
source = "a rehearsal"
draft_tokens = 7
forced_acceptance = 3.84
forced_source = "no cell forces"

[[block]]
load = "decode_only"
tp = [1]
concurrency = [1]
isl = [16]
speculation = ["off"]

[[block]]
load = "mixed_prefill"
tp = [1]
concurrency = [2]
isl = [16]
speculation = ["off"]
"""


CONDITIONS = """# Of one rank's share, what no measurement says; check_machine.py fills it in.
[hardware]
clocks_locked = @CLOCKS_LOCKED@
"""
LAYER_MEMORY_GB, STEP_MEMORY_GB = 24, 96
"""Of the host, for one rank's cells: what one draws lies there for the oracle, 12 GB of a layer at most, 69 of a step"""


def write(
    model: str, hardware: str, out: Path, *, gpus: int | None, rehearsal: bool, cells: Sequence[str] = ()
) -> Kit:  # fmt: skip
    """The kit of `model` for `hardware` in the new directory `out`: one rank's share (of its cells those that match one of
    `cells`) where the model claims the hardware, whole servers where the contract's grid of servers is about it.

    Raises UserError for other hardware, cells that are none or cannot be run, a directory that is there, or where no pair
    of servers fits `gpus`.
    """
    if out.exists():
        raise UserError(f"{out} is there already", "name a directory that is not")
    directory = model_dir.load(model)
    published = serving_grid(directory.manifest.model.contract)
    ranks = () if rehearsal else _ranks(directory, hardware, cells)
    if hardware == published.hardware:
        grid = strict.parse(REHEARSAL_GRID.format(model=model), ServingGrid, "grid.toml") if rehearsal else published
        linked = 2 if rehearsal else gpus or datasheet(hardware).link_domain
        fits, left_out = plan.pairs(grid, linked)
        if not fits:
            why = "; ".join(f"{name} {why}" for name, why in left_out.items())
            raise UserError(f"no pair of servers fits {linked} GPUs", why)
        if rehearsal:
            left_out["rank"] = "one rank's share is measured on a GPU"
    elif ranks:
        grid, fits = published, ()
        left_out = {"servers": f"the grid of servers of {model} is about {published.hardware}"}
    else:
        what = "grid of servers to rehearse" if rehearsal else "grid"
        raise UserError(f"{model} has no {what} on {hardware}", f"its grid of servers is about {published.hardware}")
    label = "cpu" if rehearsal else hardware
    planned = (
        *(plan.rank_steps(model, label, ranks, cells) if ranks else ()),
        *(plan.steps(model, label, grid, fits, rehearsal=rehearsal) if fits else ()),
    )
    steps, unknown = _known(planned)
    commit, validation, bundle = _sources(directory.path, rehearsal)
    constraints = _constraints(directory.path)
    kit = Kit(
        model=model, hardware=label, rehearsal=rehearsal, commit=commit, subject=subject(directory), validation=validation,
        requirement=_requirement(None if rehearsal else hardware, fits, ranks),
        pairs=fits, cells=tuple(cell.key for cell in ranks), left_out={**left_out, **unknown}, steps=steps,
        pins=tuple(line for line in constraints.splitlines() if line and not line.startswith("#")),
    )  # fmt: skip
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        _fill(partial, directory.manifest.model.contract, kit, grid, constraints, bundle)
        os.chmod(partial, 0o755)
        os.rename(partial, out)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise UserError(f"cannot write {out}: {error.strerror or error}", "free space or fix the permissions") from error
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    sync_directory(out.parent)
    return kit


def _ranks(directory: ModelDirectory, hardware: str, patterns: Sequence[str]) -> tuple[CellSpec, ...]:
    """Cells of one rank's grid that a kit measures; none where the model claims nothing for the hardware, or has no grid."""
    name = datasheet(hardware).name
    contract = services.contract(directory.manifest.model.contract)
    if not contract.has_grid or all(claim.hardware != name for claim in directory.manifest.envelope):
        return ()
    cells = Grid(directory, contract, name).cells(patterns)
    found = tuple(cell.spec for cell in cells if cell.standing is not Standing.EXCLUDED)
    if not found:
        raise UserError(f"no such cell can be run: {cells[0].reason}", "choose others: `fasttrack grid plan`")
    return found


def _requirement(hardware: str | None, fits: Sequence[Pair], ranks: Sequence[CellSpec]) -> plan.Requirement:
    """What the machine has to be. `hardware`: None for a rehearsal."""
    if hardware is None:
        return plan.Requirement(gpu=None, gpus=0, disk_gb=1, memory_gb=2, programs=("curl", "tar"))
    card = {"gpu": plan.gpu_name(hardware), "driver": "580"}
    if fits:
        return plan.Requirement(
            **card, gpus=max(pair.gpus for pair in fits), disk_gb=3000, memory_gb=500, programs=("curl", "tar", "vllm"),
        )  # fmt: skip
    memory = STEP_MEMORY_GB if any(cell.span is Span.STEP for cell in ranks) else LAYER_MEMORY_GB
    return plan.Requirement(**card, gpus=1, disk_gb=20, memory_gb=memory, programs=("tar",), stated=())


def _known(steps: Sequence[plan.Step]) -> tuple[tuple[plan.Step, ...], dict[str, str]]:
    """(steps whose commands this version knows, the others with why)."""
    unknown = {
        step.id: why for step in steps for command in step.commands if (why := known.why_not(command.arguments))
    }  # fmt: skip
    return tuple(step for step in steps if step.id not in unknown), unknown


def _fill(
    out: Path, contract: str, kit: Kit, grid: ServingGrid, constraints: str, bundle: bytes | None
) -> None:  # fmt: skip
    bundled = f"{SOURCES}.tar.gz" if bundle else None
    spec = {"method": "dspark", "model": grid.draft, "num_speculative_tokens": grid.draft_tokens,
            "draft_sample_method": "probabilistic"}  # fmt: skip
    forced = {**spec, "rejection_sample_method": "synthetic", "synthetic_acceptance_length": grid.forced_acceptance}
    facts = {
        "kit": kit, "grid": grid, "ports": plan.PORTS, "urls": plan.URLS, "bundled": bundled,
        "rounds": 5 if kit.rehearsal else plan.ROUNDS,
        "pairs": {pair.name: pair for pair in kit.pairs}, "served": f"{kit.model}-nano" if kit.rehearsal else kit.model,
        "natural": json.dumps(spec), "forced": json.dumps(forced), "forced_source": grid.forced_source,
        "checkpoint": grid.model, "wait_s": 300 if kit.rehearsal else 7200,
        "extras": ",".join([*(["exams", "servers"] if kit.pairs else []), *(["cuda", "gpu"] if kit.cells else [])]),
    }  # fmt: skip
    texts = {
        "kit.json": kit.model_dump_json(indent=1) + "\n", "README.md": _rendered("kit_readme.md.j2", facts),
        "run.sh": _rendered("kit_run.sh.j2", facts),
        "check_machine.py": files("fasttrack.kit").joinpath("machine.py").read_text("utf-8"),
        "constraints.txt": constraints,
    }  # fmt: skip
    if kit.cells:
        texts["conditions.toml.in"] = CONDITIONS
    if kit.pairs:
        texts["serve.sh"] = _rendered("kit_serve.sh.j2", facts)
        texts["inputs/tokens.jsonl"] = inputs.tokens(contract, rehearsal=kit.rehearsal)
        if not kit.rehearsal:
            texts["inputs/declare.json.in"] = _rendered("kit_declare.json.j2", facts)
    for pair in kit.pairs:
        texts[f"servers/{pair.name}.toml.in"] = _rendered("kit_servers.toml.j2", {**facts, "pair": pair})
    if kit.rehearsal:
        texts["grid.toml"] = REHEARSAL_GRID.format(model=kit.model)
    for name, text in texts.items():
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text(text, "utf-8")
        (out / name).chmod(0o755 if name.endswith((".sh", ".py")) else 0o644)
    if bundle:
        (out / bundled).write_bytes(bundle)


def _rendered(name: str, facts: dict) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(str(files("fasttrack.templates"))), undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True, trim_blocks=True, autoescape=False,
        comment_start_string="<%#", comment_end_string="#%>",  # "{#" is an array's length in a shell
    )  # fmt: skip
    environment.filters["quote"] = lambda value: shlex.quote(str(value))
    return re.sub(r"\n{3,}", "\n\n", environment.get_template(name).render(facts))


def _sources(directory: Path, rehearsal: bool) -> tuple[str, str, bytes | None]:
    """(commit, digest of exams and harness at it, the sources as an archive), of the checkout that holds the model
    directory; an installed package names its version, and has no archive. A rehearsal runs what is installed here.

    Raises UserError for a checkout with changes that no commit has.
    """
    root = directory.parent.parent
    git = ["git", "-C", str(root)]
    if not (root / ".git").exists() or not (root / "pyproject.toml").is_file():
        return f"fasttrack {version('fasttrack')}", digests.package_digest(), None
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    if rehearsal:
        return commit, digests.package_digest(), None
    changed = subprocess.run([*git, "status", "--porcelain", "--untracked-files=no"], capture_output=True, text=True)
    if changed.returncode or changed.stdout.strip():
        raise UserError(
            f"{root} has changes that are not committed: a kit names the commit that it measures",
            "commit or stash them",
        )
    archive = [*git, "archive", "--format=tar.gz", f"--prefix={SOURCES}/", "HEAD"]
    bundle = subprocess.run(archive, capture_output=True, check=True).stdout
    return commit, origin.committed_validation(root, commit), bundle


def _constraints(directory: Path) -> str:
    """The checkout's constraints, else what is installed here."""
    path = directory.parent.parent / "constraints.txt"
    if path.is_file():
        return path.read_text("utf-8")
    from importlib.metadata import distributions

    found = sorted({f"{one.name}=={one.version}" for one in distributions() if one.name})
    return "\n".join(found) + "\n"
