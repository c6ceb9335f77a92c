"""The files of a new model, made from the templates and the answers: pure, path relative to the checkout -> text."""

import importlib.resources
import json
from importlib.resources.abc import Traversable

import jinja2

from .. import dispatch
from .answers import Answers

_SUFFIX = ".j2"
_KERNEL, _CONFIG = "kernels/rms_norm.py", {"num_warps": 8}


def render(name: str, answers: Answers) -> tuple[dict[str, str], dict[str, str]]:
    """(what people review, what goes the lane): the exam with its tests, and the model directory."""
    root = importlib.resources.files("fasttrack.templates") / "model"
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True, autoescape=False
    )
    # TOML reads what JSON writes of a string, DEL apart, which answers do not hold.
    environment.filters["quoted"] = lambda text: json.dumps(text, ensure_ascii=False)
    facts = answers.model_dump() | {
        "name": name, "cards": answers.cards, "buckets": answers.buckets, "held_out": answers.held_out,
        "rms_norm_eps": repr(answers.rms_norm_eps),
    }  # fmt: skip

    def made(source: Traversable) -> str:
        return environment.from_string(source.read_text("utf-8")).render(facts)

    exam = {f"validation/contracts/{name}/{path}": made(source) for path, source in _below(root / "contract")}
    exam[f"tests/validation/contracts/test_{name}.py"] = made(root / "tests" / f"exam.py{_SUFFIX}")
    exam[f"tests/models/test_{name}_kernels.py"] = made(root / "tests" / f"kernels.py{_SUFFIX}")
    directory = {f"models/{name}/{path}": made(source) for path, source in _below(root / "directory")}
    directory[f"models/{name}/dispatch/rms_norm.toml"] = dispatch.render(_table(answers))
    return exam, directory


def _below(root: Traversable, prefix: str = "") -> list[tuple[str, Traversable]]:
    """(path without the suffix, template) of every template below `root`."""
    found = []
    for entry in sorted(root.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            found += _below(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(_SUFFIX):
            found.append((prefix + entry.name.removesuffix(_SUFFIX), entry))
    return found


def _table(answers: Answers) -> dispatch.Table:
    """The default configuration everywhere: nothing was measured, and the table says so."""
    ranges = dispatch.buckets(answers.buckets, (1, answers.max_rows))
    return dispatch.Table(
        entry=tuple(
            dispatch.Entry(hardware=hardware, tp=tp, rows=rows, kernel=_KERNEL, config=_CONFIG, basis="modelled")
            for hardware in answers.hardware for tp in answers.tp for rows in ranges
        )
    )  # fmt: skip
