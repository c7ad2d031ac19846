"""The folder of a cluster: everything it writes lies in it."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from slurm.cluster.errors import UsageError
from slurm.cluster.options import Options
from slurm.cluster.ports import Ports

# A socket's path has at most 107 bytes, and slurmstepd adds spool/<node>/<node>_<job>.<step> to the folder's.
MAX_PATH_BYTES = 64


@dataclass(frozen=True)
class Layout:
    folder: Path

    @classmethod
    def of(cls, folder: str | Path) -> Layout:
        """The layout of a folder that need not exist; refuses paths that Slurm cannot work with."""
        path = Path(folder).resolve()
        if not re.fullmatch(r"[A-Za-z0-9._/+@-]+", str(path)):
            raise UsageError(
                f"{path}: Slurm's configuration does not take spaces or special characters in paths; choose"
                " another folder (CLUSTER_DIR=/tmp/my-cluster with make)"
            )
        if len(os.fsencode(path)) > MAX_PATH_BYTES:
            raise UsageError(
                f"{path} is longer than {MAX_PATH_BYTES} bytes, too long for the paths of Slurm's sockets;"
                " choose another folder (CLUSTER_DIR=/tmp/my-cluster with make)"
            )
        return cls(path)

    @property
    def etc(self) -> Path:
        return self.folder / "etc"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def slurm_conf(self) -> Path:
        return self.etc / "slurm.conf"

    @property
    def munge_key(self) -> Path:
        return self.folder / "munge" / "munge.key"

    @property
    def munge_socket(self) -> Path:
        return self.run / "munge.sock"

    @property
    def database(self) -> Path:
        return self.folder / "mysql"

    @property
    def supervisor_socket(self) -> Path:
        return self.run / "supervisor.sock"

    @property
    def record(self) -> Path:
        """The options and ports the cluster was last started with; marks the folder as one of a cluster."""
        return self.folder / "cluster.json"

    def spool(self, node: str) -> Path:
        return self.folder / "spool" / node

    def pid_file(self, daemon: str) -> Path:
        return self.run / f"{daemon}.pid"

    def node_pid_file(self, node: str) -> Path:
        return self.pid_file(f"slurmd.{node}")

    def make(self) -> None:
        """Makes the folders; refuses a folder that holds something else."""
        if self.folder.exists() and not self.is_cluster() and any(self.folder.iterdir()):
            raise UsageError(f"{self.folder} holds something else than a cluster: choose another folder")
        self.folder.mkdir(parents=True, exist_ok=True)
        for name, mode in {"etc": 0o755, "run": 0o755, "log": 0o755, "spool": 0o755, "dev": 0o755}.items():
            (self.folder / name).mkdir(mode=mode, exist_ok=True)
        for name in ("munge", "state"):
            (self.folder / name).mkdir(mode=0o700, exist_ok=True)

    def is_cluster(self) -> bool:
        return self.record.exists()

    def write_record(self, options: Options, ports: Ports) -> None:
        text = json.dumps({"options": asdict(options), "port_base": ports.base})
        temporary = self.record.with_suffix(".tmp")
        temporary.write_text(text)
        temporary.replace(self.record)

    def read_record(self) -> tuple[Options, Ports] | None:
        try:
            record = json.loads(self.record.read_text())
        except FileNotFoundError:
            return None
        fields = record["options"]
        return Options(**{**fields, "extra": tuple(fields["extra"])}), Ports(record["port_base"])

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One command at a time changes the cluster; the others wait."""
        while True:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.folder, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if self._is_still(descriptor):
                    yield
                    return
            finally:
                os.close(descriptor)

    def _is_still(self, descriptor: int) -> bool:
        """False if the folder was wiped, and perhaps made anew, while this process waited for it."""
        try:
            return os.path.samestat(os.fstat(descriptor), self.folder.stat())
        except FileNotFoundError:
            return False
