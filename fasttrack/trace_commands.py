"""The commands under `fasttrack trace`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import typer

from fasttrack_validation import strict
from fasttrack_validation.contracts.base import OpContract
from fasttrack_validation.contracts.trace import files, schema
from fasttrack_validation.errors import UserError
from fasttrack_validation.judge.candidate import Candidate

from . import commands, model_dir, services, verdict_text


def export(
    model: str, op: str, out: Path, *, tp: int, workloads: Sequence[str], distribution: str, seed: int,
    candidate: Path | None, config: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Writes an op, and a candidate, as FlashInfer Trace files."""
    from fasttrack_validation.contracts.trace import export as exporter
    from fasttrack_validation.contracts.trace.solution import solution

    directory = model_dir.load(model)
    exam = exporter.OpExport(services.contract(directory.manifest.model.contract).op(op), tp)
    exported = None
    if candidate is not None:
        # Read first: a candidate that cannot be exported leaves nothing behind.
        given = Candidate.from_path(candidate, op, commands.parsed_config(config))
        given = commands.with_defaults(given, directory, op)
        name = f"{exam.name}-{Path(given.entry).stem}-{given.digest()[:12]}"
        exported = solution(exam, name, given.files, given.entry, given.config)
    elif config is not None:
        raise UserError("--config without --candidate", "give the candidate that it configures")
    written = exporter.write(exam, out, workloads=workloads, distribution=distribution, seed=seed)
    paths = [written.definition, written.workloads, *written.values]
    if exported is not None:
        path = Path("solutions") / exported.author / op / exam.name / f"{exported.name}.json"
        exporter.put(out / path, files.to_json(exported))
        paths.append(path)
    if as_json:
        print(json.dumps({"root": str(out), "files": [path.as_posix() for path in paths]}, indent=2))
    else:
        print("\n".join(str(out / path) for path in paths))


def check(paths: Sequence[Path], *, as_json: bool) -> NoReturn:
    """Reads each file; 1 where one does not fit."""
    results = []
    for path in paths:
        try:
            kind, error = _read(path), None
        except UserError as refused:
            kind, error = None, {"what": refused.what, "how": refused.how}
        results.append({"file": str(path), "kind": kind, "error": error})
    if as_json:
        print(json.dumps(results, indent=2))
    else:
        for result in results:
            if result["error"] is None:
                print(f"ok   {result['file']}: {result['kind']}")
            else:
                print(f"FAIL {result['error']['what']}\n     {result['error']['how']}")
    raise typer.Exit(1 if any(result["error"] for result in results) else 0)


def import_(
    definition: Path, workloads: Path, judging: Path, root: Path | None, *, candidate: Path | None, config: str | None,
    unsafe_no_sandbox: bool, as_json: bool,
) -> NoReturn:  # fmt: skip
    """Loads a definition as an exam, and judges a candidate on it where one is given."""
    from fasttrack_validation.contracts.trace.import_definition import imported

    # One read: whether Triton and torch fit is said before a sandbox starts.
    parts = services.default()
    root = root or definition.parent
    with imported(definition, workloads, judging, root, unsafe_no_sandbox=unsafe_no_sandbox) as model:
        (op,) = model.ops.values()
        if candidate is None:
            print(json.dumps(_described(op), indent=2) if as_json else "\n".join(_lines(op)))
            raise typer.Exit()
        given = Candidate.from_path(candidate, op.op, commands.parsed_config(config))
        with parts.judge(model, unsafe_no_sandbox) as judge:
            verdict = judge.screen(given)
    print(verdict.model_dump_json(indent=2) if as_json else "\n".join(verdict_text.verdict_lines(verdict)))
    raise typer.Exit(verdict_text.STATUS_CODE[verdict.status])


def _read(path: Path) -> str:
    """What the file is. Raises UserError for what it is not."""
    if path.suffix == ".jsonl":
        count = len(files.read_traces(path))
        return f"{count} trace{'' if count == 1 else 's'}"
    try:
        document = json.loads(path.read_text("utf-8")) if path.suffix == ".json" else None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read: {error}", "check path, encoding and syntax") from error
    if not isinstance(document, dict) or not {"reference", "sources"} & set(document):
        raise UserError(f"{path}: is no definition, no solution and no .jsonl file of traces",
                        "a definition has `reference`, a solution has `sources`")  # fmt: skip
    kind = schema.Definition if "reference" in document else schema.Solution
    return f"{kind.__name__.lower()} {strict.read(path, kind).name}"


def _described(op: OpContract) -> dict:
    first = op.workloads()[0]
    return {
        "op": op.op,
        "tensors": [{"name": s.name, "role": s.role, "dtype": s.dtype, "shape": s.shape} for s in op.tensors(first)],
        "workloads": {workload.name: workload.axes for workload in op.workloads()},
        "distributions": dict(op.distributions),
        "comparisons": [comparison.model_dump(mode="json") for comparison in op.comparisons],
        "not_examined": dict(op.not_examined),
    }


def _lines(op: OpContract) -> list[str]:
    found = _described(op)
    shapes = [f"  {t['role']:6} {t['name']} {t['dtype']} {list(t['shape'])}" for t in found["tensors"]]
    return [
        f"{op.op}, at workload {op.workloads()[0].name}:", *shapes,
        f"workloads: {', '.join(found['workloads'])}",
        *(f"values {name}: {line}" for name, line in found["distributions"].items()),
        *(f"not examined, {what}: {why}" for what, why in found["not_examined"].items()),
    ]  # fmt: skip
