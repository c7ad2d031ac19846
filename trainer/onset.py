"""When did the reward drop? The change point of one fall in a window of rewards (math.md E).

The model is one drop and nothing else: rewards before update t scatter around one mean, rewards from t on
around a lower one, both with the same unknown variance. The residual sum of squares RSS(t) of that fit gives
the profile log-likelihood −(n/2) log RSS(t) over n rewards; its maximum is the onset. Updates within
`LIKELIHOOD_DROP` of the maximum form the likelihood interval. Equal variances are deliberate: collapsed
rewards are often exactly 0, and a variance of their own would make the likelihood infinite there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LIKELIHOOD_DROP = 3.0
"""Log-likelihood units below the maximum that still belong to the interval. A change point is no regular
parameter, so the usual 1.92 covers too little: 87% in simulation for a fall of one noise deviation, where 3
covers 95%; at three deviations and more both cover 96% or better."""

NOISE_FLOOR = 1e-6
"""Least residual deviation, as a share of the rewards' range: keeps log RSS finite on a clean step."""


@dataclass(frozen=True)
class Onset:
    """First update with collapsed reward, and the first and last update the rewards allow for it."""

    step: int
    low: int
    high: int


def change_point(steps: Sequence[int], rewards: Sequence[float], last_candidate: int) -> Onset:
    """Most likely update of one drop after steps[0], up to and including `last_candidate`.

    `rewards[i]` is the mean reward of update `steps[i]`; steps ascend and may have gaps. Rewards after
    `last_candidate` take part in the fit. A drop that falls into a gap is dated at the first reward after it,
    and the interval covers the gap. Without any split that goes down the answer is `last_candidate`, with
    everything since steps[0] as interval.
    """
    n = len(rewards)
    split = np.array([i for i in range(1, n) if steps[i] <= last_candidate], dtype=np.int64)
    values = np.asarray(rewards, dtype=np.float64)
    centred = values - values.mean()
    sums = np.cumsum(centred)
    before = sums[split - 1] / split
    after = (sums[-1] - sums[split - 1]) / (n - split)
    falls = before > after
    if not falls.any():
        return Onset(last_candidate, steps[0], last_candidate)
    rss = np.sum(centred**2) - split * before**2 - (n - split) * after**2
    rss = np.maximum(rss, n * (NOISE_FLOOR * np.ptp(values)) ** 2)
    log_likelihood = np.where(falls, -0.5 * n * np.log(rss), -np.inf)
    best = int(np.argmax(log_likelihood))
    inside = split[log_likelihood >= log_likelihood[best] - LIKELIHOOD_DROP]
    return Onset(steps[int(split[best])], steps[int(inside[0]) - 1] + 1, steps[int(inside[-1])])
