"""What ends a command with one message."""


class ClusterError(Exception):
    """The cluster could not do what was asked; exit code 1."""


class UsageError(ClusterError):
    """What was asked for cannot work, or programs are missing; exit code 2."""
