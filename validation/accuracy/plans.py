"""A plan as the TOML that people read, keep beside their exams, and both arms record the digest of."""

import json
from collections.abc import Sequence

from .answers import Sampling
from .family import Family
from .frozen import Exam


def text(
    exam: Exam, *, margin: float, looks: Sequence[int], sampling: Sampling, family: Family | None = None
) -> str:
    """The plan of `exam`: `margin` in points, `looks` in repeats an arm. Read it with `strict.parse`."""
    rows = [
        f"exam = {_quoted(exam.manifest.exam)}", f"exam_sha256 = {_quoted(exam.digest)}", f"items = {len(exam.items)}", "",
        "[rule]", f"margin_points = {float(margin)}", f"looks = {list(looks)}",
    ]  # fmt: skip
    if family is not None:
        rows += [f"fail_tests = {family.fail_tests}", "", "[family]", f"rule = {_quoted(family.rule)}"]
        rows += [f"exams = [{', '.join(map(_quoted, family.exams))}]"]
    rows += ["", "[sampling]", f"temperature = {sampling.temperature}", f"top_p = {sampling.top_p}"]
    rows += [f"max_tokens = {sampling.max_tokens}", f"stop = [{', '.join(map(_quoted, sampling.stop))}]"]
    return "\n".join(rows) + "\n"


def _quoted(value: str) -> str:
    """A TOML basic string: JSON's escapes are a subset of TOML's, but for the delete character."""
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007F")
