"""The TCP ports of a cluster on 127.0.0.1: a base and fixed distances from it."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from slurm.cluster.errors import ClusterError

# Below the ports that Linux hands out by itself, from 32768 on; a step has room for every node.
AUTOMATIC_BASES = range(20000, 32000, 100)


@dataclass(frozen=True)
class Ports:
    base: int

    @property
    def controller(self) -> int:
        return self.base

    @property
    def accounting(self) -> int:
        return self.base + 1

    @property
    def database(self) -> int:
        return self.base + 2

    @property
    def claim(self) -> int:
        """Held by the supervisor for as long as the cluster lives, so that nobody else takes the range."""
        return self.base + 9

    def node(self, name: str) -> int:
        return self.base + 10 + int(name.removeprefix("n"))

    def of_daemons(self, nodes: tuple[str, ...]) -> list[int]:
        return [self.controller, self.accounting, self.database, *map(self.node, nodes)]


def claim_ports(
    nodes: tuple[str, ...], wanted: int | None, used_before: int | None
) -> tuple[Ports, socket.socket]:
    """A range in which every port is free, and the listening socket that claims it.

    Two clusters that look for ports at the same moment cannot both listen on the claim.
    """
    for base in [wanted] if wanted is not None else _candidates(used_before):
        ports = Ports(base)
        with suppress(OSError):
            claim = listen_on(ports.claim)
            taken = [port for port in ports.of_daemons(nodes) if not is_free(port)]
            if not taken:
                return ports, claim
            claim.close()
    if wanted is not None:
        last = Ports(wanted).of_daemons(nodes)[-1]
        raise ClusterError(
            f"some of the ports {wanted} to {last} are taken: leave out --port-base to have others found"
        )
    raise ClusterError(f"no free range of ports between {AUTOMATIC_BASES.start} and {AUTOMATIC_BASES.stop}")


def _candidates(used_before: int | None) -> Iterator[int]:
    if used_before is not None:
        yield used_before
    yield from random.sample(AUTOMATIC_BASES, len(AUTOMATIC_BASES))


def listen_on(port: int) -> socket.socket:
    """A listening socket. Connections of earlier listeners that the kernel still remembers do not matter."""
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(1)
    except OSError:
        listener.close()
        raise
    return listener


def is_free(port: int) -> bool:
    try:
        listen_on(port).close()
    except OSError:
        return False
    return True


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
