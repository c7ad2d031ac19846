"""The commands: up, down, kill-node, start-node, kill-controller, start-controller, packages."""

from __future__ import annotations

import argparse
import os
import sys

from slurm.cluster import cluster
from slurm.cluster.errors import ClusterError, UsageError
from slurm.cluster.layout import Layout
from slurm.cluster.options import Options
from slurm.cluster.programs import missing_packages
from slurm.cluster.supervisor import supervise


def main() -> int:
    os.umask(0o022)
    arguments = parser().parse_args()
    try:
        return run(arguments)
    except ClusterError as error:
        print(f"cluster {arguments.command}: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except PermissionError as error:  # a folder of somebody else, or somebody else's cluster
        print(f"cluster {arguments.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python3 slurm/cluster", description="A private Slurm cluster for tests."
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, help_text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=help_text)
        command.add_argument("folder", metavar="DIR")
        return command

    _add_options(add("up", "start a cluster, or leave the one that runs as it is"))
    add("down", "end every process of it").add_argument("--wipe", action="store_true", help="and remove DIR")
    add("kill-node", "as when a machine loses power").add_argument("node")
    add("start-node", "bring a node back").add_argument("node")
    add("kill-controller", "kill -9 slurmctld")
    add("start-controller", "start slurmctld again")
    packages = commands.add_parser("packages", help="the Debian packages that are missing")
    packages.add_argument("--no-accounting", dest="accounting", action="store_false")
    add("supervise", "used by `up`").add_argument("--owner", type=int)
    return top


def _add_options(command: argparse.ArgumentParser) -> None:
    default = Options()
    command.add_argument(
        "--accounting", action="store_true", default=True, help="slurmdbd and MariaDB (default)"
    )
    command.add_argument("--no-accounting", dest="accounting", action="store_false")
    command.add_argument("--limits", action="store_true", help="enforce limits of accounts and QOS")
    command.add_argument("--nodes", type=int, default=default.nodes)
    command.add_argument("--cpus", type=int, default=default.cpus, help="of each node")
    command.add_argument("--gpus", type=int, default=default.gpus, help="of each node; they are fakes")
    command.add_argument("--mem-mb", type=int, default=default.memory_mb, help="of each node")
    command.add_argument("--auth", choices=["munge", "none"], default="munge")
    command.add_argument("--port-base", type=int, help="without it a free range is found")
    command.add_argument(
        "--extra",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a line of slurm.conf, in place of the default one of the same key",
    )
    command.add_argument("--owner", type=int, metavar="PID", help="end and wipe it when this process ends")


def run(arguments: argparse.Namespace) -> int:
    if arguments.command == "packages":
        print(" ".join(missing_packages(Options(accounting=arguments.accounting))))
        return 0
    layout = Layout.of(arguments.folder)
    match arguments.command:
        case "up":
            _up(layout, arguments)
        case "down":
            cluster.down(layout, arguments.wipe)
            print(f"down: {layout.folder}")
        case "kill-node":
            cluster.kill_node(layout, arguments.node)
        case "start-node":
            cluster.start_node(layout, arguments.node)
        case "kill-controller":
            cluster.kill_controller(layout)
        case "start-controller":
            cluster.start_controller(layout)
        case "supervise":
            supervise(layout, arguments.owner)
    return 0


def _up(layout: Layout, arguments: argparse.Namespace) -> None:
    options = Options(
        accounting=arguments.accounting,
        limits=arguments.limits,
        nodes=arguments.nodes,
        cpus=arguments.cpus,
        gpus=arguments.gpus,
        memory_mb=arguments.mem_mb,
        munge=arguments.auth == "munge",
        port_base=arguments.port_base,
        extra=tuple(arguments.extra),
    )
    fresh = cluster.up(layout, options, arguments.owner)
    print(f"{'up' if fresh else 'already up'}; next: . {layout.folder}/env.sh")
