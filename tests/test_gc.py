"""`gc`: what finished runs no longer need, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from launcher import gc
from launcher.extend import extend
from launcher.submit import Settings
from tests.helpers import make_run, run_job
from trainer.checkpoint import load_newest
from trainer.errors import UserError
from trainer.export import export
from trainer.files import locked, read_json, write_json
from trainer.record import Cell, RunPaths, SweepFile, SweepPaths, is_slimmed, write_sweep


@pytest.fixture
def sweep(tmp_path: Path) -> SweepPaths:
    """One real run that finished."""
    paths = SweepPaths(tmp_path / "sweep")
    run = make_run(paths.run("abcd").folder, 4)
    assert run_job(run)[0] == 0
    cells = [Cell(run_id=run.run_id, values={"seed": 0})]
    write_sweep(paths, SweepFile(name="sweep", preset=None, axes={"seed": [0]}, fixed={}, cells=cells))
    return paths


def collect(paths: SweepPaths, **options: bool) -> int:
    return gc.collect(paths, (), Console(), yes=True, **options)


def set_outcome(run: RunPaths, outcome: str) -> None:
    write_json(run.summary, (read_json(run.summary) or {}) | {"outcome": outcome})


def files(run: RunPaths) -> set[str]:
    return {str(path.relative_to(run.checkpoints)) for path in run.checkpoints.rglob("*") if path.is_file()}


def test_a_final_run_keeps_what_export_needs_and_cannot_go_on(sweep: SweepPaths, tmp_path: Path) -> None:
    run = sweep.run("abcd")
    set_outcome(run, "collapsed")
    assert "step-00000004/optimizer.safetensors" in files(run)
    assert collect(sweep) == 0
    kept = {"weights.safetensors", "meta.json", "complete.json"}
    assert files(run) == {f"step-00000004/{name}" for name in kept}
    assert is_slimmed(run)
    assert export(run, "last", tmp_path / "out")["step"] == 4
    with pytest.raises(UserError, match="was slimmed by `grposweep gc`"):
        load_newest(run.checkpoints, print)
    before = files(run)
    assert collect(sweep) == 0 and files(run) == before  # nothing more to do


def test_a_stable_run_is_slimmed_when_that_is_asked_for_and_then_not_extended(sweep: SweepPaths) -> None:
    run = sweep.run("abcd")
    set_outcome(run, "stable")
    before = files(run)
    assert collect(sweep) == 0 and files(run) == before
    assert collect(sweep, stable=True) == 0 and is_slimmed(run)
    with pytest.raises(UserError, match="cannot be continued, as `grposweep gc --stable`"):
        extend(sweep, 8, None, Settings(), Console())


def test_half_written_and_older_checkpoints_go(sweep: SweepPaths) -> None:
    run = sweep.run("abcd")
    set_outcome(run, "stable")
    before = files(run)
    for name in (".step-00000009.7.building", "step-00000009", "step-00000002"):
        (run.checkpoints / name).mkdir()
        (run.checkpoints / name / "weights.safetensors").write_bytes(b"x" * 1000)
    write_json(run.checkpoints / "step-00000002" / "complete.json", {"step": 2, "sha256": {}})
    assert collect(sweep) == 0
    assert files(run) == before


def test_a_run_that_trains_is_left_alone(sweep: SweepPaths) -> None:
    run = sweep.run("abcd")
    set_outcome(run, "collapsed")
    before = files(run)
    with locked(run.lock):
        assert collect(sweep) == 0
    assert files(run) == before


def test_a_kill_between_marker_and_files_leaves_no_checkpoint_that_looks_whole(
    sweep: SweepPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = sweep.run("abcd")
    set_outcome(run, "collapsed")

    def killed(self: Path, missing_ok: bool = False) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            collect(sweep)
    assert is_slimmed(run)
    with pytest.raises(UserError, match="slimmed"):
        load_newest(run.checkpoints, print)
    assert collect(sweep) == 0
    assert "step-00000004/optimizer.safetensors" not in files(run)
    assert export(run, "last", run.folder / "out")["step"] == 4


def test_nothing_is_deleted_where_nobody_can_be_asked(sweep: SweepPaths) -> None:
    run = sweep.run("abcd")
    set_outcome(run, "collapsed")
    before = files(run)
    with pytest.raises(UserError, match="-y"):
        gc.collect(sweep, (), Console())
    assert files(run) == before
