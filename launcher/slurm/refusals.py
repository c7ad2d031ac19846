"""What Slurm's commands say when they fail: no answer, or a refusal, and whether waiting helps.

    sbatch: error: QOSMaxSubmitJobPerUserLimit                          the limit, since Slurm 20.11
    sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, …)

The second line is the same for every limit of an account or QOS, of time and size as well as of numbers. The
first, where there is one, tells them apart.
"""

from __future__ import annotations

import re

UNANSWERED = (
    "Unable to contact slurm controller",
    "Unable to connect",
    "Unable to establish",
    "Communication connection failure",
    "Communication shutdown failure",
    "Socket timed out",
    "Connection refused",
    "Connection reset",
    "Connection timed out",
    "Resource temporarily unavailable",
    "Zero Bytes were transmitted",
    "Unexpected message received",
    "Message receive failure",
    "Message send failure",
    "Insane message length",
    "Header lengths are longer than data received",
    "slurm_receive_msg",
    "Slurm backup controller in standby mode",
    "Transport endpoint is not connected",
    "SlurmDBD connection",
    "slurm_persist_conn",
    "Problem talking to the database",
)
"""What a controller or database says, or has said for it, that is busy or away."""

SUBMIT_LIMITS = re.compile(r"\b(?:QOS|Assoc)?(?:Max|Grp)Submit(?:Jobs?)?(?:Per\w+?)?(?:Limit)?\b")
"""Limits on how many jobs are in the queue: QOSMaxSubmitJobPerUserLimit, MaxSubmitJobsPerAccount, …"""
LIMITS = re.compile(r"\b(?:(?:QOS|Assoc)(?:Max|Min|Grp)\w+|Max\w+Per(?:Account|User|Limit))\b")
"""Slurm's names of the limits of accounts and QOS (job_state_reason.c)."""
POLICY = "Job violates accounting/QOS policy"
BUSY = ("Slurm temporarily unable to accept job", "Slurm job queue full", "Unable to create job record")
"""The controller holds MaxJobCount jobs; sbatch itself asks again for two minutes."""
ARRAY = "Invalid job array specification"
"""The array is larger than MaxArraySize or max_array_tasks."""
DISABLED = "accounting storage is disabled"


UNDELIVERED = ("Unable to contact slurm controller (connect failure)", "Connection refused")
"""Of these, what the controller cannot have heard."""


class SlurmError(RuntimeError):
    """Slurm did not do what was asked."""


class NoAnswer(SlurmError):  # noqa: N818 - says what it is
    """The controller or the database did not answer; what was asked may or may not have happened."""

    @property
    def undelivered(self) -> bool:
        """Whether the controller cannot have heard of it, so that it surely did not happen."""
        return any(words in str(self).rpartition("; ")[2] for words in UNDELIVERED)


class Refused(SlurmError):  # noqa: N818 - says what it is
    """sbatch made no job."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        """Slurm's sentence."""
        named = LIMITS.search(reason)
        self.limit: str | None = named[0] if named else None
        """Slurm's name of the limit that was hit, where it tells."""
        policy = POLICY in reason
        numbers = SUBMIT_LIMITS.search(reason) is not None or any(words in reason for words in BUSY)
        self.certain = not policy or named is not None
        """False: the general sentence on policy alone, which is also that of a time limit or size beyond what
        the QOS allows. `room` is then a guess; with nothing of ours in the queue it is wrong."""
        self.later = numbers or not self.certain
        """Whether the same tasks may be taken once others have left the queue."""
        self.room = self.later or ARRAY in reason
        """Whether fewer tasks, or the same ones later, may be taken."""


def sentence(stderr: str, otherwise: str) -> str:
    """What a command said that failed, in one line.

    >>> sentence("sbatch: error: QOSMaxWall\\nsbatch: error: Batch job submission failed: no\\n", "")
    'QOSMaxWall; Batch job submission failed: no'
    """
    lines = [re.sub(r"^\w+: (?:error|fatal): ", "", line.strip()) for line in stderr.splitlines()]
    return "; ".join(filter(None, lines)) or otherwise


def unanswered(reason: str) -> bool:
    """Whether a command failed as nobody answered it: its last words tell, as it may have tried before.

    >>> unanswered("Slurm temporarily unable to accept job, sleeping and retrying; Batch job submission "
    ...            "failed: Socket timed out on send/recv operation")
    True
    """
    last = reason.rpartition("; ")[2]
    if "Resource temporarily unavailable" in last and any(words in reason for words in BUSY):
        return False  # the controller's own words, when it had been asked for two minutes
    return any(words in last for words in UNANSWERED)


def disabled(reason: str) -> bool:
    """Whether a cluster has no accounting."""
    return DISABLED in reason
