"""A candidate as a FlashInfer Trace solution: its files as they are, an adapter, and a `run` of the definition's shape.

What a candidate is, is the judge's business; here it is files, an entry and a configuration.
"""

import json
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import PurePosixPath

from ...errors import UserError
from ...performance.hardware import profile
from .export import OpExport
from .schema import BuildSpec, Solution, Source

_NAME = re.compile(r"[A-Za-z0-9_.-]+")


def solution(
    export: OpExport, name: str, files: Mapping[str, str], entry: str, config: Mapping[str, object],
    *, author: str = "fasttrack", hardware: str = "h200",
) -> Solution:  # fmt: skip
    """The solution called `name`. `hardware` is what `ctx.hardware` says where there is no GPU to ask.

    Raises UserError for a name that is no file name, or an empty candidate file (the format has none).
    """
    if not _NAME.fullmatch(name):
        raise UserError(f"{name!r} is no name for a solution", "use letters, digits, dots, dashes and underscores")
    empty = [path for path, text in files.items() if not text]
    if empty:
        raise UserError(f"{empty[0]} is empty, which the format does not allow", "put a comment into it")
    adapter = (resources.files(__package__) / "adapter.py").read_text("utf-8")
    sources = [Source(path="run.py", content=_run(export, entry, config, hardware))]
    sources.append(Source(path="adapter.py", content=adapter))
    sources += [Source(path=f"candidate/{path}", content=text) for path, text in files.items()]
    return Solution(
        name=name,
        definition=export.name,
        author=author,
        spec=BuildSpec(
            language="triton", target_hardware=("cuda",), entry_point="run.py::run", dependencies=("torch", "triton"),
            destination_passing_style=True,
        ),
        sources=tuple(sources),
        description=f"{entry} with {json.dumps(dict(config), sort_keys=True)}",
    )  # fmt: skip


def _run(export: OpExport, entry: str, config: Mapping[str, object], hardware: str) -> str:
    card, found = profile(hardware), export.symbols
    facts = {
        "static": [name for name in export.inputs if export.specs[name].role == "static"],
        "states": {new: state for state, new in export.states.items()},
        "sizes": {axis: list(place) for axis, place in found.sizes.items()},
        "strides": {axis: list(place) for axis, place in found.strides.items()},
        "fixed": dict(found.fixed),
        "config": dict(config),
        "hardware": {
            "name": card.name, "capability": card.target, "multiprocessors": card.multiprocessors,
            "max_shared": card.shared_per_block,
        },
    }  # fmt: skip
    *packages, module = PurePosixPath(entry).with_suffix("").parts
    lines = ",\n".join(f"    {key!r}: {value!r}" for key, value in facts.items())
    parameters = ", ".join((*export.inputs, *export.outputs))

    def table(names) -> str:
        return "{" + ", ".join(f"{name!r}: {name}" for name in names) + "}"

    return (
        f'"""{export.name} by {entry}, as FlashInfer-Bench calls it."""\n\n'
        "from .adapter import Adapter\n"
        f"from .{'.'.join(('candidate', *packages))} import {module} as candidate\n\n"
        f"FACTS = {{\n{lines},\n}}\n\n_ADAPTER = Adapter(candidate, FACTS)\n\n\n"
        f"def run({parameters}):\n"
        '    """Fills the outputs, which come last."""\n'
        f"    _ADAPTER({table(export.inputs)}, {table(export.outputs)})\n"
    )
