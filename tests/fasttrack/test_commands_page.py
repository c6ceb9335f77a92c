"""docs/commands.md is what the command line says of itself: every command once, with its examples."""

import inspect
import os
import re
from collections.abc import Iterator
from pathlib import Path

import typer
from fasttrack.cli import app

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/commands.md"
HEAD = """# Commands

What each command says of itself, drawn from the command line; `fasttrack COMMAND --help` has the options. After a change:
`FASTTRACK_GOLDEN=write python -m pytest tests/fasttrack/test_commands_page.py`.
"""


def walk(command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Every command and group below `command`, in the order of `--help`."""
    for name, below in getattr(command, "commands", {}).items():
        yield (*path, name), below
        yield from walk(below, (*path, name))


COMMANDS = dict(walk(typer.main.get_command(app)))
LEAVES = {path: command for path, command in COMMANDS.items() if not hasattr(command, "commands")}


def page() -> str:
    """The whole of docs/commands.md."""
    parts = [HEAD]
    for path, command in COMMANDS.items():
        text = inspect.cleandoc(command.help or "")
        parts.append(f"{'#' * (len(path) + 1)} fasttrack {' '.join(path)}\n\n{text}\n")
    return "\n".join(parts)


def test_the_page_is_what_the_commands_say():
    if os.environ.get("FASTTRACK_GOLDEN") == "write":
        PAGE.write_text(page(), "utf-8")
    assert PAGE.read_text("utf-8") == page(), f"commands have changed; {HEAD.splitlines()[-1]}"
    titles = re.findall(r"^#{2,3} fasttrack (.+)$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert titles == [" ".join(path) for path in COMMANDS] and len(titles) == len(set(titles))


def test_every_command_has_an_example_that_names_it_and_options_that_exist():
    for path, command in LEAVES.items():
        name, known = f"fasttrack {' '.join(path)}", {option for given in command.params for option in given.opts}
        examples = re.findall(rf"`({name}\b[^`]*)`", command.help or "")
        assert examples and "Example" in command.help, name
        used = {word.split("=")[0] for text in examples for word in re.findall(r"(?<!\S)--?[a-z][a-z-]*", text)}
        assert used <= known | {"-o"}, (name, used - known)


def test_the_readme_tells_of_every_command_and_of_no_other():
    table = (ROOT / "README.md").read_text("utf-8").split("## Commands")[1].split("\n## ")[0]
    first = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    told = {name for cell in first for text in re.findall(r"`([^`]+)`", cell) for name in _words(text)}
    assert {path[0] for path in COMMANDS} <= told
    groups = {path[0] for path, command in COMMANDS.items() if hasattr(command, "commands")}
    below = {path[1] for path in COMMANDS if len(path) == 2}
    assert told <= {path[0] for path in COMMANDS} | below, told - {path[0] for path in COMMANDS} - below
    assert groups <= told


def _words(text: str) -> list[str]:
    """Names of commands in `fasttrack trace export MODEL` or `verify NAME`: the lower-case words that come first."""
    words = text.removeprefix("fasttrack ").split()
    names = []
    for word in words:
        if not re.fullmatch(r"[a-z][a-z-]*", word):
            break
        names.append(word)
    return names
