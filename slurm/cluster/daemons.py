"""Starting and stopping munged, the controller and the nodes."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path

from slurm.cluster.commands import succeeds, try_command
from slurm.cluster.errors import ClusterError
from slurm.cluster.layout import Layout
from slurm.cluster.options import Options
from slurm.cluster.ports import Ports, answers
from slurm.cluster.processes import descendants, environment, parents, wait_until
from slurm.cluster.programs import find
from slurm.cluster.supervisor import MARK, SupervisorClient, log_tail

NODE_MARK = "PRIVATE_CLUSTER_NODE"
"""In the environment of a node's slurmd and of the steps that it starts."""
NOT_UP = ("unknown", "down")


def start_munge(layout: Layout, supervisor: SupervisorClient) -> None:
    if not layout.munge_key.exists():
        layout.munge_key.touch(mode=0o600)
        layout.munge_key.write_bytes(os.urandom(1024))
    supervisor.run(
        [
            find("munged"),
            f"--key-file={layout.munge_key}",
            f"--socket={layout.munge_socket}",
            f"--pid-file={layout.pid_file('munged')}",
            f"--log-file={layout.log}/munged.log",
            f"--seed-file={layout.munge_key.parent}/munged.seed",
            "--force",  # folders below /tmp are not private enough for it
        ],
        layout.log / "munged.out",
    )
    wait_until(lambda: succeeds(layout, "munge", "-n", "-S", str(layout.munge_socket)), 10, "munged")


def start_controller(layout: Layout, supervisor: SupervisorClient) -> None:
    if daemon(layout, layout.pid_file("slurmctld")) is not None:
        return
    try:
        # -i: go on although the state that it kept is of other options
        supervisor.run([find("slurmctld"), "-i"], layout.log / "slurmctld.out")
        wait_until(lambda: succeeds(layout, "scontrol", "ping"), 30, "slurmctld")
    except ClusterError as error:
        raise ClusterError(f"{error}\n{log_tail(layout.log / 'slurmctld.log')}") from None


def start_nodes(layout: Layout, supervisor: SupervisorClient, names: tuple[str, ...], ports: Ports) -> None:
    for name in names:
        if daemon(layout, layout.node_pid_file(name)) is None:
            layout.spool(name).mkdir(exist_ok=True)
            command_line = [find("env"), f"{NODE_MARK}={name}", find("slurmd"), "-N", name]
            supervisor.run(command_line, layout.log / f"slurmd.{name}.out")
    for name in names:
        wait_until(partial(answers, ports.node(name)), 20, f"slurmd of {name}, see {layout.log}")
    wait_for_nodes(layout, names)


def wait_for_nodes(layout: Layout, names: tuple[str, ...]) -> None:
    """Waits until the controller has heard of every node that lives, seconds after its own start."""
    living = {name for name in names if daemon(layout, layout.node_pid_file(name)) is not None}
    wait_until(lambda: living <= nodes_up(layout), 60, f"the nodes to register, see {layout.log}")


def nodes_up(layout: Layout) -> set[str]:
    """Nodes that answer the controller; sinfo marks the states of those that do not with a star."""
    status, output = try_command(layout, "sinfo", "-h", "-N", "-o", "%N %T", seconds=10)
    lines = [line.split() for line in output.splitlines()] if status == 0 else []
    return {node for node, state in lines if not state.startswith(NOT_UP) and not state.endswith("*")}


def daemon(layout: Layout, pid_file: Path) -> int | None:
    """The process of a PID file, if it lives and is of this cluster."""
    try:
        process = int(pid_file.read_text())
    except (FileNotFoundError, ValueError):
        return None
    mine = process in parents() and environment(process).get(MARK) == str(layout.folder)
    return process if mine else None


def all_alive(layout: Layout, options: Options) -> bool:
    files = [layout.pid_file("slurmctld"), *map(layout.node_pid_file, options.node_names)]
    if options.munge:
        files.append(layout.pid_file("munged"))
    if options.accounting:
        files += [layout.pid_file("slurmdbd"), layout.pid_file("mariadbd")]
    return all(daemon(layout, file) is not None for file in files)


def stop_daemons(layout: Layout) -> None:
    """In the order in which each can still tell the next what it has to tell."""
    _stop(layout, sorted(layout.run.glob("slurmd.*.pid")), 10)
    for name, seconds in {"slurmctld": 15, "slurmdbd": 15, "mariadbd": 20, "munged": 5}.items():
        _stop(layout, [layout.pid_file(name)], seconds)


def _stop(layout: Layout, pid_files: list[Path], seconds: float) -> None:
    """Asks daemons to end; one that does not is left for the supervisor to kill."""
    processes = {process for file in pid_files if (process := daemon(layout, file)) is not None}
    for process in processes:
        os.kill(process, signal.SIGTERM)
    end = time.monotonic() + seconds
    while processes & parents().keys() and time.monotonic() < end:
        time.sleep(0.05)


def cancel_jobs(layout: Layout, seconds: float = 6) -> None:
    """So that what is recorded of them is that they were cancelled."""
    if daemon(layout, layout.pid_file("slurmctld")) is None:
        return
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        status, jobs = try_command(layout, "squeue", "-h", "-o", "%A", seconds=10)
        if status != 0 or not jobs.split():
            return
        try_command(layout, "scancel", "--quiet", *sorted(set(jobs.split())), seconds=10)
        time.sleep(0.3)


def processes_of_node(node: str, cluster: set[int]) -> set[int]:
    """Among the cluster's processes a node's slurmd, its steps, and the jobs' processes that they started."""
    marked = {process for process in cluster if _is_of(node, environment(process))}
    return marked | (descendants(marked) & cluster)


def _is_of(node: str, variables: dict[str, str]) -> bool:
    return node in (variables.get(NODE_MARK), variables.get("SLURMD_NODENAME"))
