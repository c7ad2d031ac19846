"""What is found wrong with a submission before anything is sent."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import launcher.slurm.preflight as preflight
from launcher.slurm.memory import FILES, Size, checkpoint_bytes, memory, model_size, sampled_together
from launcher.slurm.preflight import Findings, check
from launcher.slurm.site import SiteProfile
from tests.helpers import make_run, run_job
from trainer.budget import Budget, BudgetConfig
from trainer.config import RunConfig
from trainer.record import read_config
from trainer.schema import parse

TEXT = {"name": "text", "max_response_tokens": 1024, "source": {"generator": "gcd", "rows": 10}}
QWEN = {
    "task": TEXT,
    "model": {"pretrained": "Qwen/Qwen3-8B", "revision": "0" * 40, "compute_dtype": "bfloat16"},
    "resources": {"device": "cuda"},
}
LLAMA = QWEN | {
    "model": QWEN["model"] | {"pretrained": "meta-llama/Llama-3.2-1B-Instruct"},
    "resources": {"device": "cuda", "micro_batch_tokens": 4096, "logit_chunk": 1024, "generation_chunk": 64},
}
NODE = {"gpus": {"per_node": 8, "memory_gib": 80}, "mem_per_run": "200G"}


def config(**fields: Any) -> RunConfig:
    return parse(RunConfig, fields)


def budget(run: RunConfig, **fields: Any) -> Budget:
    return parse(BudgetConfig, fields).resolve(run)


def found(
    folder: Path,
    *runs: RunConfig,
    site: dict[str, Any] | None = None,
    environment: dict[str, str] | None = None,
    **fields: Any,
) -> Findings:
    cells = {f"r{number}": (run, budget(run, **fields)) for number, run in enumerate(runs)}
    return check(cells, parse(SiteProfile, site or {}), folder, environment or {})


def test_a_small_grid_on_cpus_is_fine(tmp_path: Path) -> None:
    assert found(tmp_path, config(), config(seed=1), site={"mem_per_run": "2G"}) == Findings((), ())


def test_more_runs_in_a_task_than_a_node_has_gpus(tmp_path: Path) -> None:
    runs = [config(**LLAMA, seed=seed) for seed in range(9)]
    result = found(tmp_path, *runs, site=NODE | {"cells_per_task": 9})
    assert (
        "cells_per_task=9 needs 9 GPUs in one task, and a node has gpus.per_node=8: use 8, or fit"
        in result.errors
    )
    assert not any(
        "cells_per_task" in text for text in found(tmp_path, *runs, site=NODE | {"cells_per_task": 8}).errors
    )
    # a single run asks for one
    alone = found(tmp_path, runs[0], site=NODE | {"cells_per_task": 9})
    assert not any("cells_per_task" in text for text in alone.errors)


def test_gpus_where_there_are_none(tmp_path: Path) -> None:
    (error,) = found(tmp_path, config(resources={"device": "cuda"})).errors
    assert error.startswith(
        "resources.device=cuda of run r0 needs a GPU, and the site profile's gpus.per_node=0"
    )
    assert found(tmp_path, config(resources={"device": "cuda"}), site={"gpus": {"flag": "none"}}).errors == ()


def test_idle_gpus_are_said(tmp_path: Path) -> None:
    assert found(tmp_path, config(), site=NODE).notices == (
        "no run uses a GPU of this site: set resources.device=cuda to use one for each",
    )


def test_a_model_that_cannot_fit_its_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _disk(monkeypatch, free=1e15)
    (gpu, host) = found(
        tmp_path, config(**QWEN), config(**QWEN, seed=1), site=NODE | {"mem_per_run": "100G"}
    ).errors
    # 8.19 billion weights, 20 bytes for each and the behaviour policy in bfloat16
    assert gpu.startswith("gpus.memory_gib=80 is too little for 2 runs of 8,190.7 million weights: ")
    assert "take 169.0 GiB: use a GPU with more memory, or a smaller model" in gpu
    assert host.startswith("mem_per_run=100G is too little for 2 runs of 8,190.7 million weights: ")
    assert found(tmp_path, config(**LLAMA), site=NODE) == Findings((), ())


def test_rollouts_sampled_together_may_be_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _disk(monkeypatch, free=1e15)
    wide = LLAMA | {"resources": LLAMA["resources"] | {"generation_chunk": 4096}, "sync_interval": 64}
    result = found(tmp_path, config(**wide), site=NODE)
    assert result.errors == ()
    (notice,) = result.notices
    assert notice.startswith(
        "gpus.memory_gib=80 may be too little for run r0 of 1,235.8 million weights, which can take "
    )
    assert "resources.generation_chunk=4096" in notice


@pytest.mark.parametrize(
    ("site", "named"),
    [
        ({"mem_per_run": "256"}, "mem_per_run=256"),
        ({"mem_per_cpu": "100M", "cpus_per_run": 3}, "mem_per_cpu=100M on 3 CPUs"),
    ],
)
def test_memory_of_a_node(tmp_path: Path, site: dict[str, Any], named: str) -> None:
    (error,) = found(tmp_path, config(), site=site).errors
    assert error.startswith(f"{named} is too little for run r0")
    for plenty in (
        {"mem_per_run": "2G"},
        {"mem_per_run": "0"},
        {"mem_per_cpu": "0"},
        {"mem_per_cpu": "2048M"},
        {},
    ):
        assert found(tmp_path, config(), site=plenty).errors == ()


def _disk(monkeypatch: pytest.MonkeyPatch, *, free: float, files: int = 10**9) -> None:
    def statvfs(path: object) -> SimpleNamespace:
        return SimpleNamespace(f_bavail=int(free) // 4096, f_frsize=4096, f_files=10**9, f_favail=files)

    monkeypatch.setattr(preflight.os, "statvfs", statvfs)


def test_checkpoints_against_free_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [config(**LLAMA, seed=seed) for seed in range(10)]
    size = model_size(runs[0])
    assert size is not None
    each = checkpoint_bytes(runs[0], size)
    assert each / size.parameters == pytest.approx(4 + 8 + 4 + 2.8, abs=0.3)
    _disk(monkeypatch, free=20 * each * 1.01)
    folder = tmp_path / "not" / "there" / "yet"
    assert found(folder, *runs, site=NODE).errors == ()
    _disk(monkeypatch, free=20 * each * 0.99)
    (error,) = found(folder, *runs, site=NODE).errors
    assert error.startswith(f"checkpoints of 10 runs take up to {20 * each / 1e9:,.1f} GB")
    assert f"{tmp_path} has" in error
    # what is on disk already needs no more room
    for number in range(10):
        held = folder / "runs" / f"r{number}" / "checkpoints" / "step-1"
        held.mkdir(parents=True)
        with (held / "weights.safetensors").open("wb") as file:
            file.truncate(int(each))
    assert found(folder, *runs, site=NODE).errors == ()


def test_files_against_free_inodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _disk(monkeypatch, free=1e15, files=1000)
    runs = [config(seed=seed) for seed in range(100)]
    (error,) = found(tmp_path, *runs).errors
    assert "100 runs write up to" in error
    assert "takes 1,000 more" in error
    assert found(tmp_path, runs[0]).errors == ()


def test_a_checkpoint_that_takes_longer_than_the_warning_comes_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _disk(monkeypatch, free=1e15)
    site = NODE | {"write_mb_per_second": 200, "signal_lead": 120}
    assert found(tmp_path, config(**LLAMA), site=site).errors == ()
    runs = [config(**LLAMA, seed=seed) for seed in range(2)]
    (error,) = found(tmp_path, *runs, site=site | {"cells_per_task": 2}).errors
    assert error.startswith("signal_lead=120 s is too short for 2 runs: 2 checkpoints of 23.")
    assert "at write_mb_per_second=200: raise signal_lead to 4" in error


@pytest.mark.parametrize("uri", ["http://localhost:5000", "http://127.0.0.1:5000", "https://[::1]:5"])
def test_a_tracking_server_of_this_machine_alone(tmp_path: Path, uri: str) -> None:
    result = found(tmp_path, config(), environment={"MLFLOW_TRACKING_URI": uri})
    assert result.errors == ()
    (notice,) = result.notices
    assert notice.startswith(
        f"MLFLOW_TRACKING_URI={uri} is reached from this machine only; jobs need no store"
    )


def test_other_tracking_stores(tmp_path: Path) -> None:
    remote = {"MLFLOW_TRACKING_URI": "https://mlflow.example.org"}
    assert found(tmp_path, config(), environment=remote).notices == ()
    (notice,) = found(tmp_path, config(), environment={"MLFLOW_TRACKING_URI": "./mlruns"}).notices
    assert "which MLflow no longer writes" in notice


def test_a_model_of_unknown_size_is_said(tmp_path: Path) -> None:
    unknown = QWEN | {"model": {"pretrained": "someone/something", "revision": "0" * 40}}
    result = found(tmp_path, config(**unknown), site=NODE)
    assert result.errors == ()
    (notice,) = result.notices
    assert notice.startswith("how large someone/something is cannot be told before it is at hand")


def test_a_thousand_runs_are_looked_at_in_no_time(tmp_path: Path) -> None:
    runs = [
        config(seed=seed, sync_interval=1 + seed % 7, learning_rate=1e-3 / (1 + seed % 13))
        for seed in range(1000)
    ]
    cells = {f"r{number}": (run, budget(run)) for number, run in enumerate(runs)}
    started = time.perf_counter()
    assert check(cells, parse(SiteProfile, {"mem_per_run": "2G"}), tmp_path, {}).errors == ()
    assert time.perf_counter() - started < 1


def test_what_is_sampled_together() -> None:
    assert sampled_together(config()) == 64
    assert sampled_together(config(sync_interval=4)) == 256
    assert sampled_together(config(sync_interval=64)) == 1024
    assert sampled_together(config(sync_interval=64, resources={"generation_chunk": 1})) == 64


@pytest.mark.end_to_end
@pytest.mark.parametrize("store", [{}, {"buffer_size": 32}])
def test_a_real_checkpoint_is_as_large_as_foreseen(tmp_path: Path, store: dict[str, Any]) -> None:
    model = {"hidden_size": 128, "layers": 4, "heads": 4, "intermediate_size": 256}
    paths = make_run(
        tmp_path / "s" / "runs" / "r", 3, model=model, warm_start={"target_reward": 0.0}, **store
    )
    code, output = run_job(paths)
    assert code == 0, output
    run = read_config(paths)
    size = model_size(run)
    assert size is not None
    (checkpoint,) = paths.checkpoints.glob("step-*")
    written = [file for file in checkpoint.iterdir() if file.is_file()]
    total = sum(file.stat().st_size for file in written)
    assert total == pytest.approx(checkpoint_bytes(run, size), rel=0.05)
    assert len(written) + 1 <= FILES
    assert memory(run, size).device == 0


def test_a_password_in_the_address_is_not_shown(tmp_path: Path) -> None:
    environment = {"MLFLOW_TRACKING_URI": "http://user:secret@127.0.0.1:5000"}
    (notice,) = found(tmp_path, config(), environment=environment).notices
    assert "secret" not in notice


def test_a_pilot_that_wrote_for_longer_than_the_warning(tmp_path: Path) -> None:
    cells = {"r": (config(), budget(config()))}
    result = check(cells, SiteProfile(), tmp_path, {}, checkpoint_seconds=130.0)
    (error,) = result.errors
    assert error.startswith("signal_lead=120 s is too short: the pilot took 130 s to write a checkpoint; ")
    assert error.endswith("raise signal_lead to 260")
    assert check(cells, SiteProfile(), tmp_path, {}, checkpoint_seconds=100.0).errors == ()


def test_memory_is_the_sum_of_its_parts() -> None:
    size = Size(1000, embedding=100, tied=True, cache=8, vocabulary=10)
    run = config(**QWEN, loss={"kl_weight": 0.1})
    gpu = memory(run, size)
    # weights, gradient and moments, reference, gradient as a vector; matrices of the behaviour policy, its
    # embedding, and its head, which is a copy there
    assert gpu.device == 16_000 + 4_000 + 4_000 + 2 * 900 + 4 * 100 + 2 * 100
    lean = {"device": "cuda", "displacement": "disk", "previous_gradient": "off"}
    less = memory(config(**QWEN | {"resources": lean}), size)
    # no initial weights, no two previous gradients
    assert gpu.host - less.host == 4_000 + 2 * 4_000
    on_cpu = memory(config(), size)
    assert on_cpu.device == 0
    assert on_cpu.host - less.host == 16_000 + 4_000 + 4_000 + 4_000 + 4_000 - 8_000
