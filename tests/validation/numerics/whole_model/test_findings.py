"""Verdicts from made-up records: equal noise passes; each kind of error fails, and its place is named."""

import numpy as np
import pytest
import token_records
import torch
from fasttrack_validation.numerics.whole_model import findings, side_by_side, table
from fasttrack_validation.numerics.whole_model.findings import Result
from fasttrack_validation.numerics.whole_model.tokens import CANDIDATE, ORACLE, STOCK
from token_records import LAYERS


def verdict(**made):
    return findings.judged([token_records.unit(**made)])


@pytest.mark.parametrize("seed", range(6))
def test_equal_noise_passes(seed):
    found = verdict(seed=seed)
    assert found.result is Result.PASS, [c for c in found.checks if c.result is not Result.PASS]
    assert found.first is None


def test_columns_are_what_torch_makes_of_the_logits():
    unit = token_records.unit(count=5)
    of = table.table([unit])
    for row, token in enumerate(of.tokens):
        exact = torch.from_numpy(table.decode(token.logits[ORACLE], wide=True))
        own = torch.from_numpy(table.decode(token.logits[STOCK], wide=False))
        assert torch.equal(own, own.bfloat16().double())
        assert of.log_prob[STOCK][row] == pytest.approx(own.log_softmax(0)[token.target].item())
        right = torch.nn.functional.kl_div(own.log_softmax(0), exact.log_softmax(0), log_target=True, reduction="sum")
        assert of.divergence[STOCK][row] == pytest.approx(right.item(), rel=1e-6, abs=1e-12)
        first, second = exact.topk(2).values
        assert of.margin[row] == pytest.approx((first - second).item())


def test_a_layer_that_is_worse_from_some_token_on_is_named_with_the_first_of_them():
    def spoil(position, row, exact):
        if position >= 70:
            for layer in range(2, LAYERS):
                row["streams"][CANDIDATE][layer] *= 30

    found = verdict(spoil=spoil)
    assert found.result is Result.FAIL
    assert (found.first.layer, found.first.position) == (2, 70)


def test_an_error_at_one_token_alone_is_found():
    def spoil(position, row, exact):
        if position == 41:
            row["logits"][CANDIDATE] = row["logits"][CANDIDATE] + 0.5 * np.sin(np.arange(len(exact)))

    found = verdict(spoil=spoil)
    assert found.result is Result.FAIL and found.first.position == 41
    assert {c.name for c in found.checks if c.result is Result.FAIL} >= {"logits, largest"}


def test_everything_a_half_worse_is_found_by_the_median():
    def spoil(position, row, exact):
        row["logits"][CANDIDATE] = exact + 1.5 * (row["logits"][CANDIDATE] - exact)

    found = verdict(spoil=spoil, count=300)
    assert "logits, median" in {c.name for c in found.checks if c.result is Result.FAIL}


@pytest.mark.parametrize(("margin", "result", "bugs"), [(0.002, Result.PASS, 0), (3.0, Result.FAIL, 1)])
def test_a_flip_is_a_tie_or_a_bug_by_the_oracles_margin(margin, result, bugs):
    def spoil(position, row, exact):
        if position != 12:
            return
        order = np.argsort(-exact)
        move = exact[order[0]] - exact[order[1]] - margin
        exact[order[1]] += move
        for path in row["logits"]:
            row["logits"][path][order[1]] += move
        own = row["logits"][CANDIDATE]
        own[order[1]] = own[order[0]] + 0.1 if bugs else own[order[0]] + 0.005
        for path in token_records.NOISE:
            row["logits"][path][order[0]] = max(row["logits"][path][order[0]], row["logits"][path][order[1]] + 0.05)

    found = verdict(spoil=spoil)
    assert found.flips.bugs == bugs and found.flips.ties == (0 if bugs else found.flips.flips[CANDIDATE])
    check = next(c for c in found.checks if c.name.startswith("top-1 flips"))
    assert check.result is result
    if bugs:
        assert check.where.position == 12


def test_other_experts_are_a_tie_within_the_noise_of_the_margin_and_a_bug_beyond_it():
    def spoil(near):
        def spoiled(position, row, exact):
            if position == 33:
                row["router"][ORACLE][1] = 1e-6 if near else 0.4
                row["experts"][CANDIDATE].append(2)

        return spoiled

    assert verdict(spoil=spoil(True)).result is Result.PASS
    found = verdict(spoil=spoil(False))
    assert found.result is Result.FAIL and (found.first.layer, found.first.position) == (2, 33)


def other_experts_at(position, then=(), layers=range(2, LAYERS)):
    """A token that goes to other experts in layer 1, in a tie; tokens that lie `then` behind it, six times as far off in `layers`."""
    def spoiled(at, row, exact):
        if at == position:
            row["router"][ORACLE][0] = 1e-6
            row["experts"][CANDIDATE].append(1)
        if at - position in then:
            for number in layers:
                row["streams"][CANDIDATE][number] *= 6

    return spoiled


def test_what_the_convolution_makes_of_other_experts_behind_them_is_no_error():
    assert verdict(spoil=other_experts_at(33, (1, 2, 3))).result is Result.PASS


@pytest.mark.parametrize("then", [(4,), (-1,)], ids=["out of its reach", "before"])
def test_other_experts_excuse_nothing_else(then):
    found = verdict(spoil=other_experts_at(33, then))
    assert found.result is Result.FAIL and (found.first.layer, found.first.position) == (2, 33 + then[0])


def test_other_experts_excuse_no_layer_that_does_not_read_them():
    """Behind their own layer the next token has read nothing of them yet."""
    found = verdict(spoil=other_experts_at(33, (1,), [1]))
    assert found.result is Result.FAIL and (found.first.layer, found.first.position) == (1, 34)


def test_a_state_that_is_further_off_than_the_noise_is_named_by_layer_and_pool():
    unit = token_records.unit()
    unit.end.states[CANDIDATE]["0 1.recurrent_state"] *= 40
    found = findings.judged([unit])
    assert (found.first.layer, found.first.pool) == (1, "recurrent_state")


def test_memory_that_nobody_owns_must_not_change():
    unit = token_records.unit()
    unit.end.touched[CANDIDATE] = ("3.recurrent of rank 0",)
    found = findings.judged([unit])
    assert found.result is Result.FAIL and found.first.layer == 3


def test_logits_that_are_not_finite_fail():
    def spoil(position, row, exact):
        if position == 5:
            row["logits"][CANDIDATE][3] = np.nan

    found = verdict(spoil=spoil)
    assert found.result is Result.FAIL and found.first.position == 5


def test_each_of_several_candidates_is_judged_alone():
    unit = token_records.unit()

    def spoil(position, row, exact):
        row["logits"][CANDIDATE] = exact + 1

    other = token_records.unit(spoil=spoil)
    steps = []
    for one, two in zip(unit.steps, other.steps, strict=True):
        merged = {
            field: {**{p: v for p, v in getattr(one.tokens[0], field).items() if p != CANDIDATE},
                    "candidate-good": getattr(one.tokens[0], field)[CANDIDATE],
                    "candidate-bad": getattr(two.tokens[0], field)[CANDIDATE]}
            for field in ("logits", "streams", "experts", "router")
        }  # fmt: skip
        steps.append(one.model_copy(update={"tokens": (one.tokens[0].model_copy(update=merged),)}))
    both = unit.model_copy(update={"steps": tuple(steps), "end": None})
    assert findings.judged([side_by_side.only(both, "good")]).result is Result.PASS
    assert findings.judged([side_by_side.only(both, "bad")]).result is Result.FAIL


def test_the_same_records_give_the_same_bytes():
    assert verdict().canonical_json() == verdict().canonical_json()


def test_a_router_reads_what_its_layers_convolution_read():
    """Other experts in layer 1 at 33: the router of layer 2 at 34 sees them, that of layer 1 does not."""
    def spoil(layer):
        def spoiled(at, row, exact):
            other_experts_at(33)(at, row, exact)
            if at == 34:
                row["router"][CANDIDATE][layer - 1] *= 60

        return spoiled

    assert verdict(spoil=spoil(2)).result is Result.PASS
    found = verdict(spoil=spoil(1))
    assert found.result is Result.FAIL and (found.first.layer, found.first.position) == (1, 34)


def test_where_no_token_is_settled_the_largest_error_is_open():
    def spoil(position, row, exact):
        row["router"][ORACLE][0] = 1e-6
        row["experts"][CANDIDATE].append(1)

    found = {check.name: check for check in verdict(spoil=spoil, count=8).checks}
    open_ = found["stream behind layer 1, largest"]
    assert open_.result is Result.INCONCLUSIVE and open_.values == 0 and "run more tokens" in open_.message
    assert found["stream behind layer 0, largest"].values == 8


def changed(unit, change):
    """The unit with `change(step, token)` in place of each token."""
    steps = tuple(s.model_copy(update={"tokens": tuple(change(s, t) for t in s.tokens)}) for s in unit.steps)
    return unit.model_copy(update={"steps": steps})


def ran(by, kinds=("decode",)):
    return lambda step, token: token.model_copy(update={"ran": by}) if step.kind in kinds else token


def test_a_decode_step_that_fell_back_shows_nothing():
    honest = changed(token_records.unit(), ran("specialised"))
    assert findings.judged([honest]).result is Result.PASS
    fallen = changed(honest, lambda step, token: token.model_copy(update={"ran": "stock"}) if step.action > 100 else token)
    for unit, count in ((fallen, 101), (changed(honest, ran("stock")), 0)):
        found = findings.judged([unit])
        check = next(c for c in found.checks if c.name == "rows of decode steps that the candidate ran")
        assert found.result is Result.FAIL and (check.result, check.candidate, check.values) == (Result.FAIL, count, 120)
        assert f"{120 - count} of 120 rows" in found.text


def prompted(spoil=None):
    """110 tokens of a prompt that the stock path reads, bit for bit its own, and ten of decode steps."""
    unit = token_records.unit(spoil=spoil)
    steps = tuple(s.model_copy(update={"kind": "prefill"}) if s.action < 110 else s for s in unit.steps)

    def of_stock(step, token):
        if step.kind == "decode":
            return token.model_copy(update={"ran": "specialised"})
        own = {name: getattr(token, name) | {CANDIDATE: getattr(token, name)[STOCK]} for name in ("logits", "streams", "router")}
        return token.model_copy(update=own | {"ran": "stock"})

    return changed(unit.model_copy(update={"steps": steps}), of_stock)


def test_rows_of_the_stock_path_do_not_water_down_the_candidates_own():
    def spoil(position, row, exact):
        row["logits"][CANDIDATE] = exact + 3 * (row["logits"][CANDIDATE] - exact)

    found = findings.judged([prompted()])
    assert found.result is Result.PASS and found.tokens == 10
    found = findings.judged([prompted(spoil)])
    assert "logits, median" in {c.name for c in found.checks if c.result is Result.FAIL}


def elsewhere(position, row, moves, paths):
    """At every fourth token `paths` go to other experts, which moves the likeliest logit by about `moves`."""
    if position % 4 == 0:
        for path in paths:
            row["experts"][path] = [2]
            row["logits"][path] = row["logits"][path] + moves * np.cos(np.arange(len(row["logits"][path])) + position)


@pytest.mark.parametrize(("margin", "result"), [(0.3, Result.PASS), (9.0, Result.FAIL)])
def test_a_flip_behind_other_experts_is_held_to_what_those_do(margin, result):
    """Equal runs move a difference by up to about two there; a flip at a margin of nine is none of theirs."""

    def spoil(position, row, exact):
        elsewhere(position, row, 1.0, (*token_records.NOISE, CANDIDATE))
        if position != 40:
            return
        first, second = np.argsort(-exact)[:2]
        for values in (exact, *row["logits"].values()):
            values[first] += margin - (exact[first] - exact[second]) if values is not exact else 0
        exact[first] = exact[second] + margin
        row["logits"][CANDIDATE][second] = row["logits"][CANDIDATE][first] + 0.5

    found = verdict(spoil=spoil)
    check = next(c for c in found.checks if c.name == "top-1 flips beyond the noise")
    assert check.result is result, check
    assert (found.flips.bugs == 1) is (result is Result.FAIL)
    if result is Result.FAIL:
        assert check.where.position == 40


def test_what_other_experts_do_is_not_told_from_a_single_run():
    """The candidate alone goes to other experts, once: whether that may flip a token nobody knows."""

    def spoil(position, row, exact):
        if position == 40:
            row["experts"][CANDIDATE] = [2]
            first, second = np.argsort(-exact)[:2]
            row["logits"][CANDIDATE][second] = row["logits"][CANDIDATE][first] + 0.5

    check = next(c for c in verdict(spoil=spoil).checks if c.name == "top-1 flips beyond the noise")
    assert check.result is Result.INCONCLUSIVE and "run more tokens" in check.message


def test_an_error_beside_other_experts_is_held_to_those_of_equal_runs():
    def spoil(position, row, exact):
        elsewhere(position, row, 1.0, (*token_records.NOISE, CANDIDATE))
        if position == 60 and wrong:
            row["logits"][CANDIDATE] = row["logits"][CANDIDATE] + 40 * np.sin(np.arange(len(exact)))

    for wrong in (False, True):
        check = next(c for c in verdict(spoil=spoil).checks if c.name == "logits beside other experts, largest")
        assert check.result is (Result.FAIL if wrong else Result.PASS)
    assert check.where.position == 60


def test_a_free_run_tells_where_it_leaves_the_oracles():
    """By hand: the candidate at 30 and again at 50, one equal run at 70; up to there all are given the same tokens."""

    def spoil(position, row, exact):
        first, second = np.argsort(-exact)[:2]
        for values in (exact, *row["logits"].values()):
            values[first] += 1  # nobody else is near a tie
        for path, positions in ((CANDIDATE, (30, 50)), ("again-2", (70,))):
            if position in positions:
                exact[second] = exact[first] - 1e-4
                for other in row["logits"].values():
                    other[first], other[second] = exact[first] + 0.02, exact[second] - 0.02
                row["logits"][path][second] = exact[first] + 0.05

    found = verdict(spoil=spoil, rung="greedy")
    assert found.flips.diverged == {STOCK: None, CANDIDATE: 30, "again-1": None, "again-2": 70, "again-3": None}
    assert "first other token of its free run: at 30, of equal runs: none, none, at 70, none" in found.text
    assert verdict(spoil=spoil).flips.diverged == {}


def test_what_rows_behind_a_prompt_read_is_kept_and_not_judged():
    """Other experts at a prompt's end show in the tokens behind it, and are no error there; the prompt's own rows are held to nothing."""
    def spoil(position, row, exact):
        if position == 40:
            row["router"][ORACLE][0] = 1e-6
            row["experts"][CANDIDATE].append(1)
        if position < 41 or position == 42:
            for layer in range(2, LAYERS):
                row["streams"][CANDIDATE][layer] *= 6

    made = token_records.unit(spoil=spoil)
    read = [step.model_copy(update={"kind": "prefill", "tokens": tuple(token_records.light(t) for t in step.tokens)})
            for step in made.steps[38:41]]  # fmt: skip
    found = findings.judged([made.model_copy(update={"steps": (*read, *made.steps[41:])})])
    assert found.result is Result.PASS and found.tokens == len(made.steps) - 41
    # Without them nobody knows.
    assert findings.judged([made.model_copy(update={"steps": made.steps[41:]})]).result is Result.FAIL
    # A decode step cannot be let off like that.
    hidden = made.steps[60].model_copy(update={"tokens": (token_records.light(made.steps[60].tokens[0]),)})
    steps = (*read, *made.steps[41:60], hidden, *made.steps[61:])
    assert findings.judged([made.model_copy(update={"steps": steps})]).result is Result.FAIL
