"""Checks before submission: each fault with its numbers, and nothing said where there is none."""

import os
import time

import pytest

from launcher.slurm import preflight
from launcher.slurm.preflight import GIB, PROCESS_BYTES, check, memory
from launcher.slurm.site import SiteProfile
from sweeps.size import PUBLISHED
from tests.helpers import make_run, run_job
from trainer.attempts import read_attempts
from trainer.budget import CellConfig
from trainer.record import read_budget, read_config
from trainer.schema import parse

GPU_SITE = {"gpus": {"per_node": 8, "memory_gib": 80}, "mem_per_run": "200G"}


def cell(**fields):
    found = parse(CellConfig, fields)
    return found.run(), found.budget.resolve(found.run())


def on_gpu(name, **fields):
    model = {"pretrained": name, "revision": "a" * 40, "compute_dtype": "bfloat16"}
    task = {"name": "text", "source": {"path": "p.jsonl"}, "max_response_tokens": 1024, "held_out_share": 0.1}
    return cell(model=model, task=task, resources={"device": "cuda"} | fields.pop("resources", {}), **fields)


def findings(runs, site, folder, **more):
    return check(
        runs, parse(SiteProfile, site), folder / "not" / "there", more.pop("environment", {}), **more
    )


def test_a_toy_sweep_has_nothing_against_it(tmp_path):
    runs = [cell(seed=seed) for seed in range(3)]
    assert findings(runs, {"mem_per_run": "2G"}, tmp_path) == preflight.Findings((), ())


def test_a_thousand_runs_are_checked_in_no_time(tmp_path):
    config, budget = cell()
    runs = [(config.model_copy(update={"seed": seed}), budget) for seed in range(1000)]
    started = time.perf_counter()
    findings(runs, GPU_SITE, tmp_path)
    assert time.perf_counter() - started < 5


def test_more_gpus_than_a_node_has(tmp_path):
    runs = [on_gpu("Qwen/Qwen3-0.6B")]
    (error,) = findings(runs, GPU_SITE | {"cells_per_task": 9}, tmp_path).errors
    assert error.startswith("a task needs 9 GPUs (1 per run, cells_per_task=9), a node has gpus.per_node=8:")
    (error,) = findings(runs, {"gpus": {"per_node": 0}}, tmp_path).errors
    assert "gpus.per_node=0: set it" in error and "resources.device=cpu" in error
    assert not findings(runs, GPU_SITE | {"cells_per_task": "fit"}, tmp_path).errors


def test_a_model_too_large_for_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(preflight.os, "statvfs", roomy)
    errors = findings([on_gpu("Qwen/Qwen3-8B")], GPU_SITE, tmp_path).errors
    assert len(errors) == 1, errors
    assert "8,190,735,360 parameters needs at least" in errors[0] and "gpus.memory_gib=80" in errors[0]
    assert not findings([on_gpu("Qwen/Qwen3-0.6B")], GPU_SITE, tmp_path).errors


def test_memory_is_the_sum_of_its_parts():
    run, budget = on_gpu("Qwen/Qwen3-0.6B", loss={"kl_weight": 0.1})
    size = PUBLISHED["Qwen/Qwen3-0.6B"].parameters
    found = memory(run, budget, size, cached_numbers=57_344)
    assert found.device == size * (16 + 2 + 2) + 64 * 1024 * 114_688
    assert found.host == PROCESS_BYTES + 8 * size and found.checkpoint == 18 * size and found.best == 0
    lean = {"displacement": "disk", "previous_gradient": "off"}
    assert memory(*on_gpu("Qwen/Qwen3-0.6B", resources=lean), size).host == PROCESS_BYTES


def test_memory_that_slurm_would_not_give(tmp_path, monkeypatch):
    monkeypatch.setattr(preflight.os, "statvfs", roomy)
    run = on_gpu("Qwen/Qwen3-8B")
    site = {"gpus": {"per_node": 8}, "mem_per_cpu": "4G", "cpus_per_run": 4}
    (error,) = findings([run], site, tmp_path).errors
    assert "mem_per_cpu=4G on 4 CPUs gives it 16 GiB: raise it" in error
    assert not findings([run], site | {"mem_per_cpu": None, "mem_per_run": "0"}, tmp_path).errors
    (error,) = findings([cell()], {"mem_per_run": "512M"}, tmp_path).errors
    assert "mem_per_run=512M gives it 0.5 GiB" in error


def test_a_real_run_stays_below_what_is_reckoned_and_its_checkpoint_is_as_large(tmp_path):
    paths = make_run(tmp_path / "s" / "runs" / "a", 8)
    assert run_job(paths)[0] == 0
    config, budget = read_config(paths), read_budget(paths)
    (kind,) = preflight._kinds([(config, budget)], None)
    peak = read_attempts(paths)[-1].ended["peak_memory"]
    assert PROCESS_BYTES / 4 < peak < kind.memory.host
    groups = ("weights", "behaviour", "optimizer", "previous_gradient")
    (folder,) = paths.checkpoints.glob("step-*")
    size = sum((folder / f"{name}.safetensors").stat().st_size for name in groups)
    assert size == pytest.approx(kind.memory.checkpoint, rel=0.05)


def roomy(folder):
    return os.statvfs_result((4096, 4096, 1 << 40, 1 << 40, 1 << 40, 1 << 40, 1 << 40, 1 << 40, 0, 255))


def full(**fields):
    values = {"f_bavail": 1 << 40, "f_files": 1 << 40, "f_favail": 1 << 40} | fields

    def statvfs(folder):
        order = (values["f_bavail"], values["f_files"])
        return os.statvfs_result(
            (4096, 4096, 1 << 40, order[0], order[0], order[1], 0, values["f_favail"], 0, 255)
        )

    return statvfs


def test_disks_that_are_full(tmp_path, monkeypatch):
    runs = [on_gpu("Qwen/Qwen3-0.6B", seed=seed) for seed in range(10)]
    monkeypatch.setattr(preflight.os, "statvfs", full(f_bavail=1 << 20))
    (error,) = findings(runs, GPU_SITE, tmp_path).errors
    wanted = 10 * 2 * 18 * PUBLISHED["Qwen/Qwen3-0.6B"].parameters / GIB
    assert f"checkpoints of 10 runs take {wanted:.3g} GiB, {tmp_path} has 4 GiB free" in error
    monkeypatch.setattr(preflight.os, "statvfs", full(f_favail=100))
    (error,) = findings(runs, GPU_SITE, tmp_path).errors
    assert "10 runs write about" in error and "has room for 100" in error
    monkeypatch.setattr(preflight.os, "statvfs", full(f_files=0, f_favail=0))
    assert not findings(runs, GPU_SITE, tmp_path).errors


def test_a_checkpoint_that_takes_longer_than_the_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(preflight.os, "statvfs", roomy)
    run = [on_gpu("Qwen/Qwen3-0.6B")]
    (error,) = findings(run, GPU_SITE | {"write_mb_per_second": 50.0}, tmp_path).errors
    assert "takes 215 s to write (10.73 GB at write_mb_per_second=50)" in error
    assert "signal_lead=120 s before the end: use 429 or more" in error
    assert not findings(run, GPU_SITE | {"write_mb_per_second": 500.0}, tmp_path).errors
    (error,) = findings(run, GPU_SITE, tmp_path, checkpoint_seconds=130.0).errors
    assert "130 s to write (as the pilot measured)" in error


@pytest.mark.parametrize(
    "uri", ["http://localhost:5000", "http://user:pass@127.0.0.1:5000", "https://[::1]:5"]
)
def test_a_store_that_only_this_machine_reaches(tmp_path, uri):
    (notice,) = findings([cell()], {}, tmp_path, environment={"MLFLOW_TRACKING_URI": uri}).notices
    assert "from this machine alone" in notice and "grposweep sync" in notice and "pass" not in notice


def test_a_store_elsewhere_is_no_news(tmp_path):
    for uri in ("http://mlflow.example:5000", "sqlite:///m.db", ""):
        assert not findings([cell()], {}, tmp_path, environment={"MLFLOW_TRACKING_URI": uri}).notices


def test_a_size_that_is_not_known_is_said(tmp_path):
    found = findings([on_gpu("some/model")], GPU_SITE, tmp_path)
    assert not found.errors and "the size of some/model is not known before it is fetched" in found.notices[0]
