"""`python3 slurm/cluster COMMAND DIR`, from any folder."""

import sys
from pathlib import Path


def run() -> int:
    # Python puts this folder first on the path when it runs a folder; its modules belong to the package.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    from slurm.cluster.cli import main

    return main()


if __name__ == "__main__":
    sys.exit(run())
