"""The command `fasttrack serve`."""

import json
import sys
from pathlib import Path

import torch

from fasttrack_validation.errors import UserError
from fasttrack_validation.generation.paths import Backend, Setup
from fasttrack_validation.generation.small import small_model

from . import model_dir
from .serving.build import Build
from .serving.server import serve as run

_DECODE_ONLY = (Backend.STOCK, Backend.LATENCY_SPECIALIZED)


def serve(
    model: str, backend: str, checkpoint: Path | None, *, port: int, device: str, tp: int, context: int | None, sessions: int,
    waiting: int, prompt_scores: str | None, served_name: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Serves until it is stopped."""
    if backend not in [*Backend]:
        raise UserError(f"no backend is called {backend!r}", f"known: {', '.join(Backend)}")
    if prompt_scores not in (None, "prefill", "decode"):
        raise UserError(f"--prompt-scores {prompt_scores!r}", "name prefill or decode")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if tp > 1 and backend in _DECODE_ONLY and device != "cpu":
        raise UserError(f"backend {backend} serves one rank on a GPU", "leave --tp out, or add --device cpu")
    manifest = model_dir.load(model)
    contract = manifest.manifest.model.contract
    setup = Setup(
        model=contract, backend=Backend(backend),
        checkpoint=(checkpoint or small_model(contract).CHECKPOINT).resolve(),
        directory=manifest.path.resolve() if backend == Backend.LATENCY_SPECIALIZED else None, device=device, tp=tp,
        context=context, sessions=sessions,
    )  # fmt: skip

    def ready(address: str, build: Build) -> None:
        card = build.path
        if as_json:
            found = {"url": f"{address}/v1", "fingerprint": build.fingerprint, "build": build.model_dump(mode="json")}
            print(json.dumps(found), flush=True)
            return
        print(f"{build.model} at {address}/v1 (Ctrl-C stops it)")
        print(f"  backend {card.backend}: prompts by {card.prefill}, generated tokens by {card.decode}")
        print(f"  log-probabilities of prompts by {build.prompt_scores}; {card.dtype}, TP {card.tp}, {card.device}")
        print(f"  context {card.context} tokens; checkpoint {card.revision[:12]}; build {build.fingerprint}")
        sys.stdout.flush()

    if not as_json:
        print(f"loading {setup.checkpoint} ...", file=sys.stderr)
    run(
        setup, name=served_name or f"{model}-nano", port=port, waiting=waiting, ready=ready,
        prompt_scores=prompt_scores or ("decode" if setup.backend in _DECODE_ONLY else "prefill"),
    )  # fmt: skip
