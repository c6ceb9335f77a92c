"""The model directory's own decode path over a small checkpoint; prompts are the plain path's, as in an engine.

Both work on the same pools. Without a GPU the kernels are interpreted (this process was started for that), which takes
seconds a token; with one they are compiled and launched.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..errors import UserError
from ..performance.directory import load
from ..records import digest_files
from .paths import Backend, Setup
from .small import small_model

_CARDS = {(9, 0): "h200", (10, 3): "gb300"}


class Specialised:
    """As `Path`."""

    def __init__(self, setup: Setup) -> None:
        """Raises UserError for a GPU that no kernel is made for, or a directory without a decode path."""
        if setup.directory is None:
            raise UserError("no model directory is named", "give the directory whose decode path is served")
        self.plain = small_model(setup.model).path(setup.model_copy(update={"backend": Backend.PLAIN}))
        factory, directory = load(setup.directory)
        if not hasattr(factory, "small"):
            raise UserError(f"{setup.directory}: its decode path has fixed sizes", "give its factory `small`")
        _resize(factory.constants(self.plain.text_config), directory)
        context, facts = _context(setup, factory)
        self._factory = factory
        try:
            self.decoder = factory.small(
                self.plain.text_config, self.plain.ranks[0], directory, context, device=setup.device, **facts
            )
            self.decoder.bind(self.plain.caches(), self.plain.state.pages.shape[1])
        except ValueError as error:
            what = f"the decode path cannot serve this checkpoint: {error}"
            raise UserError(what, "serve --backend plain") from error
        self._calls = Counter(call.op for call in self.decoder.executors[1].calls)
        self.launches: Counter[str] = Counter()
        files = {path.relative_to(setup.directory).as_posix(): path.read_bytes() for path in _sources(setup)}
        interpreted = ", interpreted" if setup.device == "cpu" else ""
        self.card = self.plain.card.model_copy(
            update={
                "backend": Backend.LATENCY_SPECIALIZED, "decode": f"{setup.directory.name}'s kernels{interpreted}",
                "sources": digest_files({**files, "validation": self.plain.card.sources.encode()}),
                "libraries": {**self.plain.card.libraries, "triton": _triton()},
            }
        )  # fmt: skip

    def open(self, session: int) -> None:
        """As `Path`."""
        self.plain.open(session)

    def prefill(self, session: int, tokens: Sequence[int]) -> Tensor:
        """As `Path`, by the plain path."""
        return self.plain.prefill(session, tokens)

    def decode(self, session: int, token: int) -> Tensor:
        """As `Path`."""
        step, inputs = self._factory.rows_of(**self.plain.row(session, token))
        plan = self.decoder.plan(step)
        if hasattr(plan, "why"):
            raise RuntimeError(f"the decode path leaves a step of one token to the stock path: {plan.why}")
        logits = self.decoder.run(plan, inputs)
        self.plain.moved_on(session)
        self.launches.update(self._calls)
        return logits.float()[:, : self.card.vocabulary].cpu().contiguous()


def _resize(constants: Mapping[str, Mapping[str, float]], directory) -> None:
    """Gives kernels the small model's sizes, in this process and for good."""
    for file, values in constants.items():
        module = directory.kernel(file)
        for name, value in values.items():
            if not hasattr(module, name):
                raise UserError(f"{file} has no constant {name}", "correct the sizes that the model directory names")
            setattr(module, name, value)


def _context(setup: Setup, factory) -> tuple[object, dict]:
    """What kernels are launched with, and what the decoder is told of the device."""
    if setup.device == "cpu":
        from ..judge.interpreter.serving import InterpretingContext

        context = InterpretingContext()
        capability = divmod(context.hardware.capability, 10)
        card, multiprocessors = context.hardware.name, context.hardware.multiprocessors
        return context, {"card": card, "capability": capability, "multiprocessors": multiprocessors}
    capability = torch.cuda.get_device_capability(setup.device)
    if capability not in _CARDS:
        known = ", ".join(f"{name} ({major}.{minor})" for (major, minor), name in _CARDS.items())
        raise UserError(
            f"compute capability {'.'.join(map(str, capability))}; there are kernels for {known}",
            "serve --backend plain here, or --device cpu",
        )
    hardware = factory.hardware(_CARDS[capability])
    facts = {"card": hardware.name, "capability": capability, "multiprocessors": hardware.multiprocessors}
    return factory.ServingContext(hardware, {}), facts


def _sources(setup: Setup):
    return sorted(path for path in setup.directory.rglob("*.py") if "__pycache__" not in path.parts)


def _triton() -> str:
    import triton

    return triton.__version__
