"""Several candidates in one unit: each is held against the same oracle, stock path and noise."""

from .tokens import CANDIDATE, End, Step, Token, UnitRecords

PREFIX = f"{CANDIDATE}-"


def only(records: UnitRecords, name: str) -> UnitRecords:
    """The records as if `name` had been the only candidate."""
    return records.model_copy(
        update={
            "header": records.header.model_copy(update={"candidate": name}),
            "steps": tuple(_step(step, name) for step in records.steps),
            "end": records.end and End(
                **{field: _one(getattr(records.end, field), name) for field in ("states", "rows", "touched")}
            ),
        }
    )


def _step(step: Step, name: str) -> Step:
    return step.model_copy(update={"tokens": tuple(_token(token, name) for token in step.tokens)})


def _token(token: Token, name: str) -> Token:
    columns = {field: _one(getattr(token, field), name) for field in ("logits", "streams", "experts", "router")}
    return token.model_copy(update=columns)


def _one(columns: dict, name: str) -> dict:
    if not columns:
        return {}
    found = {path: value for path, value in columns.items() if not path.startswith(CANDIDATE)}
    return found | {CANDIDATE: columns[PREFIX + name]}
