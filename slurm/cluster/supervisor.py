"""The parent of every process of a cluster: `python3 slurm/cluster supervise DIR`.

Daemons detach themselves and jobs may lose every trace of the cluster (`env -i setsid ...`), but as a child
subreaper (prctl) this process inherits them all. So a cluster's processes are those below its supervisor,
zombies are reaped also where PID 1 reaps nobody, and the end of the supervisor is the end of all of them.

It answers on a socket that only its user may open, one JSON line per connection:
    {"run": [program, ...], "log": path}   starts a program, and answers its exit status when it has ended
    {"who": true}                          answers the supervisor's process id
    {"end": true}                          kills every process, then ends; the connection closes at the end

Given an owner (a process id), it ends and wipes the cluster's folder as soon as the owner has ended.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from slurm.cluster.errors import ClusterError
from slurm.cluster.layout import Layout
from slurm.cluster.processes import descendants, kill_all, wait_until
from slurm.cluster.programs import search_path
from slurm.cluster.wipe import wipe

PR_SET_CHILD_SUBREAPER = 36
MARK = "PRIVATE_CLUSTER"
"""In the environment of the supervisor and of all daemons: the folder of their cluster."""


class Supervisor:
    def __init__(self, layout: Layout, owner: int | None):
        self.layout = layout
        self.started: dict[int, tuple[subprocess.Popen[bytes], socket.socket]] = {}
        self.ending: list[socket.socket] = []
        self.selector = selectors.DefaultSelector()
        self._become_subreaper()
        self._watch_signals()
        if owner is not None:
            self.selector.register(os.pidfd_open(owner), selectors.EVENT_READ, self._owner_ended)
        self.listener = self._listen()
        self.selector.register(self.listener, selectors.EVENT_READ, self._accept)

    def _become_subreaper(self) -> None:
        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise ClusterError(f"prctl: {os.strerror(ctypes.get_errno())}")

    def _watch_signals(self) -> None:
        self.wake_up, write_end = socket.socketpair()
        self.wake_up.setblocking(False)
        write_end.setblocking(False)
        signal.set_wakeup_fd(write_end.detach(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)  # else the wake-up would not be written
        self.selector.register(self.wake_up, selectors.EVENT_READ, self._signalled)

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        self.layout.supervisor_socket.unlink(missing_ok=True)
        os.umask(0o177)
        listener.bind(str(self.layout.supervisor_socket))
        os.umask(0o022)
        listener.listen()
        return listener

    def serve(self) -> None:
        while True:
            for key, _ in self.selector.select():
                key.data()

    def _accept(self) -> None:
        connection, _ = self.listener.accept()
        with suppress(
            OSError, ValueError
        ):  # a client that ended or wrote nonsense is no concern of the cluster
            connection.settimeout(5)
            with connection.makefile("r") as reader:
                request = json.loads(reader.readline())
            self._answer(request, connection)

    def _answer(self, request: dict[str, Any], connection: socket.socket) -> None:
        if "run" in request:
            self._start(request["run"], Path(request["log"]), connection)
        elif "who" in request:
            connection.sendall(f"{os.getpid()}\n".encode())
        elif "end" in request:
            self._end()

    def _start(self, command: list[str], log: Path, connection: socket.socket) -> None:
        with log.open("ab") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/"
            )
        self.started[process.pid] = process, connection

    def _signalled(self) -> None:
        numbers = self.wake_up.recv(4096)
        if signal.SIGTERM in numbers:
            self._end()
        self._reap()

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (reaped := os.waitpid(-1, os.WNOHANG))[0]:
                process_id, status = reaped
                if process_id in self.started:
                    process, connection = self.started.pop(process_id)
                    process.returncode = os.waitstatus_to_exitcode(status)
                    with suppress(OSError):  # a client that did not wait
                        connection.sendall(f"{process.returncode}\n".encode())
                    connection.close()

    def _owner_ended(self) -> None:
        kill_all(self._living)
        wipe(self.layout)
        self._end()

    def _living(self) -> set[int]:
        self._reap()
        return descendants([os.getpid()])

    def _end(self) -> None:
        kill_all(self._living)
        self.layout.supervisor_socket.unlink(missing_ok=True)
        sys.exit(0)


class SupervisorClient:
    """What commands ask of the supervisor."""

    def __init__(self, layout: Layout):
        self.layout = layout

    def launch(self, claim: socket.socket, owner: int | None) -> None:
        """Starts the supervisor in a session of its own; it keeps the claim on the ports open."""
        command = [sys.executable, str(Path(__file__).parent), "supervise", str(self.layout.folder)]
        with (self.layout.log / "supervisor.log").open("ab") as log:
            process = subprocess.Popen(
                command if owner is None else [*command, "--owner", str(owner)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=daemon_environment(self.layout),
                start_new_session=True,
                pass_fds=[claim.fileno()],
            )
        claim.close()
        wait_until(lambda: self.process_id() is not None or process.poll() is not None, 20, "the supervisor")
        if process.poll() is not None:
            raise ClusterError(f"the supervisor ended: {log_tail(Path(log.name))}")

    def process_id(self) -> int | None:
        """None if the cluster has no supervisor."""
        try:
            with self._request({"who": True}) as connection, connection.makefile("r") as reader:
                return int(reader.readline() or 0) or None
        except (FileNotFoundError, ConnectionError):
            return None

    def start(self, command: list[str], log: Path) -> socket.socket:
        """Starts a program; `exit_status` of the connection tells how it ended."""
        return self._request({"run": command, "log": str(log)})

    def run(self, command: list[str], log: Path, seconds: float = 60) -> None:
        """Runs a program to its end, which for a daemon is when it has detached itself."""
        log.unlink(missing_ok=True)
        with self.start(command, log) as connection:
            status = exit_status(connection, seconds)
        if status != 0:
            raise ClusterError(f"{Path(command[0]).name} ended with {status}: {log_tail(log)}")

    def end(self) -> None:
        """Kills every process of the cluster and the supervisor."""
        try:
            with self._request({"end": True}) as connection:
                connection.recv(1)
        except (FileNotFoundError, ConnectionError):
            return

    def _request(self, request: dict[str, Any]) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(30)
            connection.connect(str(self.layout.supervisor_socket))
            connection.sendall(json.dumps(request).encode() + b"\n")
        except OSError:
            connection.close()
            raise
        return connection


def exit_status(connection: socket.socket, seconds: float) -> int | None:
    """The status of a program that was started; None while it runs longer than the given time."""
    connection.settimeout(seconds)
    try:
        answer = connection.recv(64)
    except TimeoutError:
        return None
    return int(answer) if answer else 127


def log_tail(path: Path) -> str:
    with suppress(FileNotFoundError):
        return path.read_text(errors="replace")[-2000:].strip()
    return ""


def daemon_environment(layout: Layout) -> dict[str, str]:
    """Nothing of the caller's: it may live inside another cluster, and jobs must not depend on it."""
    return {
        "PATH": search_path(),
        "HOME": os.environ.get("HOME", "/"),
        "LC_ALL": "C",
        "SLURM_CONF": str(layout.slurm_conf),
        MARK: str(layout.folder),
    }


def supervise(layout: Layout, owner: int | None) -> None:
    Supervisor(layout, owner).serve()
