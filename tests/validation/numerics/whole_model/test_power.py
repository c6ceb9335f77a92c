"""What verdicts tell apart on records that are kept: equal runs of the stock path pass, and errors of many kinds do not."""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from fasttrack_validation.numerics.whole_model import findings, long_rung, tokens, verdict
from fasttrack_validation.numerics.whole_model.checks import Result
from fasttrack_validation.numerics.whole_model.table import decode, table
from fasttrack_validation.numerics.whole_model.tokens import CANDIDATE, LONG, OP, ORACLE, Token, UnitRecords
from token_records import bf16

KEPT = Path(__file__).parents[4] / "models/kimi_k3/evidence/numerics"
COLUMNS = ("logits", "streams", "experts", "router")
EQUAL = ("stock", "again-1", "again-2", "again-3")


@lru_cache(None)
def rungs(name: str) -> Mapping[tuple[str, int], tuple[UnitRecords, ...]]:
    """Of one kept run: (rung, TP) -> its units."""
    found: dict[tuple[str, int], list[UnitRecords]] = {}
    for file in tokens.units(KEPT / name):
        if file.name not in (OP, LONG):
            records = tokens.read(file)
            found.setdefault((records.header.rung, records.header.tp), []).append(records)
    return {key: tuple(units) for key, units in found.items()}


def changed(units: Iterable[UnitRecords], change: Callable[[UnitRecords, Token], Token]) -> list[UnitRecords]:
    return [
        one.model_copy(update={"steps": tuple(
            step.model_copy(update={"tokens": tuple(change(one, token) for token in step.tokens)}) for step in one.steps
        )})
        for one in units
    ]  # fmt: skip


def in_place_of_the_candidate(units: Iterable[UnitRecords], path: str) -> list[UnitRecords]:
    """An equal run as the candidate; what it was is one run less of noise, of which the stock path has to be."""
    def moved(columns: Mapping) -> Mapping:
        if not columns:
            return columns
        found = {name: value for name, value in columns.items() if name not in (CANDIDATE, path)} | {CANDIDATE: columns[path]}
        return found | ({"stock": columns["again-3"]} if path == "stock" else {})

    ended = [
        one.model_copy(update={"end": one.end.model_copy(update={name: moved(getattr(one.end, name)) for name in ("states", "rows", "touched")})})
        for one in units
    ]  # fmt: skip
    return changed(ended, lambda one, token: token.model_copy(update={name: moved(getattr(token, name)) for name in COLUMNS}))


def with_logits(token: Token, values: np.ndarray) -> Token:
    return token.model_copy(update={"logits": {**token.logits, CANDIDATE: tokens.encode(bf16(values))}})


def louder(token: Token, factor: float) -> Token:
    """The candidate errs as the first equal run does, `factor` times as much, in logits, streams and routers."""
    exact, other = decode(token.logits[ORACLE], wide=True), decode(token.logits["again-1"], wide=False)
    columns = {
        name: {**getattr(token, name), CANDIDATE: tuple(factor * x for x in getattr(token, name)["again-1"])}
        for name in ("streams", "router")
    }  # fmt: skip
    experts = {**token.experts, CANDIDATE: token.experts["again-1"]}
    return with_logits(token, exact + factor * (other - exact)).model_copy(update={**columns, "experts": experts})


def own(change: Callable[[UnitRecords, Token], Token]) -> Callable[[UnitRecords, Token], Token]:
    """Of the candidate's own rows alone."""
    return lambda one, token: change(one, token) if token.own else token


@pytest.mark.parametrize("path", EQUAL)
@pytest.mark.parametrize("name", ["cpu", "h200", "h200-layers"])
def test_every_equal_run_passes(name, path):
    """Some five thousand checks in all."""
    for key, units in rungs(name).items():
        found = findings.judged(in_place_of_the_candidate(units, path))
        assert found.result is Result.PASS, (key, found.text)


@pytest.mark.parametrize("name", ["cpu", "h200", "h200-layers"])
def test_half_as_much_again_everywhere_is_seen_by_every_rung(name):
    for key, units in rungs(name).items():
        assert findings.judged(changed(units, own(lambda one, token: louder(token, 1.5)))).result is Result.FAIL, key


UNITS = [
    ("h200", 1, "verify-every"), ("h200", 1, "verify-together"), ("h200", 1, "rows33"), ("h200", 1, "rows64"), ("h200", 1, "preempted"),
    ("h200", 8, "rows64"), ("h200", 8, "verify-every"), ("h200-layers", 8, "verify-every"), ("h200-layers", 8, "rows64"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "tp", "unit"), UNITS)
def test_twice_as_much_in_one_kind_of_step_is_seen(name, tp, unit):
    units = rungs(name)["batch_sweep", tp]
    spoiled = changed(units, own(lambda one, token: louder(token, 2.0 if one.header.unit.endswith(f"-{unit}") else 1.0)))
    assert findings.judged(spoiled).result is Result.FAIL


@pytest.mark.parametrize("rung", ["teacher_forced", "batch_sweep", "greedy"])
def test_one_symbol_that_is_always_too_unlikely_is_seen(rung):
    def spoil(one, token):
        exact, values = decode(token.logits[ORACLE], wide=True), decode(token.logits[CANDIDATE], wide=False).copy()
        values[48] = exact[48] - 0.05 * np.sqrt(np.mean(exact**2))
        return with_logits(token, values)

    found = findings.judged(changed(rungs("h200")[rung, 1], own(spoil)))
    assert found.result is Result.FAIL
    assert "symbol 48" in next(check.message for check in found.checks if check.name.startswith("logits of one symbol"))


@pytest.mark.parametrize(("share", "factor"), [(0.05, 3), (0.02, 4), (0.01, 4)])
def test_a_tail_that_is_several_times_too_long_is_seen(share, factor):
    units = rungs("h200")["batch_sweep", 1]
    of = table(units).own
    worst = np.argsort(-np.sqrt(np.mean(of.signed["again-1"] ** 2, -1)))[: int(share * len(of.tokens))]
    chosen = {id(of.tokens[row]) for row in worst}
    spoiled = changed(units, own(lambda one, token: louder(token, factor if id(token) in chosen else 1.0)))
    assert findings.judged(spoiled).result is Result.FAIL


@pytest.mark.parametrize("name", ["h200", "h200-layers"])
def test_nonsense_where_another_path_went_to_other_experts_is_seen(name):
    """Six tokens at which some run went elsewhere, and the candidate did not."""
    units = rungs(name)["teacher_forced", 1 if name == "h200" else 8]
    of = table(units).own
    rows = np.flatnonzero(~np.all([of.on(path) for path in of.noise], 0) & of.on(CANDIDATE))[:6]
    chosen = {id(of.tokens[row]) for row in rows}

    def below_the_likeliest_two(token: Token) -> np.ndarray:
        values = decode(token.logits[ORACLE], wide=True).copy()
        rest = np.argsort(-values)[2:]
        values[rest] = values[np.random.default_rng(1).permutation(rest)]
        return values

    for made in (below_the_likeliest_two, lambda token: np.roll(decode(token.logits[ORACLE], wide=True), 1)):
        spoiled = changed(units, lambda one, token, made=made: with_logits(token, made(token)) if id(token) in chosen else token)
        assert len(chosen) == 6 and findings.judged(spoiled).result is Result.FAIL


def test_rows_that_nobody_judges_excuse_no_more_than_equal_runs_have():
    def spoil(one, token):
        return token if token.ran != tokens.NOT_JUDGED else token.model_copy(update={"experts": {**token.experts, CANDIDATE: (1, 2)}})

    assert findings.judged(changed(rungs("h200")["batch_sweep", 8], spoil)).result is Result.FAIL


def test_tokens_sent_elsewhere_are_not_outnumbered_by_rows_that_nobody_judges():
    """Every eighth of the candidate's own rows goes to other experts in the last layer, in ties."""
    units = rungs("h200")["batch_sweep", 1]
    rows = [id(token) for one in units for step in one.steps for token in step.tokens if token.own]
    chosen = set(rows[::8])

    def spoil(one, token):
        if id(token) not in chosen:
            return token
        router = {**token.router, ORACLE: (*token.router[ORACLE][:-1], 1e-9)}
        return token.model_copy(update={"router": router, "experts": {**token.experts, CANDIDATE: (*token.experts[CANDIDATE], 8)}})

    found = findings.judged(changed(units, spoil))
    assert [check.name for check in found.checks if check.result is Result.FAIL] == ["experts of layer 8"]


def test_states_that_are_all_five_times_off_are_seen():
    def spoil(one: UnitRecords) -> UnitRecords:
        most = {pool: 5 * max(one.end.states[path][pool] for path in EQUAL) for pool in one.end.states[CANDIDATE]}
        return one.model_copy(update={"end": one.end.model_copy(update={"states": {**one.end.states, CANDIDATE: most}})})

    assert findings.judged([spoil(one) for one in rungs("h200")["batch_sweep", 1]]).result is Result.FAIL


@pytest.mark.parametrize(("first", "last"), [(0, 1024), (1024, 8192), (8192, 32768), (32768, 131072), (131072, 2**20)])
def test_a_band_of_attended_positions_that_is_less_exact_is_seen(first, last):
    points = verdict.long_points(KEPT / "h200")
    spoiled = [
        point.model_copy(update={"errors": {**point.errors, CANDIDATE: tuple(1.9 * error for error in point.errors[CANDIDATE])}})
        if point.what.startswith("context of 1048576") and first <= point.at < last else point
        for point in points
    ]  # fmt: skip
    assert spoiled != points and long_rung.judged(points, 48).result is Result.PASS
    assert long_rung.judged(spoiled, 48).result is Result.FAIL
