"""Two arms' answers to one exam, by its plan, with our own scores of them."""

from dataclasses import dataclass
from functools import cached_property

from .answers import Answer, Answers
from .frozen import Exam, Item
from .plan import Plan
from .scoring import Scored, score


@dataclass(frozen=True)
class Sat:
    """An exam that both arms sat."""

    exam: Exam
    plan: Plan
    baseline: Answers
    candidate: Answers

    def arms(self) -> tuple[tuple[str, Answers], tuple[str, Answers]]:
        """Both arms with what to call them."""
        return ("baseline", self.baseline), ("candidate", self.candidate)

    def scored(self, answer: Answer) -> Scored:
        """Our own score of an answer to an item of the exam."""
        name, text = answer.item, answer.text or ""
        if (name, text) not in self._scored:
            scorer = self.exam.manifest.scorer
            self._scored[name, text] = score(scorer, self._items[name], self.exam.keys[name], text)
        return self._scored[name, text]

    def scores(self) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
        """The scores of every item, baseline and candidate."""
        held: tuple[dict[str, list[float]], dict[str, list[float]]] = {}, {}
        for (_, arm), scores in zip(self.arms(), held, strict=True):
            for answer in sorted(arm.answers, key=lambda answer: answer.repeat):
                scores.setdefault(answer.item, []).append(self.scored(answer).score)
        return held

    @cached_property
    def _items(self) -> dict[str, Item]:
        return {item.id: item for item in self.exam.items}

    @cached_property
    def _scored(self) -> dict[tuple[str, str], Scored]:
        return {}
