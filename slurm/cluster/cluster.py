"""What can be done with a cluster: up, down, and the failures that tests want."""

from __future__ import annotations

from slurm.cluster import configuration, daemons
from slurm.cluster.database import start_accounting
from slurm.cluster.errors import ClusterError, UsageError
from slurm.cluster.layout import Layout
from slurm.cluster.options import Options
from slurm.cluster.ports import Ports, claim_ports
from slurm.cluster.processes import descendants, environment, kill_all, parents
from slurm.cluster.programs import check_installed
from slurm.cluster.supervisor import MARK, SupervisorClient
from slurm.cluster.wipe import wipe


def up(layout: Layout, options: Options, owner: int | None = None) -> bool:
    """Makes the cluster run with these options; False if it already did.

    A cluster that is half dead or has other options is stopped and started anew; its accounting records stay.
    With an owner (a process id) the cluster ends and is wiped when that process ends.
    """
    check_installed(options)
    with layout.locked():
        if _is_up(layout, options):
            return False
        _stop(layout)
        layout.make()
        try:
            _start(layout, options, owner)
        except BaseException:
            _kill(layout)
            raise
    return True


def _is_up(layout: Layout, options: Options) -> bool:
    record = layout.read_record()
    return (
        record is not None
        and record[0] == options
        and SupervisorClient(layout).process_id() is not None
        and daemons.all_alive(layout, options)
        and daemons.nodes_up(layout) >= set(options.node_names)
    )


def _start(layout: Layout, options: Options, owner: int | None) -> None:
    before = layout.read_record()
    ports, claim = claim_ports(options.node_names, options.port_base, before[1].base if before else None)
    layout.write_record(options, ports)
    supervisor = SupervisorClient(layout)
    supervisor.launch(claim, owner)
    configuration.write_all(layout, options, ports)
    if options.munge:
        daemons.start_munge(layout, supervisor)
    if options.accounting:
        start_accounting(layout, supervisor, ports)
    daemons.start_controller(layout, supervisor)
    daemons.start_nodes(layout, supervisor, options.node_names, ports)


def down(layout: Layout, wiped: bool) -> None:
    """Ends every process of the cluster. Wiping removes its folder, and then nothing is stopped gently."""
    if not layout.folder.is_dir():
        return
    with layout.locked():
        if wiped:
            _kill(layout)
            wipe(layout)
        else:
            _stop(layout)


def _stop(layout: Layout) -> None:
    if not layout.run.is_dir():
        return
    if SupervisorClient(layout).process_id() is not None:
        daemons.cancel_jobs(layout)
        daemons.stop_daemons(layout)
    _kill(layout)


def _kill(layout: Layout) -> None:
    SupervisorClient(layout).end()
    kill_all(lambda: _strays(layout))  # none, unless somebody killed the supervisor
    for pattern in ("*.sock*", "*.pid"):
        for path in layout.run.glob(pattern):
            path.unlink()


def _strays(layout: Layout) -> set[int]:
    """Daemons and processes of jobs that carry this cluster in their environment."""
    found = set()
    for process in parents():
        variables = environment(process)
        of_job = "SLURM_JOB_ID" in variables and variables.get("SLURM_CONF") == str(layout.slurm_conf)
        if of_job or variables.get(MARK) == str(layout.folder):
            found.add(process)
    return found


def kill_node(layout: Layout, node: str) -> None:
    """As when the machine loses power: its slurmd, its steps and its jobs' processes end at once."""
    _, _, supervisor = _running(layout, node)
    kill_all(lambda: daemons.processes_of_node(node, descendants([supervisor])))


def start_node(layout: Layout, node: str) -> None:
    """Brings a node back and waits until the controller uses it again."""
    _, ports, _ = _running(layout, node)
    with layout.locked():
        daemons.start_nodes(layout, SupervisorClient(layout), (node,), ports)


def kill_controller(layout: Layout) -> None:
    """kill -9 of slurmctld. Jobs go on; it may not have saved what happened in its last five seconds."""
    _running(layout)
    kill_all(lambda: _controller(layout))


def start_controller(layout: Layout) -> None:
    options, _, _ = _running(layout)
    with layout.locked():
        daemons.start_controller(layout, SupervisorClient(layout))
        daemons.wait_for_nodes(layout, options.node_names)


def _controller(layout: Layout) -> set[int]:
    process = daemons.daemon(layout, layout.pid_file("slurmctld"))
    return set() if process is None else {process}


def _running(layout: Layout, node: str | None = None) -> tuple[Options, Ports, int]:
    record = layout.read_record()
    supervisor = SupervisorClient(layout).process_id()
    if record is None or supervisor is None:
        raise ClusterError(f"no cluster runs in {layout.folder}: start it with `up`")
    options, ports = record
    if node is not None and node not in options.node_names:
        raise UsageError(f"{node} is not one of the nodes {', '.join(options.node_names)}")
    return options, ports, supervisor
