"""Judges on the toy ops, and the verdict on one sample."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from judging import model_of
from samples import HONEST, Sample
from toy_contract import FarToy, Toy
from toy_norm import Norm

from fasttrack_validation.judge import judge as judging_module
from fasttrack_validation.judge import recorded, stages
from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.judge.judge import Judge
from fasttrack_validation.judge.ruling import Ruling
from fasttrack_validation.judge.verdict import Verdict
from fasttrack_validation.sandbox import Limits

CONTRACTS = {"accumulate": Toy, "normalise": Norm, "far": FarToy}


class Judges:
    """One judge for each toy contract, started when it is first needed."""

    def __init__(self, stack: ExitStack, cache: Path) -> None:
        self._stack, self._cache = stack, cache
        self._made: dict[str, Judge] = {}

    def judge(self, name: str) -> Judge:
        """The judge of the contract `name`."""
        if name not in self._made:
            made = Judge(model_of(CONTRACTS[name]()), cache=self._cache, device="cpu")
            self._made[name] = self._stack.enter_context(made)
        return self._made[name]

    def honest(self, name: str, contract: str = "") -> Verdict:
        """The verdict on the honest sample `name`."""
        op, text = HONEST[name]
        candidate = Candidate(op=op, entry="kernel.py", files={"kernel.py": text})
        return self.judge(contract or op).screen(candidate)

    def on(self, sample: Sample) -> Verdict:
        """The verdict on `sample`."""
        candidate = sample.candidate
        return self.judge("far" if sample.far else sample.op).screen(candidate)


@contextmanager
def judges(cache: Path) -> Iterator[Judges]:
    """Judges whose limits fit toys: what never ends is stopped sooner than in earnest."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(judging_module, "INTERPRETER_LIMITS", Limits(wall_seconds=10, memory_bytes=8 << 30))
        yield Judges(stack, cache)


def stop_soon(patch: pytest.MonkeyPatch) -> None:
    """For samples that never end: they spin until they are stopped, on each of the machine's cores."""
    patch.setattr(judging_module, "INTERPRETER_LIMITS", Limits(wall_seconds=2, memory_bytes=8 << 30))


def skip_compiling(patch: pytest.MonkeyPatch) -> None:
    """Lets every kernel pass the compile stage unread, and models no time: most of a toy verdict's seconds."""

    def passed(audits, codes, packs, ruling):
        ruling.pass_stage("compile")
        return {"none": None}

    patch.setattr(stages, "compile_kernels", lambda *_: ())
    patch.setattr(recorded, "_verify_codes", lambda _: None)
    patch.setattr(judging_module, "settle_audits", passed)
    patch.setattr(Ruling, "model_times", lambda self, packs, trials, modelled, audits: None)


def at_smallest_shard(judge: Judge, patch: pytest.MonkeyPatch, op: str) -> Judge:
    """The judge, with the workloads of an op's smallest shard (TP 16) alone: for what needs no more heads."""
    real = judge.model.op(op)
    smallest = type(real)(real.architecture, real.policy.model_copy(update={"tp": (16,)}))
    patch.setattr(judge, "model", model_of(smallest))
    return judge
