"""Records of tokens that are made up: logits of an oracle, and paths that differ from it by drawn noise."""

import numpy as np
from fasttrack_validation.numerics.whole_model import tokens
from fasttrack_validation.numerics.whole_model.tokens import CANDIDATE, ORACLE, STOCK

LAYERS, VOCABULARY = 4, 64
NOISE = (STOCK, "again-1", "again-2", "again-3")


def bf16(values: np.ndarray) -> np.ndarray:
    """Bits, to nearest even."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def unit(count: int = 120, *, seed: int = 0, spoil=None, rung: str = "teacher_forced") -> tokens.UnitRecords:
    """`count` tokens of one request. `spoil(position, row)` may change a row's candidate columns in place."""
    random = np.random.default_rng(seed)
    steps = []
    for position in range(count):
        exact = 4 * random.normal(size=VOCABULARY)
        hard = random.lognormal(0, 0.5)
        row = {
            "logits": {p: exact + 0.01 * hard * random.normal(size=VOCABULARY) for p in (*NOISE, CANDIDATE)},
            "streams": {p: list(0.003 * hard * random.lognormal(0, 0.05, LAYERS)) for p in (*NOISE, CANDIDATE)},
            "experts": {p: [] for p in (*NOISE, CANDIDATE)},
            "router": {p: list(0.001 * hard * np.abs(random.normal(size=LAYERS - 1))) for p in (*NOISE, CANDIDATE)},
        }
        row["router"][ORACLE] = list(0.05 + random.random(LAYERS - 1))
        if spoil:
            spoil(position, row, exact)
        logits = {ORACLE: tokens.encode(exact.astype("<f4"))}
        logits |= {path: tokens.encode(bf16(values)) for path, values in row["logits"].items()}
        token = tokens.Token(
            request=0, position=position, token=int(random.integers(VOCABULARY)), target=int(np.argmax(exact)),
            top1=int(np.argmax(exact)), ran="plain", logits=logits, streams=row["streams"], experts=row["experts"],
            router=row["router"],
        )  # fmt: skip
        steps.append(tokens.Step(action=position, kind="decode", rows=1, padding=0, tokens=(token,)))
    pools = ("0 1.recurrent_state", "0 1.conv_state", "0 2.cache")
    states = {p: {pool: 0.003 * random.lognormal(0, 0.02) for pool in pools} for p in (*NOISE, CANDIDATE)}
    end = tokens.End(
        states=states, rows={p: {"0 2.cache": -1} for p in states}, touched={p: () for p in states}
    )  # fmt: skip
    header = tokens.Header(
        unit=f"{rung}-tp1-made", rung=rung, tp=1, subject="made up", candidate="made up", replicas=NOISE[1:]
    )
    return tokens.UnitRecords(header=header, steps=tuple(steps), end=end)


def light(token: tokens.Token) -> tokens.Token:
    """What is kept of a row that nobody judges."""
    return token.model_copy(update={"ran": tokens.NOT_JUDGED, "logits": {}, "streams": {}, "router": {}})
