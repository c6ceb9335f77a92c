"""One arm sits an exam: lm-eval asks, our task scores, and every answer is kept as it comes.

The engine is lm-eval through its Python interface. What it leaves out is done here: a seed of its own for every repeat,
all stop strings, reasoning, finish reasons and token counts, retries that cost no answer, and going on where a run ended.
"""

import json
import logging
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from ..errors import UserError
from . import engine_task
from .answers import Answers, Arm, Sampling
from .asking import Asking, Pace, Progress, Request
from .frozen import Exam, Item
from .generation import Model
from .journal import Journal
from .plan import Plan

_TASK_FILE = Path(__file__).parent / "tasks" / "frozen_exam.yaml"
_TASK = "planned_exam"


def sit(
    exam: Exam, plan: Plan, model: Model, arm: Literal["baseline", "candidate"], place: Path, *, repeats: int,
    pace: Pace = Pace(), progress: Progress = lambda done, of: None, run: str = "",
) -> Answers:  # fmt: skip
    """All answers of one arm to `repeats` repeats of every item, scored; those that `place` holds are not asked again.

    `run` names a second run of the same arm, which has seeds of its own.

    UserError: the plan has no sampling or is another exam's; `place` is another arm's; an answer did not come in
    `pace.attempts` requests, or cannot be written; the engine scored other than all answers. What came is kept.
    """
    sampling = _sampling(exam, plan)
    head = {
        "arm": arm, "exam_sha256": exam.digest, "plan_sha256": plan.digest(), "model": model.name,
        "sampling": sampling.model_dump(mode="json"), "run": run,
    }  # fmt: skip
    with Journal(place, head) as journal:
        asked = Asking(plan, model, arm, journal, pace, progress, run)
        scores = _evaluate(exam, sampling, repeats, asked)
        counted = journal.counted()
        answers = tuple(
            journal.answers[item.id, repeat].model_copy(update={"score": scores[item.id][repeat]})
            for item in exam.items for repeat in range(repeats)
        )  # fmt: skip
    header = Arm(
        arm=arm, exam_sha256=exam.digest, plan_sha256=plan.digest(), model=model.name, sampling=sampling,
        stop_sent=asked.stop_sent, kernels=counted.kernels, acceptance_forced=counted.acceptance_forced,
    )  # fmt: skip
    return Answers(header, answers)


def _sampling(exam: Exam, plan: Plan) -> Sampling:
    if plan.sampling is None:
        raise UserError(f"the plan of {plan.exam} has no sampling", "add [sampling]: temperature, top_p, max_tokens, stop")
    if plan.exam_sha256 != exam.digest:
        raise UserError(f"the plan is of {plan.exam} {plan.exam_sha256}", "give the exam that it was made for")
    return plan.sampling


def _evaluate(exam: Exam, sampling: Sampling, repeats: int, asked: Asking) -> dict[str, list[float]]:
    """The engine's run: the score of every repeat, by item. UserError where it did not score every answer."""
    lm_eval = _lm_eval()
    from lm_eval.tasks import TaskManager

    task = {
        "include": str(_TASK_FILE), "task": _TASK, "repeats": repeats,
        "generation_kwargs": {
            "until": list(sampling.stop), "temperature": sampling.temperature, "top_p": sampling.top_p,
            "max_gen_toks": sampling.max_tokens, "do_sample": sampling.temperature > 0,
        },
        "filter_list": [{"name": "every", "filter": [{"function": "take_first_k", "k": repeats}]}],
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as place, engine_task.sitting(exam), _quiet():
        # JSON is YAML; the engine takes a task with its includes from a folder only.
        Path(place, f"{_TASK}.yaml").write_text(json.dumps(task), "utf-8")
        manager = TaskManager(include_path=place, include_defaults=False, metadata={"exam": exam.digest})
        # Not simple_evaluate: it also describes the machine, by starting a dozen programs.
        found = lm_eval.evaluate(
            _model(asked), manager.load([_TASK]), bootstrap_iters=0, log_samples=True, confirm_run_unsafe_code=False
        )
    return collect(found, exam, repeats)


def collect(found: Mapping[str, Any] | None, exam: Exam, repeats: int) -> dict[str, list[float]]:
    """The engine's scores by item. UserError where they are not one number for every repeat of every item."""
    samples = (found or {}).get("samples", {}).get(_TASK, [])
    scores = {sample["doc"]["item"]: sample.get("scores") for sample in samples}
    counts = Counter(sample["doc"]["item"] for sample in samples)
    wrong = [
        item.id for item in exam.items
        if counts[item.id] != 1 or not isinstance(scores[item.id], list) or len(scores[item.id]) != repeats
        or not all(isinstance(one, float) for one in scores[item.id])
    ]  # fmt: skip
    mean = (found or {}).get("results", {}).get(_TASK, {}).get("score,every")
    own = sum(map(sum, scores.values())) / (repeats * len(exam.items)) if not wrong else None
    if wrong or len(counts) != len(exam.items):
        raise UserError(
            f"the engine scored {len(exam.items) - len(wrong)} of {len(exam.items)} items", "report it: no result is lost"
        )
    if not isinstance(mean, float) or not abs(mean - own) <= 1e-9:  # NaN as well
        raise UserError(f"the engine's mean is {mean!r}, that of its scores another", "report it: no result is lost")
    return scores


def _model(asked: Asking) -> Any:
    """The `LM` that lm-eval drives."""
    from lm_eval.api.model import LM

    class ExamModel(LM):
        """Answers by item and repeat, in any order; the engine hands in every request `repeats` times."""

        def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
            """The texts of `requests`, in their order."""
            repeats: Counter[str] = Counter()
            wanted = []
            for request in requests:
                text, given = request.args
                item, turns = engine_task.item_of(request.doc), engine_task.messages(text)
                wanted.append(Request(
                    item=item, prompt_sha256=Item.prompt_digest(turns, item.options), messages=turns,
                    sampling=_given(given), repeat=repeats[item.id],
                ))  # fmt: skip
                repeats[item.id] += 1
            return asked.answer(wanted)

        def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
            """Exams generate; the engine never asks for this."""
            raise TypeError("an exam's model generates")

        loglikelihood_rolling = loglikelihood  # type: ignore[assignment]

    return ExamModel()


def _given(options: Mapping[str, Any]) -> Sampling:
    """The sampling that the engine hands on, so that what it dropped or changed is seen by the guards."""
    return Sampling(
        temperature=options["temperature"], top_p=options["top_p"], max_tokens=options["max_gen_toks"],
        stop=tuple(options["until"]),
    )  # fmt: skip


def _lm_eval() -> Any:
    try:
        import lm_eval
    except ImportError:
        raise UserError("the package lm-eval is not installed", "pip install 'fasttrack[exams]'") from None
    found = tuple(int(part) for part in version("lm-eval").split(".")[:3] if part.isdigit())
    if found < (0, 4, 13):
        raise UserError(f"lm-eval {version('lm-eval')} is too old", "pip install 'fasttrack[exams]': 0.4.13 or newer")
    return lm_eval


@contextmanager
def _quiet() -> Iterator[None]:
    """The engine logs prompts and settings: not here."""
    logger = logging.getLogger("lm_eval")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
