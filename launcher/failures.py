"""Why a job did not finish, and which commands run it again by themselves."""

from __future__ import annotations

from enum import StrEnum


class Failure(StrEnum):
    """Class of a job that ended without a finished record."""

    OUT_OF_MEMORY = "out_of_memory"
    DISK_FULL = "disk_full"
    TIME_LIMIT = "time_limit"
    PREEMPTED = "preempted"
    NODE_FAILURE = "node_failure"
    CANCELLED = "cancelled"
    CONFIG = "config"
    """The job could not begin: a module or package is missing or of another version, a folder is not valid."""
    EXCEPTION = "exception"
    KILLED = "killed"
    """A signal of unknown origin ended it."""
    LOST = "lost"
    """Its job is gone without a word."""


AT_SUBMIT = frozenset({Failure.PREEMPTED, Failure.TIME_LIMIT, Failure.CANCELLED, Failure.KILLED})
"""Run again by `submit`: nothing was wrong with the run."""
AT_RESUME = AT_SUBMIT | {Failure.NODE_FAILURE, Failure.LOST, Failure.DISK_FULL}
"""Run again by `resume`. The others would fail the same way again, so `--retry` has to name them."""
