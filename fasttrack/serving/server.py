"""Starting and stopping: path, engine and HTTP, on the loopback interface."""

import socket
from collections.abc import Callable

from fasttrack_validation.errors import UserError
from fasttrack_validation.generation.asked import ScoredBy
from fasttrack_validation.generation.engine import Engine
from fasttrack_validation.generation.paths import Setup
from fasttrack_validation.generation.process import PathFailed, PathProcess
from fasttrack_validation.generation.small import small_model

from .build import Build, build

HOST = "127.0.0.1"


def serve(
    setup: Setup, *, name: str, port: int, prompt_scores: ScoredBy, waiting: int, ready: Callable[[str, Build], None]
) -> None:
    """Serves until SIGINT or SIGTERM. `ready` gets the address once requests are taken.

    Raises UserError for a port that is taken, packages that are missing, or what the path says.
    """
    try:
        import uvicorn

        from .app import app
    except ModuleNotFoundError as error:
        raise UserError(f"the package {error.name} is not installed", "pip install 'fasttrack[serve]'") from error
    bound = _bound(port)
    try:
        with PathProcess(setup) as path, Engine(path, small_model(setup.model), waiting=waiting) as engine:
            account = build(name, path.card, prompt_scores)
            config = uvicorn.Config(
                app(engine, account), log_level="warning", access_log=False, lifespan="off",
                timeout_graceful_shutdown=2, timeout_keep_alive=75, server_header=False,
            )  # fmt: skip
            address = f"http://{HOST}:{bound.getsockname()[1]}"

            class Announcing(uvicorn.Server):
                async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                    await super().startup(sockets)
                    ready(address, account)

            Announcing(config).run(sockets=[bound])
    except PathFailed as failure:
        raise UserError(f"the model could not be loaded: {failure}", "see the lines above") from failure
    finally:
        bound.close()


def _bound(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((HOST, port))
    except OSError as error:
        bound.close()
        raise UserError(f"port {port}: {error.strerror}", "name another one with --port; 0 takes a free one") from error
    return bound
