"""Units on toy paths: stopped anywhere they go on to the same bytes; what is not the same is refused."""

from dataclasses import dataclass, field

import pytest
import torch
from fasttrack_validation.errors import UserError
from fasttrack_validation.numerics.whole_model import runner, scenarios, tokens
from fasttrack_validation.numerics.whole_model.runner import UnitRun
from fasttrack_validation.numerics.whole_model.scenario import Kind, RungName, Unit
from safetensors.torch import load_file, save_file

VOCABULARY, WIDTH = 12, 3


@dataclass
class Batch:
    tokens: tuple
    requests: tuple
    counts: tuple


@dataclass
class Seen:
    logits: torch.Tensor
    streams: torch.Tensor
    chosen: dict = field(default_factory=dict)
    scores: dict = field(default_factory=dict)


class Toy:
    """A path whose state is a sum over all tokens that it kept."""

    def __init__(self, noise: float = 0.0, stop_after: int | None = None) -> None:
        self.noise, self.left = noise, stop_after
        self.decoded = 0

    def begin(self, requests, max_tokens, width):
        self.state, self.trial = torch.zeros(requests, dtype=torch.float64), {}

    def _rows(self, batch):
        logits, row = [], 0
        self.trial = {}
        for request, count in zip(batch.requests, batch.counts, strict=True):
            states = [self.state[request].clone()]
            for _ in range(count):
                states.append(0.9 * states[-1] + batch.tokens[row] + self.noise)
                logits.append(torch.sin(states[-1] * torch.arange(1, VOCABULARY + 1).double()))
                row += 1
            self.trial[request] = states
        found = torch.stack(logits)
        return Seen(found, found[None, :, :WIDTH].repeat(2, 1, 1))

    def prefill(self, batch):
        seen = self._rows(batch)
        for request, states in self.trial.items():
            self.state[request] = states[-1]
        return seen

    def decode(self, batch):
        if self.left is not None and self.decoded == self.left:
            raise KeyboardInterrupt
        self.decoded += 1
        return self._rows(batch)

    def commit(self, batch, accepted):
        for request, kept in zip(batch.requests, accepted, strict=True):
            self.state[request] = self.trial[request][kept]

    def release(self, request):
        self.state[request] = 0

    def committed(self, request):
        return {"0.recurrent_state": self.state[request : request + 1]}

    def null_pages(self):
        return ()

    def save(self, file):
        save_file({"state": self.state}, file)

    def load(self, file):
        self.state.copy_(load_file(file)["state"])


HEADER = tokens.Header(unit="u", rung="greedy", tp=1, subject="s", candidate="c", replicas=())
UNIT = Unit(RungName.GREEDY, "toy", 1, 1, 60)


def run(directory, *, stop=None, noise=1e-3, header=HEADER, actions=None):
    paths = {"oracle": Toy(), "stock": Toy(2e-3), "candidate": Toy(noise, stop)}
    work = UnitRun(UNIT, paths, lambda a: Batch(a.tokens, a.requests, a.counts), directory, header)
    return work(actions or scenarios.greedy([1, 2, 3], 21)), paths["candidate"]


@pytest.mark.parametrize("stop", [0, 1, 7, 8, 9, 20])
def test_a_run_that_was_stopped_at_any_token_ends_in_the_same_bytes(tmp_path, stop):
    whole = run(tmp_path / "a" if (tmp_path / "a").mkdir() is None else None)[0].read_bytes()
    other = tmp_path / "b"
    other.mkdir()
    with pytest.raises(KeyboardInterrupt):
        run(other, stop=stop)
    file, candidate = run(other)
    assert file.read_bytes() == whole
    # What was behind the last snapshot ran again, and no more.
    assert candidate.decoded <= 21 - (stop + 1) // runner.SNAPSHOT_ACTIONS * runner.SNAPSHOT_ACTIONS + 1
    assert sorted(path.name for path in other.iterdir()) == [file.name]


def test_a_line_that_was_cut_off_is_written_again(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, stop=5)
    journal = tmp_path / f"{UNIT.key}.jsonl"
    journal.write_bytes(journal.read_bytes()[:-40])
    records = tokens.read(run(tmp_path)[0])
    assert [step.action for step in records.steps] == list(range(22)) and records.end


def test_another_result_the_second_time_is_refused(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, stop=5)
    with pytest.raises(UserError, match="came out differently"):
        run(tmp_path, noise=0.5)


def test_records_of_another_subject_are_not_gone_on_with(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, stop=5)
    with pytest.raises(UserError, match="another checkpoint"):
        run(tmp_path, header=HEADER.model_copy(update={"subject": "other"}))


def test_greedy_feeds_the_oracles_choice_back(tmp_path):
    records = tokens.read(run(tmp_path)[0])
    seen = [token for step in records.steps if step.kind == Kind.DECODE for token in step.tokens]
    assert [token.token for token in seen[1:]] == [token.top1 for token in seen[:-1]]
    assert all(token.target == token.top1 for token in seen)


def test_positions_follow_what_was_accepted(tmp_path):
    stream = list(range(10)) * 3
    actions = scenarios.verify(stream, 4, lambda history, count: [9] * count, 4, 5)
    records = tokens.read(run(tmp_path, actions=actions)[0])
    firsts = [step.tokens[0].position for step in records.steps if step.kind == Kind.DECODE]
    # The stream is 4 5 6 7 8 9, the third step an ordinary one: the proposal 9 is right behind 8 alone, where two tokens are kept.
    assert firsts == [4, 5, 6, 7, 8]
    assert [len(step.tokens) for step in records.steps if step.kind == Kind.DECODE] == [1, 1, 1, 1, 2]


def test_every_accepted_count_of_every_width_is_tried():
    stream = list(range(11)) * 20
    counts = {width: range(width + 1) for width in range(2, 9)}
    tried = [
        (len(action.tokens), action.accepted[0])
        for action in scenarios.verify_every(stream, 4, counts, 11) if action.kind is Kind.DECODE and len(action.tokens) > 1
    ]  # fmt: skip
    assert tried == [(width, kept) for width in range(2, 9) for kept in range(width + 1)]
