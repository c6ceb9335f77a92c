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
from fasttrack_validation.errors import UserError
from fasttrack_validation.performance.hardware import datasheet, profile
from fasttrack_validation.performance.serving_grid import ServingGrid, serving_grid

from .. import model_dir, storage
from ..server_grid import ServerGrid
from . import inputs, known, plan
from .plan import Kit

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


def write(model: str, hardware: str, out: Path, *, gpus: int | None, rehearsal: bool) -> Kit:
    """The kit of `model` for `hardware` in the new directory `out`.

    Raises UserError for hardware that the contract's grid is not about, a directory that is there, or where no pair of
    servers fits `gpus`.
    """
    if out.exists():
        raise UserError(f"{out} is there already", "name a directory that is not")
    directory = model_dir.load(model)
    published = serving_grid(directory.manifest.model.contract)
    if hardware != published.hardware:
        datasheet(hardware)
        raise UserError(f"{model} has no grid of servers on {hardware}", f"its grid is about {published.hardware}")
    grid = strict.parse(REHEARSAL_GRID.format(model=model), ServingGrid, "grid.toml") if rehearsal else published
    linked = 2 if rehearsal else gpus or datasheet(hardware).link_domain
    fits, left_out = plan.pairs(grid, linked)
    if not fits:
        raise UserError(f"no pair of servers fits {linked} GPUs", "; ".join(f"{n} {why}" for n, why in left_out.items()))
    card = None if rehearsal else profile(hardware)
    label = "cpu" if rehearsal else hardware
    steps, unknown = _known(plan.steps(model, "cpu" if rehearsal else hardware, grid, fits, rehearsal=rehearsal))
    commit, bundle = _sources(directory.path, rehearsal)
    constraints = _constraints(directory.path)
    kit = Kit(
        model=model, hardware=label, rehearsal=rehearsal, commit=commit,
        subject=ServerGrid(directory, grid, label).subject, validation=digests.package_digest(),
        requirement=plan.Requirement(
            gpu=plan.gpu_name(hardware) if card else None, gpus=max(pair.gpus for pair in fits) if card else 0,
            driver="580" if card else None, disk_gb=3000 if card else 1, memory_gb=500 if card else 2,
            programs=("curl", "tar", "ssh-keygen", *(("vllm",) if card else ())),
        ),
        pairs=fits, left_out={**left_out, **unknown}, steps=steps,
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
    storage.sync_directory(out.parent)
    return kit


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
    }  # fmt: skip
    (out / "servers").mkdir()
    (out / "inputs").mkdir()
    texts = {
        "kit.json": kit.model_dump_json(indent=1) + "\n", "README.md": _rendered("kit_readme.md.j2", facts),
        "run.sh": _rendered("kit_run.sh.j2", facts), "serve.sh": _rendered("kit_serve.sh.j2", facts),
        "check_machine.py": files("fasttrack.kit").joinpath("machine.py").read_text("utf-8"),
        "constraints.txt": constraints, "inputs/tokens.jsonl": inputs.tokens(contract, rehearsal=kit.rehearsal),
    }  # fmt: skip
    for pair in kit.pairs:
        texts[f"servers/{pair.name}.toml.in"] = _rendered("kit_servers.toml.j2", {**facts, "pair": pair})
    if not kit.rehearsal:
        texts["inputs/declare.json.in"] = _rendered("kit_declare.json.j2", facts)
    if kit.rehearsal:
        texts["grid.toml"] = REHEARSAL_GRID.format(model=kit.model)
    for name, text in texts.items():
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


def _sources(directory: Path, rehearsal: bool) -> tuple[str, bytes | None]:
    """(commit, the sources at it as an archive), of the checkout that holds the model directory; an installed package names
    its version, and has no archive. A rehearsal runs what is installed here.

    Raises UserError for a checkout with changes that no commit has.
    """
    root = directory.parent.parent
    git = ["git", "-C", str(root)]
    if not (root / ".git").exists() or not (root / "pyproject.toml").is_file():
        return f"fasttrack {version('fasttrack')}", None
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    if rehearsal:
        return commit, None
    changed = subprocess.run([*git, "status", "--porcelain", "--untracked-files=no"], capture_output=True, text=True)
    if changed.returncode or changed.stdout.strip():
        raise UserError(
            f"{root} has changes that are not committed: a kit names the commit that it measures",
            "commit or stash them",
        )
    archive = [*git, "archive", "--format=tar.gz", f"--prefix={SOURCES}/", "HEAD"]
    return commit, subprocess.run(archive, capture_output=True, check=True).stdout


def _constraints(directory: Path) -> str:
    """The checkout's constraints, else what is installed here."""
    path = directory.parent.parent / "constraints.txt"
    if path.is_file():
        return path.read_text("utf-8")
    from importlib.metadata import distributions

    found = sorted({f"{one.name}=={one.version}" for one in distributions() if one.name})
    return "\n".join(found) + "\n"
