"""Accounting: a private MariaDB, slurmdbd, and the account that jobs run under."""

from __future__ import annotations

import shutil
import subprocess

from slurm.cluster import configuration
from slurm.cluster.commands import command, succeeds
from slurm.cluster.errors import ClusterError
from slurm.cluster.layout import Layout
from slurm.cluster.ports import Ports, answers
from slurm.cluster.processes import wait_until
from slurm.cluster.programs import find
from slurm.cluster.supervisor import SupervisorClient, daemon_environment, exit_status, log_tail

ACCOUNT = "test"
# Nothing needs to outlive a crash of the machine, so nothing waits for the disk. Every cluster has its own
# files, so they are small.
INNODB = [
    "--innodb-buffer-pool-size=64M",
    "--innodb-log-file-size=16M",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-flush-method=nosync",
    "--skip-innodb-doublewrite",
]


def start_accounting(layout: Layout, supervisor: SupervisorClient, ports: Ports) -> None:
    if not (layout.database / "mysql").is_dir():
        _install_database(layout)
    _start_mariadb(layout, supervisor, ports)
    supervisor.run([find("slurmdbd")], layout.log / "slurmdbd.out")
    wait_until(lambda: answers(ports.accounting), 60, f"slurmdbd, see {layout.log}/slurmdbd.log")
    wait_until(lambda: succeeds(layout, "sacctmgr", "-n", "list", "cluster"), 60, "sacctmgr to be answered")
    _add_account(layout)


def _install_database(layout: Layout) -> None:
    # made under another name, so that an interrupted installation is not taken for a database
    unfinished = layout.folder / "mysql.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700)
    log = layout.log / "mariadb-install-db.log"
    with log.open("w") as output:
        status = subprocess.call(
            [
                find("mariadb-install-db"),
                "--no-defaults",
                f"--user={configuration.user_name()}",
                f"--datadir={unfinished}",
                "--skip-test-db",
                "--skip-name-resolve",
                "--auth-root-authentication-method=normal",
                *INNODB,
            ],
            env=daemon_environment(layout),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    if status != 0:
        raise ClusterError(f"mariadb-install-db ended with {status}: {log_tail(log)}")
    unfinished.rename(layout.database)


def _start_mariadb(layout: Layout, supervisor: SupervisorClient, ports: Ports) -> None:
    log = layout.log / "mariadbd.log"
    connection = supervisor.start(
        [
            find("mariadbd"),
            "--no-defaults",
            f"--user={configuration.user_name()}",
            f"--datadir={layout.database}",
            f"--socket={layout.run}/mysql.sock",
            f"--pid-file={layout.pid_file('mariadbd')}",
            "--bind-address=127.0.0.1",
            f"--port={ports.database}",
            "--skip-name-resolve",
            "--skip-log-bin",
            f"--init-file={layout.etc}/init.sql",
            "--innodb-lock-wait-timeout=900",  # slurmdbd asks for it
            *INNODB,
            f"--log-error={log}",
        ],
        layout.log / "mariadbd.out",
    )

    def answers_or_ended() -> bool:
        status = exit_status(connection, 0.05)
        if status is not None:
            raise ClusterError(f"mariadbd ended with {status}: {log_tail(log)}")
        return answers(ports.database)

    with connection:
        wait_until(answers_or_ended, 60, f"mariadbd, see {log}")


def _add_account(layout: Layout) -> None:
    """The cluster must be known before its controller starts; limits need an account and a user in it."""
    cluster, user = configuration.CLUSTER, configuration.user_name()
    if cluster not in _listed(layout, "cluster", "format=cluster"):
        command(layout, "sacctmgr", "-i", "add", "cluster", cluster)
    if ACCOUNT not in _listed(layout, "account", "format=account"):
        command(layout, "sacctmgr", "-i", "add", "account", ACCOUNT, f"cluster={cluster}")
    if f"{user}|{ACCOUNT}" not in _listed(layout, "association", "format=user,account"):
        command(
            layout, "sacctmgr", "-i", "add", "user", user, f"account={ACCOUNT}", f"defaultaccount={ACCOUNT}"
        )


def _listed(layout: Layout, what: str, form: str) -> list[str]:
    return command(layout, "sacctmgr", "-n", "-P", "list", what, form).split()
