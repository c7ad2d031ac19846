"""The programs that a cluster needs, and the Debian packages that bring them."""

from __future__ import annotations

import os
import shutil

from slurm.cluster.errors import UsageError
from slurm.cluster.options import Options

PACKAGES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server-core",
    "mariadb-install-db": "mariadb-server-core",
    "my_print_defaults": "mariadb-client-core",
}
MUNGE = ("munged",)
ACCOUNTING = ("slurmdbd", "mariadbd", "mariadb-install-db", "my_print_defaults")


def search_path() -> str:
    """Daemons lie in the sbin folders, which an ordinary user's PATH may lack."""
    return f"/usr/sbin:/usr/bin:/sbin:/bin:{os.environ.get('PATH', '')}"


def find(program: str) -> str:
    path = shutil.which(program, path=search_path())
    if path is None:
        raise UsageError(f"{program} is not installed")
    return path


def missing_packages(options: Options) -> list[str]:
    unneeded = (() if options.munge else MUNGE) + (() if options.accounting else ACCOUNTING)
    needed = [program for program in PACKAGES if program not in unneeded]
    absent = [program for program in needed if shutil.which(program, path=search_path()) is None]
    return list(dict.fromkeys(PACKAGES[program] for program in absent))


def check_installed(options: Options) -> None:
    packages = missing_packages(options)
    if packages:
        raise UsageError(
            "programs are missing; on Debian or Ubuntu: apt-get install --no-install-recommends "
            + " ".join(packages)
        )
