import pytest

from fasttrack.agents.protocol import Done, Evaluation, Proposal
from fasttrack.agents.scripted import Scripted, read_transcript, render_transcript
from fasttrack.agents.search import Search
from fasttrack.agents.space import Space
from fasttrack_validation.errors import UserError
from fasttrack_validation.judge.candidate import Candidate

SPACE = Space.model_validate(
    {
        "op": "copy", "entry": "k.py",
        "parameters": {"a": [1, 2, 3, 4, 5, 6], "b": [1, True, "x"], "c": [0.5, 1.0, 2.0, 4.0]},
        "default": {"a": 3, "b": True, "c": 1.0},
        "exclude": [{"a": 6, "b": "x"}],
    }
)  # fmt: skip


def candidate(config):
    return Candidate(op="copy", entry="k.py", files={"k.py": ""}, config=config)


def search(seed=1, starts=()):
    return Search(SPACE, candidate, starts, seed)


def value(config):
    return 10.0 * abs(config["a"] - 5) + config["c"] + (0 if config["b"] == "x" else 3)


def play(proposer, rounds, history=(), reject=lambda config: False):
    history = list(history)
    for _ in range(rounds):
        step = proposer.propose(history)
        if isinstance(step, Done):
            return history, step
        config = step.candidate.config
        history.append(Evaluation(step, None, None if reject(config) else value(config)))
    return history, None


def keys(history):
    return [repr(sorted(e.proposal.candidate.config.items())) for e in history]


def test_starts_come_first_and_once():
    starts = [({"a": 2, "b": 1, "c": 0.5}, "table"), (SPACE.default, "default"), ({"a": 2, "b": 1, "c": 0.5}, "again")]
    history, _ = play(search(starts=starts), 4)
    assert [e.proposal.note for e in history[:2]] == ["table", "default"]
    assert len(set(keys(history))) == 4


def test_nothing_twice_nothing_excluded_and_done_when_the_space_is_used_up():
    small = SPACE.model_copy(update={"parameters": {**SPACE.parameters, "a": (3, 6), "c": (0.5, 1.0)}})
    history, done = play(Search(small, candidate, (), 1), 13)
    # Twice three times two, less the two that agree with the exclusion.
    assert len(history) == len(set(keys(history))) == 10
    assert all(small.holds(e.proposal.candidate.config) for e in history)
    assert done == Done("every configuration of the design space has been judged")


def test_a_search_of_what_was_recorded_draws_from_that_alone():
    among = [{"a": 5, "b": "x", "c": 0.5}, {"a": 1, "b": True, "c": 4.0}, {"a": 1, "b": 1, "c": 4.0}]
    starts = [(SPACE.default, "not recorded"), (among[1], "recorded")]
    history, done = play(Search(SPACE, candidate, starts, 1, among), 9)
    assert history[0].proposal.note == "recorded"
    assert sorted(keys(history)) == sorted(repr(sorted(config.items())) for config in among)
    assert done == Done("every recorded configuration has been judged")


def test_a_resumed_search_makes_the_choices_of_an_undisturbed_one():
    whole, _ = play(search(), 16)
    for cut in (0, 1, 11):
        resumed, _ = play(search(), 16 - cut, whole[:cut])
        assert keys(resumed) == keys(whole)
    assert keys(play(search(seed=2), 16)[0]) != keys(whole)


def test_rejected_candidates_are_no_reason_to_stop_and_steer_away():
    history, _ = play(search(), 40, reject=lambda config: config["b"] == "x")
    assert min(e.objective for e in history if e.objective is not None) == 3.5
    everything, _ = play(search(), 12, reject=lambda config: True)
    assert len(set(keys(everything))) == 12


def test_the_sampler_beats_blind_enumeration():
    # Of 68 configurations only (5, x, 0.5) has the optimum 0.5; blind order finds it within 30 with 30 / 68.
    found = [min(e.objective for e in play(search(seed=s), 30)[0]) for s in range(4)]
    assert sum(best == 0.5 for best in found) >= 3


def test_transcript_goes_round_odd_text_included(tmp_path):
    odd = Candidate(op="copy", entry="k.py", files={"k.py": "# \u2028 \r\n \x85 ü\n"}, config={
        "a": True, "b": 1.0, "c": "1"})  # fmt: skip
    proposals = [Proposal(odd, "first\u2029"), Proposal(candidate({}), "second")]
    path = tmp_path / "t.jsonl"
    path.write_bytes(render_transcript(proposals).encode())
    assert read_transcript(path, "copy") == proposals
    assert repr(read_transcript(path, "copy")[0].candidate.config) == repr(odd.config)


@pytest.mark.parametrize(
    ("text", "match"),
    [("", ":1: not a proposal"), ("{}\n", ":1: not a"), ("GOOD\n{", ":2: not a proposal"), ("GOOD\n\n", ":2: not a")],
)
def test_a_damaged_transcript_names_the_line(tmp_path, text, match):
    path = tmp_path / "t.jsonl"
    path.write_text(text.replace("GOOD\n", render_transcript([Proposal(candidate({}), "")])))
    with pytest.raises(UserError, match=match):
        read_transcript(path, "copy")


def test_a_transcript_for_another_op_or_none_at_all(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(render_transcript([Proposal(candidate({}), "")]))
    with pytest.raises(UserError, match="is for op 'copy', not 'paste'"):
        read_transcript(path, "paste")
    with pytest.raises(UserError, match="cannot read the transcript"):
        read_transcript(tmp_path / "none", "copy")


def test_scripted_follows_its_list():
    proposals = [Proposal(candidate({"a": n}), str(n)) for n in range(3)]
    history, done = play_scripted(Scripted("replay", proposals))
    assert history == proposals and done == Done("all 3 proposals have been judged")


def play_scripted(proposer):
    history = []
    while not isinstance(step := proposer.propose(history), Done):
        history.append(step)
    return history, step
