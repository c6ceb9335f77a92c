"""Training learns, goes on as if never stopped, leaves a checkpoint for the plain path; accuracies count right."""

import json
from random import Random

import k3_weights
import pytest
import torch
from fasttrack_validation.contracts.kimi_k3.nano import CONFIG
from fasttrack_validation.contracts.kimi_k3.nano import train as training_script
from fasttrack_validation.contracts.kimi_k3.nano.accuracy import graded, measure
from fasttrack_validation.contracts.kimi_k3.nano.evaluate import evaluate, likeliest, main, plain
from fasttrack_validation.contracts.kimi_k3.nano.tasks import Sample, sample
from fasttrack_validation.contracts.kimi_k3.nano.tokenizer import decode, encode
from fasttrack_validation.contracts.kimi_k3.nano.train import train
from fasttrack_validation.contracts.kimi_k3.nano.training import Run, Settings
from fasttrack_validation.contracts.kimi_k3.weights import writer
from fasttrack_validation.errors import UserError

TINY = k3_weights.pico().model_copy(
    update={
        "vocab_size": 336,
        "layers": 3,
        "attn_res_block_size": 2,
        "kda_layers": (0, 1),
        "mla_layers": (2,),
        "moe": k3_weights.pico().moe.model_copy(update={"experts": 4, "expert_intermediate_size": 64}),
    }
)


def settings(steps: int, **changes) -> Settings:
    return Settings(**{"steps": steps, "tokens": 256, "lengths": (128,), "learning_rate": 0.01, **changes})


def start(directory, config, chosen: Settings, **options) -> list[dict]:
    train(config, chosen, directory, held_out_samples=2, say=lambda line: None, **options)
    return [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("nano") / "tiny.json"
    path.write_text(json.dumps(writer.published_config(TINY)))
    return path


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    directory = tmp_path_factory.mktemp("nano") / "run"
    return directory, start(directory, config, settings(60))


def test_the_loss_falls_far_below_that_of_a_uniform_guess(finished):
    """ln 336 = 5.8 nats; after 60 steps of 256 tokens below 3.2, and falling all the way in blocks of 20 steps."""
    _, log = finished
    losses = [entry["answer_loss"] for entry in log if "answer_loss" in entry]
    assert [entry["step"] for entry in log if "answer_loss" in entry] == [10, 20, 30, 40, 50, 60]
    assert losses[0] > 3.5 and losses[-1] < 3.2
    assert losses[0] > losses[2] > losses[5]


def test_frozen_parameters_learn_nothing(config, tmp_path):
    """The planted fault of the test above: without steps that change anything, the loss stays."""
    log = start(tmp_path / "run", config, settings(20, learning_rate=1e-9))
    losses = [entry["answer_loss"] for entry in log if "answer_loss" in entry]
    assert losses[-1] > 0.95 * losses[0] > 4


def test_a_run_that_was_stopped_goes_on_as_if_it_never_was(finished, config, tmp_path, monkeypatch):
    """Stopped behind a saved state and a log that is ahead of it; then resumed: same curve, same weights."""
    whole, log = finished

    class Stopped(Exception):
        pass

    def stop(line: str) -> None:
        if line.startswith("step 40"):
            raise Stopped

    monkeypatch.setattr(training_script, "SAVE_SECONDS", -1.0)
    with pytest.raises(Stopped):
        train(config, settings(60), tmp_path / "run", say=stop)
    resumed = start(tmp_path / "run", config, settings(60), resume=True)

    def curve(entries):
        return [{k: v for k, v in entry.items() if k != "seconds"} for entry in entries if entry["step"] > 40]

    assert curve(resumed) == curve(log)
    first, second = (torch.load(run / "state.pt", weights_only=True) for run in (whole, tmp_path / "run"))
    assert all(x.equal(second["parameters"][name]) for name, x in first["parameters"].items())
    for file in (whole / "checkpoint").iterdir():
        assert file.read_bytes() == (tmp_path / "run" / "checkpoint" / file.name).read_bytes()


def test_what_cannot_be_resumed_is_refused(finished, config, tmp_path):
    directory, _ = finished
    with pytest.raises(UserError, match="exists already"):
        start(directory, config, settings(60))
    with pytest.raises(UserError, match="other settings"):
        start(directory, config, settings(60, seed=1), resume=True)
    with pytest.raises(UserError, match="no run to resume"):
        start(tmp_path / "none", config, settings(60), resume=True)
    with pytest.raises(ValueError, match="minutes or in steps"):
        Settings()


def test_a_loss_that_is_not_finite_ends_the_run(config, tmp_path, monkeypatch):
    advance = Run.advance
    monkeypatch.setattr(
        Run, "advance", lambda run, batch: advance(run, batch) | {"answer_loss": torch.tensor(torch.nan)}
    )
    with pytest.raises(UserError, match="the loss is nan"):
        start(tmp_path / "run", config, settings(20))


def test_the_selection_bias_evens_out_loads_and_gradients_do_not_touch_it():
    """A router that sends every token to one expert: its bias falls at the given rate, the others rise."""
    run = Run(TINY, settings(1, bias_rate=0.25), "cpu")
    run._balance({layer: torch.tensor([9, 1, 1, 1]) for layer in run.biases})
    assert all(bias.tolist() == [-0.25, 0.25, 0.25, 0.25] for bias in run.biases.values())
    assert not any(bias.requires_grad for bias in run.biases.values())


def test_the_learning_rate_rises_and_falls():
    run, rates = Run(TINY, settings(100, learning_rate=1.0, warmup=0.1), "cpu"), []
    for run.step in (0, 5, 10, 55, 100):
        rates.append(run.learning_rate)
    assert rates == pytest.approx([0.01, 0.5, 1.0, 0.505, 0.01])


def test_the_checkpoint_is_what_was_trained(finished, config):
    """The plain path, from disk in bfloat16 and MXFP4, predicts nearly always what the training model does."""
    directory, _ = finished
    run = Run(TINY, settings(60), "cpu")
    run.restore(torch.load(directory / "state.pt", weights_only=True))
    random = Random(0)
    texts = [sample(task, random, 150, held_out=True).tokens for task in ("arithmetic", "prose", "retrieval")]
    pairs = [
        (mine, theirs)
        for rows in zip(run.likeliest(texts), likeliest(plain(directory / "checkpoint", "cpu"), texts), strict=True)
        for mine, theirs in zip(*rows, strict=True)
    ]
    assert sum(mine == theirs for mine, theirs in pairs) > 0.95 * len(pairs)
    record = json.loads((directory / "training.json").read_text())
    assert (record["steps"], record["tokens"], record["settings"]["seed"]) == (60, 60 * 256, 0)


def test_evaluation_counts_every_suite_it_is_asked_for(finished, tmp_path, capsys):
    directory, _ = finished
    found = evaluate(directory / "checkpoint", samples=2, longest=256)
    assert [accuracy.task for accuracy in found] == ["arithmetic", "product", "copying", "prose"]
    options = ["--samples", "2", "--longest", "256", "--out", str(tmp_path / "found.json")]
    assert main([str(directory / "checkpoint"), *options]) == 0
    written = json.loads((tmp_path / "found.json").read_text())["accuracies"]
    assert written == [accuracy.model_dump() for accuracy in found]
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert main([str(tmp_path / "nothing")]) == 2


def test_accuracies_of_known_predictors():
    """One that knows every text, one that is wrong in the last place of each answer, one that says the same always."""
    drawn = []

    def knows(texts):
        drawn[:] = texts
        return [[*text[1:], 0] for text in texts]

    right = measure(knows, "retrieval", 300, 5, seed=3)
    questions = sum(decode(text).count("recall ") for text in drawn)
    assert right.answers_right == right.answers == questions >= 20
    assert right.tokens_right == right.tokens == 5 * questions  # four digits and the end of the line
    (newline,) = encode("\n")
    constant = measure(lambda texts: [[newline] * len(text) for text in texts], "retrieval", 300, 5, seed=3)
    assert constant.answers_right == 0 and constant.tokens_right == questions == constant.commonest


def test_an_answer_needs_every_token():
    text = Sample([1, 5, 6, 7, 8, 9], [False, False, True, True, False, True])
    assert graded(text, [5, 6, 7, 8, 9, 2]) == [[True, True], [True]]
    assert graded(text, [5, 6, 0, 8, 9, 2]) == [[True, False], [True]]
    assert graded(text, [0, 6, 7, 0, 0, 2]) == [[True, True], [False]]


def test_a_run_without_a_gpu_says_so(tmp_path, capsys):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert training_script.main(["--device", "cuda", "--minutes", "1", "--out", str(tmp_path / "run")]) == 2
    assert "no CUDA GPU" in capsys.readouterr().err


def test_the_nano_configuration_has_every_mechanism():
    """Three AttnRes blocks, KDA before and after MLA, two MLA layers at the end, sizes that 16 ranks divide."""
    of = training_script.Architecture.from_config(CONFIG)
    assert -(-of.layers // of.attn_res_block_size) == 3
    assert of.mla_layers[-2:] == (of.layers - 2, of.layers - 1)
    assert min(of.mla_layers) < max(of.kda_layers)
    assert of.moe.first_layer == 1 and of.moe.top_k < of.moe.experts
    for size in (of.kda.heads, of.mla.heads, of.vocab_size, of.moe.expert_intermediate_size // 32):
        assert size % 16 == 0
