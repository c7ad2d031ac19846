"""Which rollouts of a buffer make up a batch: pure functions of what is held and of a random stream."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from trainer.config import StoreConfig

ROW = np.dtype(
    [
        ("rollout", np.int64),
        ("created", np.int64),
        ("version", np.int64),
        ("reward", np.float64),
        ("correct", np.bool_),
        ("uses", np.int64),
        ("last_use", np.int64),  # -1: not used yet
        ("gradient_norm", np.float64),  # -1: not measured yet
    ]
)
"""What is known of a held rollout; arrays of it are in order of arrival."""
Rows = npt.NDArray[np.void]
Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]


def select(rows: Rows, count: int, step: int, config: StoreConfig, stream: np.random.Generator) -> Places:
    """Places in `rows` of a batch of `count`, in random order.

    With replacement they are independent draws by weight; without, each is drawn by weight among those that
    are left. `least_used` takes the least used, ties at random.
    """
    if config.selection == "least_used":
        order = np.lexsort((stream.random(len(rows)), rows["uses"]))
        return stream.permutation(order[:count])
    weights = log_weights(rows, step, config)
    if config.within_batch_replacement:
        if weights is None:
            return stream.integers(len(rows), size=count)
        cumulative = np.cumsum(np.exp(weights - weights.max()))
        return np.searchsorted(cumulative, stream.random(count) * cumulative[-1], side="right").astype(
            np.int64
        )
    if weights is None:
        return stream.permutation(len(rows))[:count]
    # a race of exponential clocks is won in the order of draws without replacement; by logarithms, as the
    # weights of old rollouts underflow
    clocks = np.log(stream.standard_exponential(len(rows))) - weights
    return stream.permutation(np.argpartition(clocks, count - 1)[:count])


def log_weights(rows: Rows, step: int, config: StoreConfig) -> Floats | None:
    """Finite logarithms of the weights, up to a constant; None: all equal."""
    floor = config.selection_floor
    if config.selection == "recency":
        ages: Floats = (step - rows["created"]).astype(np.float64)
        return -math.log(2) * ages / config.recency_half_life
    if config.selection == "reward":
        low, high = rows["reward"].min(), rows["reward"].max()
        return None if low == high else np.log(floor + (1 - floor) * (rows["reward"] - low) / (high - low))
    if config.selection == "gradient_norm":
        norms = rows["gradient_norm"]
        measured = np.isfinite(norms) & (norms >= 0)
        largest = norms[measured].max(initial=0.0)
        if largest == 0:
            return None
        shares: Floats = np.ones(len(rows))  # not measured, or not finite: as the greatest
        shares[measured] = np.maximum(norms[measured] / largest, floor)
        return np.log(shares)
    return None
