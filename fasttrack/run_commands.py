"""What the commands about runs do: status, history, explain, and serving the tools to an agent outside."""

import json
import sys
import time
from pathlib import Path
from typing import NoReturn

import typer

from fasttrack_validation.errors import UserError

from . import lane, model_dir, services, storage, story
from .voice import Voice

WATCH_SECONDS = 1.0


def find(run: str | None) -> Path:
    """The directory of a run on the checkout around the working directory, by default the latest. UserError if none."""
    checkout = model_dir.find_checkout(Path.cwd())
    if checkout is None:
        raise UserError("there is no checkout with a models/ directory here", "run this inside the checkout of the run")
    runs = storage.runs_directory(checkout)
    directories = sorted(path.parent for path in runs.glob("*/run.json"))
    if not directories:
        raise UserError(f"there are no runs under {runs}", "start one: `fasttrack propose MODEL`")
    if run is None:
        return directories[-1]
    found = [directory for directory in directories if directory.name == run]
    if not found:
        names = ", ".join(directory.name for directory in directories[-5:])
        raise UserError(f"no run {run!r} under {runs}", f"runs there: {names}")
    return found[0]


def status(run: str | None, *, watch: bool, as_json: bool) -> None:
    """Prints what a run is doing, once or until it is over."""
    directory = find(run)
    if as_json:
        print(story.read(directory).model_dump_json(indent=2))
    elif watch and sys.stdout.isatty():
        _watch(directory)
    else:
        print("\n".join(story.status_lines(story.read(directory))))
        while watch and (now := story.read(directory)).state == "running":
            time.sleep(WATCH_SECONDS)
            if (later := story.read(directory)) != now:
                print("\n".join(story.status_lines(later)), flush=True)


def history(run: str | None, *, as_json: bool) -> None:
    """Prints a run's attempts."""
    told = story.read(find(run))
    if as_json:
        print(json.dumps([attempt.model_dump(mode="json") for attempt in told.attempts], indent=2))
    else:
        print("\n".join(story.history_lines(told)))


def explain(run: str | None, *, as_json: bool) -> None:
    """Prints a run as a story."""
    told = story.read(find(run))
    print(told.model_dump_json(indent=2) if as_json else story.explain(told), end="\n" if as_json else "")


def mcp(
    model: str, op: str, *, http: bool, port: int, resume: bool, run: str | None, as_json: bool, **options: object
) -> NoReturn:  # fmt: skip
    """Runs the lane with agent external, whose tools are served meanwhile."""
    from .agents import mcp_server
    from .agents.external import External
    from .commands import end

    external = External()
    mcp_server.server(external)  # refuses now where the package is missing
    parts = services.default()
    # With stdio, standard output belongs to the protocol.
    voice = Voice(quiet=as_json) if http else Voice(to=sys.stderr)
    if http:

        def ready(url: str, token: str) -> None:
            path = storage.home() / "mcp" / f"{url.rsplit(':', 1)[1].partition('/')[0]}.json"
            mcp_server.write_token(path, url, token)
            print(f"tools at {url}; the token is in {path}", file=sys.stderr, flush=True)

        serving = mcp_server.serve_http(external, port, ready)
    else:
        serving = mcp_server.serve_stdio(external)
    said = "the run stopped before its end"
    try:
        if resume:
            outcome = lane.resume(model, op, run, None, parts, voice, external)
        else:
            outcome = lane.propose(
                lane.Options(model=model, op=op, agent="external", external=external, **options), parts, voice
            )
        said = "\n".join(
            [
                outcome.message,
                *outcome.notes,
                *(f"{n}: {v}" for n in ("branch", "report", "body") if (v := getattr(outcome, n))),
            ]
        )
    except UserError as error:
        said = f"{error.what}; {error.how}"
        raise
    finally:
        external.close(said)
        # A client fetches its last answer, and closes; one that does not is not waited for.
        serving.join(timeout=10)
    if http:
        end(outcome, as_json)
    raise typer.Exit(outcome.exit_code)


def _watch(directory: Path) -> None:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    def shown() -> tuple[str, Group]:
        told = story.read(directory)
        return told.state, Group(*(Text(line) for line in story.status_lines(told)))

    with Live(console=Console(), auto_refresh=False) as live:
        while True:
            state, text = shown()
            live.update(text, refresh=True)
            if state != "running":
                return
            time.sleep(WATCH_SECONDS)
