"""What the machine at hand can do, measured: memory bandwidth and the rate of matrix products."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from trainer.seeding import generator

MODES = {"as jobs run": (True, True), "memory not filled": (True, False), "not deterministic": (False, False)}
"""Whether deterministic kernels are asked for, as `trainer.job` does on every device, and whether torch then
fills fresh memory, which it does unless told not to."""


@contextmanager
def mode(name: str) -> Iterator[None]:
    """One of `MODES` for the block."""
    deterministic, filled = MODES[name]
    before = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(deterministic, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = filled
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = before


@dataclass(frozen=True, slots=True)
class Machine:
    bandwidth: float
    """Bytes read and written per second, by a large copy."""
    matmul_rate: float
    """FLOP per second of a large bfloat16 product."""

    def seconds(self, traffic: float, flop: float) -> float:
        """Least time for so many bytes and FLOP: whichever takes longer."""
        return max(traffic / self.bandwidth, flop / self.matmul_rate)

    @property
    def numbers(self) -> dict[str, float]:
        return {"measured GB/s": self.bandwidth / 1e9, "measured bfloat16 TFLOP/s": self.matmul_rate / 1e12}


def measure(device: torch.device, copied_bytes: int, matrix: int) -> Machine:
    """Best of several tries each."""
    source = torch.zeros(copied_bytes, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    copying = best_seconds(lambda: target.copy_(source), device, 10)
    factor = torch.randn(matrix, matrix, generator=generator(0, "matmul", 0)).to(device, torch.bfloat16)
    multiplying = best_seconds(lambda: factor @ factor, device, 10)
    return Machine(2 * copied_bytes / copying, 2 * matrix**3 / multiplying)


def best_seconds(action: Callable[[], Any], device: torch.device, tries: int) -> float:
    """Shortest time of several, after one that is not counted."""
    action()
    return min(seconds(action, device) for _ in range(tries))


def seconds(action: Callable[[], Any], device: torch.device) -> float:
    """Time until the device has done it."""
    _wait(device)
    started = time.perf_counter()
    action()
    _wait(device)
    return time.perf_counter() - started


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
