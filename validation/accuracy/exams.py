"""The exams that a model's contract asks for."""

from pydantic import Field

from ..records import Frozen


class Exam(Frozen):
    """One exam: sat by the stock and the specialised server, item by item, and decided by paired non-inferiority."""

    exam: str
    title: str
    items: int | None = Field(default=None, description="pinned item count; None where the length bins decide it")
    margin_points: float = Field(gt=0, description="non-inferiority margin, points of mean score")
    needs: tuple[str, ...]
