"""Where the MLflow mirror lives: addresses taken and refused, the environment, the UI's command."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from launcher.mlflow_store import (
    checked_uri,
    default_uri,
    mlflow_environment,
    network_filesystem,
    ui_command,
)
from trainer.errors import UserError
from trainer.record import SweepPaths


def test_the_default_is_beside_the_sweep_unless_the_environment_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = SweepPaths(Path("outputs/grid"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", " ")
    assert default_uri(sweep) == f"sqlite:///{tmp_path}/outputs/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    assert default_uri(sweep) == checked_uri("http://tracking:5000") == "http://tracking:5000"


def test_a_relative_database_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert checked_uri("sqlite:///mine/mlflow.db") == f"sqlite:///{tmp_path}/mine/mlflow.db"
    assert checked_uri("sqlite:////srv/mlflow.db") == "sqlite:////srv/mlflow.db"


@pytest.mark.parametrize("uri", ["./mlruns", "/data/mlruns", "file:///data/mlruns", "mlruns"])
def test_the_file_store_is_refused(uri: str) -> None:
    with pytest.raises(UserError, match=r"no longer writes: unset MLFLOW_TRACKING_URI .*sqlite:////"):
        checked_uri(uri)


@pytest.mark.parametrize("uri", ["sqlite://", "sqlite:///:memory:"])
def test_a_database_in_memory_is_refused(uri: str) -> None:
    with pytest.raises(UserError, match="in memory"):
        checked_uri(uri)


@pytest.mark.parametrize("character", ["%", "?"])
def test_a_path_that_no_uri_can_hold_is_refused(character: str) -> None:
    with pytest.raises(UserError, match=rf"because of the '\{character}' in it: rename the folder"):
        checked_uri(f"sqlite:////data/100{character}/mlflow.db")


def test_network_file_systems_are_recognised() -> None:
    mounts = "/dev/sda / ext4 rw 0 0\nhome:/x /home nfs4 rw 0 0\ntmpfs /home/a\\040b tmpfs rw 0 0\n"
    assert network_filesystem(Path("/home/me/mlflow.db"), mounts) == "nfs4"
    assert network_filesystem(Path("/home/a b/mlflow.db"), mounts) is None
    assert network_filesystem(Path("/srv/mlflow.db"), mounts) is None
    assert network_filesystem(Path("/srv/mlflow.db"), "") is None


def test_stale_variables_are_hidden_and_waits_are_bounded_inside_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.setenv(name, "0123456789")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    before = dict(os.environ)
    with mlflow_environment():
        assert not [name for name in os.environ if name.startswith(("MLFLOW_RUN", "MLFLOW_EXPERIMENT"))]
        assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77"
        assert int(os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"]) <= 2
    assert dict(os.environ) == before


def test_the_ui_command_survives_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    below = shlex.split(ui_command(f"sqlite:///{tmp_path}/it's mine/mlflow.db"))
    assert below[-5:] == ["ui", "--workers", "1", "--backend-store-uri", "sqlite:///it's mine/mlflow.db"]
    elsewhere = shlex.split(ui_command("sqlite:////some where/mlflow.db"))
    assert elsewhere[-1] == "sqlite:////some where/mlflow.db"
    assert ui_command("http://tracking:5000") == "http://tracking:5000"
