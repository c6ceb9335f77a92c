"""Which figure may be shown: not always the one that was asked for."""

from ..claim import Claim
from ..findings import Effect
from ..measurement import Metric
from .arms import gpu_counts
from .speculation import forced_acceptance


def shown_metric(claim: Claim) -> Metric:
    """tok/s/GPU where GPU counts differ (P2), a step's time under forced acceptance (P3), else what was asked for."""
    for check, metric in ((gpu_counts, Metric.TOK_S_GPU), (forced_acceptance, Metric.STEP_TIME)):
        if any(finding.effect is Effect.REPLACED for finding in check(claim)):
            return metric
    return claim.metric
