"""What kind of cluster is wanted."""

from __future__ import annotations

from dataclasses import dataclass

from slurm.cluster.errors import UsageError

MAX_NODES = 80


@dataclass(frozen=True)
class Options:
    """Two calls of `up` with equal options mean the same cluster."""

    accounting: bool = True
    limits: bool = False
    """Enforce the limits of accounts and of the quality of service (sacctmgr modify qos ...)."""
    nodes: int = 4
    cpus: int = 8
    gpus: int = 8
    memory_mb: int = 65536
    """CPUs, GPUs and memory that each node claims; the machine need not have them."""
    munge: bool = True
    """Authentication by a private munged; without it auth/none."""
    port_base: int | None = None
    """None: a free range is looked for."""
    extra: tuple[str, ...] = ()
    """Lines of slurm.conf; one that begins with the key of a default line replaces it."""

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= MAX_NODES:
            raise UsageError(f"--nodes {self.nodes} is not between 1 and {MAX_NODES}")
        if min(self.cpus, self.memory_mb) < 1 or self.gpus < 0:
            raise UsageError("--cpus and --mem-mb must be at least 1, --gpus at least 0")
        if self.limits and not self.accounting:
            raise UsageError("--limits needs accounting: leave out --no-accounting")
        if self.port_base is not None and not 1024 <= self.port_base <= 65000:
            raise UsageError(f"--port-base {self.port_base} is not between 1024 and 65000")
        for line in self.extra:
            if "=" not in line or "\n" in line:
                raise UsageError(f"--extra {line!r} is not a line KEY=VALUE of slurm.conf")

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"n{number}" for number in range(1, self.nodes + 1))
