"""`python -P -m trainer <run folder>`: train one run."""

import sys
from pathlib import Path


def main() -> int:
    """Exit code as in `trainer.record.Exit`."""
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        print("usage: python -P -m trainer <run folder> (a folder with config.yaml and budget.json)")
        return 2
    from trainer.job import run_job

    return int(run_job(Path(sys.argv[1])))


if __name__ == "__main__":
    sys.exit(main())
