"""The nano model's plain path behind the server that `fasttrack serve` starts, with a mistake planted, or none.

    nano_server.py NAME      prints the address; NAME is a key of FAULTS, or "none"
"""

import json
import os
import sys
from collections import Counter

import torch

from fasttrack.serving.app import app
from fasttrack.serving.build import build
from fasttrack_validation.contracts.kimi_k3.nano import served
from fasttrack_validation.contracts.kimi_k3.step.kda import Core, Kda
from fasttrack_validation.generation.engine import Engine
from fasttrack_validation.generation.paths import Backend, Setup


class _GatesOfNeighbours(Core):
    """Every head takes the output gate of its neighbour."""

    def output_gate(self, step):
        return super().output_gate(step).roll(1, dims=1)


class _Forgets(Core):
    """Nothing is kept of a state from one token to the next."""

    def decay(self, step):
        return super().decay(step) * 0


FAULTS = {"none": None, "gates_rolled": _GatesOfNeighbours, "forgets": _Forgets}


class Path(served.Plain):
    """As `PathProcess`, in this process. `launches` counts decode steps, as kernels would be counted."""

    def __init__(self, setup: Setup, fault: str) -> None:
        super().__init__(setup, served.PUBLISHED)
        self.setup, self.pid, self.launches = setup, os.getpid(), Counter()
        if core := FAULTS[fault]:
            kda = Kda(self.architecture, 1, served.PUBLISHED)
            kda.core = core(self.architecture, 1, served.PUBLISHED)
            self.model.kda = kda

    def decode(self, session, token):
        self.launches["decode_step"] += 1
        return super().decode(session, token)


def main(fault: str) -> None:
    import uvicorn

    torch.set_num_threads(1)
    setup = Setup(model="kimi_k3", backend=Backend.PLAIN, checkpoint=served.CHECKPOINT, context=256, sessions=4)
    path = Path(setup, fault)
    with Engine(path, served) as engine:
        config = uvicorn.Config(app(engine, build("nano", path.card, "prefill")), port=0, log_level="warning", lifespan="off")

        class Announcing(uvicorn.Server):
            async def startup(self, sockets=None):
                await super().startup(sockets)
                port = self.servers[0].sockets[0].getsockname()[1]
                print(json.dumps({"url": f"http://127.0.0.1:{port}/v1"}), flush=True)

        Announcing(config).run()


if __name__ == "__main__":
    main(sys.argv[1])
