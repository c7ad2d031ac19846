"""Per-rollout usage of a run: rollouts/part-*.parquet, each for a fixed window of updates.

One row per event: `generated` (a rollout entered the store), `used` (it was in a trained batch) and `left`
(the store let it go). Which columns an event has is in `COLUMNS`; the others are null. Off-policiness, uses
(zeros included), steps since last use and buffer age follow by counting (math.md A6).
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from trainer.files import write_atomic

EVENTS = ("generated", "used", "left")
COLUMNS = {
    "prompt": ("generated",),  # place of its prompt in issue order
    "version_first": ("generated",),
    "version_last": ("generated",),
    "tokens": ("generated",),
    "reward": ("generated",),
    "lag": ("used",),  # off-policiness: step − version at the first token
    "age": ("used",),  # step − step at which it entered the store
    "since_last_use": ("used",),  # steps since its previous use; null: first use
}
Numbers = npt.NDArray[np.int64] | npt.NDArray[np.float64]


class Usage:
    """The window in progress."""

    def __init__(self, folder: Path, window: int) -> None:
        self.folder, self.window = folder, window
        self._rows: list[dict[str, npt.NDArray[np.float64]]] = []

    def add(self, step: int, event: str, rollouts: Numbers, **columns: Numbers) -> None:
        """Note that something happened to rollouts at update `step`; NaN is null."""
        if len(rollouts):
            rows = {"step": np.full(len(rollouts), step, dtype=np.float64)}
            rows |= {"event": np.full(len(rollouts), EVENTS.index(event), dtype=np.float64)}
            rows |= {"rollout": rollouts.astype(np.float64)}
            missing = np.full(len(rollouts), np.nan)
            rows |= {name: np.asarray(columns.get(name, missing), dtype=np.float64) for name in COLUMNS}
            self._rows.append(rows)

    def close_update(self, step: int) -> None:
        """Update `step` is over: write the window if it ends here."""
        if (step + 1) % self.window == 0:
            self.write(step)
            self._rows = []

    def write(self, step: int) -> None:
        """Write the window of update `step`, complete or not."""
        if self._rows:
            self.folder.mkdir(exist_ok=True)
            write_atomic(self._path(step), _parquet(self._table()))

    def tensors(self) -> dict[str, Tensor]:
        """The window in progress, for a checkpoint."""
        return {name: torch.from_numpy(values) for name, values in self._table().items()}

    def restore(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        """Go back to `step` updates done: drop files of later windows, put the open window back."""
        for path in self.folder.glob("*"):  # files cut off while they were written have other names
            if path.name >= self._path(step).name or not path.name.startswith("part-"):
                path.unlink()
        self._rows = [{name: tensor.numpy() for name, tensor in tensors.items()}] if tensors else []

    def _path(self, step: int) -> Path:
        return self.folder / f"part-{step // self.window:06d}.parquet"

    def _table(self) -> dict[str, npt.NDArray[np.float64]]:
        if not self._rows:
            return {}
        return {name: np.concatenate([rows[name] for rows in self._rows]) for name in self._rows[0]}


def _parquet(table: Mapping[str, npt.NDArray[np.float64]]) -> bytes:
    events = pa.DictionaryArray.from_arrays(pa.array(table["event"].astype(np.int8)), pa.array(EVENTS))
    arrays: dict[str, pa.Array] = {"step": pa.array(table["step"].astype(np.int32)), "event": events}
    arrays["rollout"] = pa.array(table["rollout"].astype(np.int64))
    for name in COLUMNS:
        kind = pa.float32() if name == "reward" else pa.int32()
        missing = np.isnan(table[name])
        filled = np.where(missing, 0, table[name]).astype(np.float32 if name == "reward" else np.int32)
        arrays[name] = pa.array(filled, type=kind, mask=missing)
    buffer = io.BytesIO()
    pq.write_table(pa.table(arrays), buffer, compression="zstd")
    return buffer.getvalue()
