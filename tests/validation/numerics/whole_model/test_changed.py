"""The tokens that change most, from made-up records: their contexts by position, whatever the order of action was."""

import token_records
from fasttrack_validation.contracts.kimi_k3.nano.tokenizer import SYMBOLS
from fasttrack_validation.numerics.whole_model import changed
from fasttrack_validation.numerics.whole_model.tokens import CANDIDATE, UnitRecords

LETTERS = {letter: SYMBOLS.index(letter) for letter in "abcdefghijklmnopqrstuvwxyz"}


def records(*read: tuple[int, int, str]) -> UnitRecords:
    """(request, position, letter) in order of action; the last one is what the candidate changes most."""
    def spoil(position, row, exact):
        if position == len(read) - 1:
            row["logits"][CANDIDATE] = -exact

    made = token_records.unit(count=len(read), spoil=spoil)
    steps = []
    for step, (request, position, letter) in zip(made.steps, read, strict=True):
        token = step.tokens[0].model_copy(update={"request": request, "position": position, "token": LETTERS[letter]})
        steps.append(step.model_copy(update={"tokens": (token,)}))
    return made.model_copy(update={"steps": tuple(steps)})


def context(*read: tuple[int, int, str]) -> str:
    return changed.worst([records(*read)])[0].context


def test_a_stream_is_its_own_context():
    assert context(*((0, n, letter) for n, letter in enumerate("abcdefghijklmnop"))) == "efghijklmnop"
    assert context((0, 0, "a")) == "a"


def test_a_proposal_that_was_refused_is_not_told_beside_what_came_instead():
    # b and c are verified; c is refused, read again as d. Behind it stood x, which is not before anything.
    assert context((0, 0, "a"), (0, 1, "b"), (0, 2, "c"), (0, 3, "x"), (0, 2, "d")) == "abd"
    # What came later than the token itself is not its context either.
    found = changed.worst([records((0, 0, "a"), (0, 1, "b"), (0, 1, "c"))], 3)
    assert sorted(one.context for one in found) == ["a", "ab", "ac"]


def test_a_request_that_was_preempted_holds_no_token_twice():
    first = [(0, n, letter) for n, letter in enumerate("abcd")]
    assert context(*first, (1, 0, "z"), *first, (0, 4, "e")) == "abcde"


def test_other_requests_are_no_context():
    assert context((0, 0, "a"), (1, 0, "z"), (1, 1, "y"), (0, 1, "b")) == "ab"


def test_a_prompt_that_nobody_watched_is_told():
    assert context((0, 9, "a")) == "[9 not watched]a"
    assert context((0, 40, "a")) == "[11 not watched]a"
    assert context((0, 0, "a"), (0, 3, "b"), (0, 4, "c")) == "a[2 not watched]bc"


def test_it_is_counted_and_ordered():
    found = changed.worst([token_records.unit(count=30), token_records.unit(count=30, seed=1)], 4)
    assert len(found) == 4 and [one.change for one in found] == sorted((one.change for one in found), reverse=True)
    (one,) = changed.worst([records((0, 0, "a"), (0, 1, "b"))], 1)
    assert (one.unit, one.position) == ("teacher_forced-tp1-made", 1) and one.change > 5 > 1 > one.noise


def test_a_token_that_the_stock_path_ran_is_none_of_the_candidates():
    """The last one changes most, and is not the candidate's."""
    made = records((0, 0, "a"), (0, 1, "b"), (0, 2, "c"))
    *others, last = made.steps
    fell_back = last.model_copy(update={"tokens": (last.tokens[0].model_copy(update={"ran": "stock"}),)})
    found = changed.worst([made.model_copy(update={"steps": (*others, fell_back)})])
    assert {one.position for one in found} == {0, 1} and changed.worst([made])[0].position == 2
    nobodys = [s.model_copy(update={"tokens": (s.tokens[0].model_copy(update={"ran": "stock"}),)}) for s in made.steps]
    assert changed.worst([made.model_copy(update={"steps": tuple(nobodys)})]) == []
