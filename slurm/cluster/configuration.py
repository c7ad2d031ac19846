"""The texts of slurm.conf and its companions.

Values that matter to whoever requeues jobs:
    cred_expire   how long Slurm waits before a requeued job may start again. It must exceed KillWait by about
                  two seconds, or the job starts on a node where its old step still runs: the node is drained.
    KillWait      seconds between SIGTERM and SIGKILL at a time limit.
    SlurmdTimeout a dead node is noticed after about twice this many seconds.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from slurm.cluster.errors import ClusterError
from slurm.cluster.layout import Layout
from slurm.cluster.options import Options
from slurm.cluster.ports import Ports

CLUSTER = "test"
REPEATABLE = ("nodename", "partitionname", "nodeset", "downnodes")
"""Keys that stand on several lines of slurm.conf: what tells two lines apart is key and value."""


def user_name() -> str:
    """The user of the daemons and of all jobs."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        raise ClusterError(f"user {os.getuid()} has no name in /etc/passwd, and Slurm wants one") from None


def slurm_conf(layout: Layout, options: Options, ports: Ports) -> str:
    lines = [
        *_identity(layout, ports),
        *_authentication(layout, options),
        *_behaviour(),
        *_accounting(layout, options, ports),
        *_nodes(layout, options, ports),
    ]
    extra_keys = {_line_key(line) for line in options.extra}
    kept = [line for line in lines if _line_key(line) not in extra_keys]
    return "\n".join([*options.extra, *kept, ""])  # a key that stands twice would be fatal


def _line_key(line: str) -> str:
    key, _, rest = line.strip().partition("=")
    key = key.strip().lower()
    return f"{key}={rest.split()[0]}" if key in REPEATABLE else key


def _identity(layout: Layout, ports: Ports) -> list[str]:
    user = user_name()
    return [
        f"ClusterName={CLUSTER}",
        "SlurmctldHost=localhost(127.0.0.1)",
        f"SlurmctldPort={ports.controller}",
        f"SlurmUser={user}",
        f"SlurmdUser={user}",
        f"StateSaveLocation={layout.folder}/state",
        f"SlurmdSpoolDir={layout.spool('%n')}",
        f"SlurmctldPidFile={layout.pid_file('slurmctld')}",
        f"SlurmdPidFile={layout.node_pid_file('%n')}",
        f"SlurmctldLogFile={layout.log}/slurmctld.log",
        f"SlurmdLogFile={layout.log}/slurmd.%n.log",
        f"PlugStackConfig={layout.etc}/plugstack.conf",
    ]


def _authentication(layout: Layout, options: Options) -> list[str]:
    if options.munge:
        return [
            "AuthType=auth/munge",
            "CredType=cred/munge",
            f"AuthInfo=socket={layout.munge_socket},cred_expire=10",
        ]
    return ["AuthType=auth/none", "CredType=cred/none", "AuthInfo=cred_expire=10"]


def _behaviour() -> list[str]:
    return [
        # no cgroups: they would need rights that an ordinary user lacks
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "SwitchType=switch/none",
        "MpiDefault=none",
        # a node that comes back after a failure is used again
        "ReturnToService=2",
        # nodes may claim more CPUs and memory than the machine has
        "SlurmdParameters=config_overrides",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU_Memory",
        # else a job that names no memory takes the whole node's
        "DefMemPerCPU=256",
        # decide at once, as tests wait for it
        "SchedulerType=sched/backfill",
        "SchedulerParameters=bf_interval=1,sched_min_interval=0,batch_sched_delay=0,max_rpc_cnt=0",
        "PriorityType=priority/basic",
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        # a preempted job is told by the signal that it asked for
        "SlurmctldParameters=preempt_send_user_signal",
        "JobRequeue=1",
        "MaxArraySize=10001",
        "MaxJobCount=50000",
        "MinJobAge=300",
        "KillWait=2",
        "InactiveLimit=0",
        "SlurmctldTimeout=30",
        "SlurmdTimeout=15",
        "MessageTimeout=30",
    ]


def _accounting(layout: Layout, options: Options, ports: Ports) -> list[str]:
    if not options.accounting:
        return ["AccountingStorageType=accounting_storage/none", "JobAcctGatherType=jobacct_gather/none"]
    lines = [
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=127.0.0.1",
        f"AccountingStoragePort={ports.accounting}",
        "AccountingStorageTRES=gres/gpu",
        "JobAcctGatherType=jobacct_gather/linux",
        "JobAcctGatherFrequency=task=5",
    ]
    if options.munge:
        lines.append(f"AccountingStoragePass={layout.munge_socket}")
    if options.limits:
        lines.append("AccountingStorageEnforce=limits,qos")
    return lines


def _nodes(layout: Layout, options: Options, ports: Ports) -> list[str]:
    first, last = options.node_names[0], options.node_names[-1]
    gres = f" Gres=gpu:{options.gpus}" if options.gpus else ""
    partition = "Nodes=ALL MaxTime=INFINITE DefaultTime=60 State=UP"
    return [
        "GresTypes=gpu",
        f"NodeName={_node_range(options)} NodeHostname=localhost NodeAddr=127.0.0.1"
        f" Port=[{ports.node(first)}-{ports.node(last)}]"
        f" CPUs={options.cpus} RealMemory={options.memory_mb}{gres} State=UNKNOWN",
        f"PartitionName=main {partition} Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=10",
        f"PartitionName=high {partition} PriorityTier=10 PreemptMode=OFF",
    ]


def _node_range(options: Options) -> str:
    return f"n[1-{options.nodes}]"


def gres_conf(layout: Layout, options: Options) -> str:
    """GPUs are links to /dev/null: slurmd wants character devices, and nobody opens them."""
    if options.gpus == 0:
        return ""
    return f"NodeName={_node_range(options)} Name=gpu File={layout.folder}/dev/gpu[0-{options.gpus - 1}]\n"


def slurmdbd_conf(layout: Layout, options: Options, ports: Ports) -> str:
    authentication = (
        ["AuthType=auth/munge", f"AuthInfo=socket={layout.munge_socket}"]
        if options.munge
        else ["AuthType=auth/none"]
    )
    lines = [
        "DbdHost=localhost",
        "DbdAddr=127.0.0.1",
        f"DbdPort={ports.accounting}",
        f"SlurmUser={user_name()}",
        *authentication,
        f"LogFile={layout.log}/slurmdbd.log",
        f"PidFile={layout.pid_file('slurmdbd')}",
        "StorageType=accounting_storage/mysql",
        "StorageHost=127.0.0.1",
        f"StoragePort={ports.database}",
        "StorageUser=slurm",
        "StoragePass=slurm",
        "StorageLoc=slurm_acct_db",
    ]
    return "\n".join([*lines, ""])


def database_init_sql() -> str:
    return (
        "CREATE DATABASE IF NOT EXISTS slurm_acct_db;\n"
        "CREATE USER IF NOT EXISTS 'slurm'@'127.0.0.1' IDENTIFIED BY 'slurm';\n"
        "GRANT ALL ON slurm_acct_db.* TO 'slurm'@'127.0.0.1';\n"
    )


def write_all(layout: Layout, options: Options, ports: Ports) -> None:
    layout.slurm_conf.write_text(slurm_conf(layout, options, ports))
    (layout.etc / "gres.conf").write_text(gres_conf(layout, options))
    (layout.etc / "plugstack.conf").write_text("")
    (layout.folder / "env.sh").write_text(f"export SLURM_CONF={layout.slurm_conf}\n")
    for number in range(options.gpus):
        device = layout.folder / "dev" / f"gpu{number}"
        device.unlink(missing_ok=True)
        device.symlink_to("/dev/null")
    if options.accounting:
        _write_private(layout.etc / "slurmdbd.conf", slurmdbd_conf(layout, options, ports))
        _write_private(layout.etc / "init.sql", database_init_sql())


def _write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)
