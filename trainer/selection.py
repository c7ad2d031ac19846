"""Which rollouts of a buffer make up a batch: pure functions of what is held and of a random stream."""

from __future__ import annotations

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
    weights = selection_weights(rows, step, config)
    if config.within_batch_replacement:
        if weights is None:
            return stream.integers(len(rows), size=count)
        cumulative = np.cumsum(weights)
        return np.searchsorted(cumulative, stream.random(count) * cumulative[-1], side="right").astype(
            np.int64
        )
    if weights is None:
        return stream.permutation(len(rows))[:count]
    # a race of exponential clocks is won in the order of draws without replacement
    clocks = stream.standard_exponential(len(rows)) / weights
    return stream.permutation(np.argpartition(clocks, count - 1)[:count])


def selection_weights(rows: Rows, step: int, config: StoreConfig) -> Floats | None:
    """Positive weights, not normalised; None: all equal."""
    floor = config.selection_floor
    if config.selection == "recency":
        youngest = step - rows["created"].max()  # only ratios count, and old ages may underflow
        weights: Floats = np.exp2(-(step - rows["created"] - youngest) / config.recency_half_life)
        return np.maximum(weights, np.finfo(np.float64).tiny)
    if config.selection == "reward":
        low, high = rows["reward"].min(), rows["reward"].max()
        return None if low == high else floor + (1 - floor) * (rows["reward"] - low) / (high - low)
    if config.selection == "gradient_norm":
        norms = rows["gradient_norm"]
        largest = norms.max()
        if largest <= 0:
            return None
        return np.where(norms < 0, 1.0, np.maximum(norms / largest, floor))
    return None
