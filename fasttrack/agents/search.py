"""The proposer that needs no endpoint: a search of the declared design space."""

import random
from collections.abc import Callable, Sequence

from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.records import canonical_json

from .protocol import Done, Evaluation, Proposal
from .space import Config, Space

ASKS = 32


class Search:
    """Starts from given configurations, then asks Optuna's TPE sampler.

    Every call rebuilds the study from the history and seeds the sampler from (seed, round), so a proposal is a
    function of the two. A configuration is proposed once; when the space is used up, the search is done.
    """

    name = "search"

    def __init__(
        self, space: Space, candidate: Callable[[Config], Candidate], starts: Sequence[tuple[Config, str]], seed: int,
        among: Sequence[Config] | None = None,
    ) -> None:  # fmt: skip
        """`candidate` makes the candidate of a configuration; `starts` are (configuration, why) to try first.

        `among`: the configurations that may be proposed, by default the whole space.
        """
        self.space = space
        self.candidate = candidate
        self.among = None if among is None else {canonical_json(config) for config in among}
        self.starts = [(config, why) for config, why in starts if self._may(config)]
        self.seed = seed

    def propose(self, history: Sequence[Evaluation]) -> Proposal | Done:
        """The first start not tried yet, else the sampler's choice, else any configuration left."""
        tried = {canonical_json(evaluation.proposal.candidate.config) for evaluation in history}
        for config, why in self.starts:
            if canonical_json(config) not in tried:
                return Proposal(self.candidate(config), why)
        left = [c for c in self.space.configurations() if self._may(c) and canonical_json(c) not in tried]
        if not left:
            what = "configuration of the design space" if self.among is None else "recorded configuration"
            return Done(f"every {what} has been judged")
        rng = random.Random(f"{self.seed}/{len(history)}")
        config = self._sample(history, left, rng.getrandbits(32))
        if config is not None:
            return Proposal(self.candidate(config), "chosen by the TPE sampler from the times so far")
        return Proposal(self.candidate(rng.choice(left)), "drawn from the configurations not tried yet")

    def _may(self, config: Config) -> bool:
        return self.among is None or canonical_json(config) in self.among

    def _sample(self, history: Sequence[Evaluation], left: list[Config], seed: int) -> Config | None:
        """A configuration out of `left`, or None when the sampler keeps to those already tried."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=len(self.starts)))
        # Strings are unambiguous categories; Optuna would take True and 1 for one value.
        choices = {
            name: {canonical_json(value): value for value in values}
            for name, values in self.space.parameters.items()
        }
        distributions = {
            name: optuna.distributions.CategoricalDistribution(list(values)) for name, values in choices.items()
        }
        for evaluation in history:
            config = evaluation.proposal.candidate.config
            if not self.space.holds(config):
                continue
            finished = evaluation.objective is not None
            study.add_trial(
                optuna.trial.create_trial(
                    params={name: canonical_json(value) for name, value in config.items()},
                    distributions=distributions,
                    value=evaluation.objective,
                    state=optuna.trial.TrialState.COMPLETE if finished else optuna.trial.TrialState.PRUNED,
                )
            )
        wanted = {canonical_json(config): config for config in left}
        for _ in range(ASKS):
            trial = study.ask(distributions)
            config = {name: choices[name][choice] for name, choice in trial.params.items()}
            if canonical_json(config) in wanted:
                return wanted[canonical_json(config)]
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        return None
