"""What is fixed before the first answer: the exam, how often it is sat, the rule, the limits, and with which exams."""

from typing import Self

from pydantic import Field, model_validator

from ..records import Frozen
from .answers import Sampling
from .family import Family
from .rule import Rule


class Limits(Frozen):
    """Where the guards refuse. Rates are shares of an arm's answers."""

    truncated_delta: float = Field(default=0.02, ge=0, lt=1)
    """How much more often than the baseline the candidate may be cut off by the token limit."""
    unparsed_delta: float = Field(default=0.02, ge=0, lt=1)
    """How much more often no answer may be found in the candidate's text."""
    length_ratio: tuple[float, float] = (0.9, 1.1)
    """Corridor of the candidate's mean output tokens over the baseline's (MLPerf's)."""
    copies_from_tokens: int = Field(default=64, ge=1)
    """Two equal generations of an item are suspect from this length on; shorter ones may coincide."""


class Plan(Frozen):
    """The plan of one exam. Every arm records its digest."""

    exam: str
    exam_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    items: int = Field(ge=1)
    """The pinned item count."""
    rule: Rule
    limits: Limits = Limits()
    sampling: Sampling | None = None
    """What both arms are asked with. None where the answers come recorded; an arm cannot be run without it."""
    family: Family | None = None
    """The exams that are decided together, this one among them."""

    @model_validator(mode="after")
    def _family_fits(self) -> Self:
        if self.family is None and self.rule.fail_tests != 1:
            raise ValueError("rule.fail_tests is 1 for an exam that is decided alone")
        if self.family is not None and self.exam not in self.family.exams:
            raise ValueError(f"{self.exam} is not one of the family's exams")
        if self.family is not None and self.rule.fail_tests != self.family.fail_tests:
            raise ValueError(f"rule.fail_tests has to be {self.family.fail_tests} for this family")
        return self
