"""`python -P -m gpu OUT`: every section on its own, a report after each.

environment ─► model, losses, ratio, generation, training, grid, small_updates ─► OUT/report.json, report.txt
"""

from __future__ import annotations

import argparse
import platform
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from gpu import generation, grid, losses, model, ratio, small_updates, training
from gpu.material import Material
from gpu.report import Report, Section
from gpu.sizes import FULL, SMALL

SECTIONS: dict[str, Callable[[Material, Section], None]] = {
    "model": model.check,
    "losses": losses.check,
    "ratio": ratio.check,
    "generation": generation.check,
    "training": training.check,
    "grid": grid.check,
    "small_updates": small_updates.check,
}
PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "pyarrow", "pydantic")
ABSENT = ("hydra", "omegaconf", "typer", "mlflow", "launcher", "sweeps", "analysis")
"""What a GPU machine need not have."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/gpu/run.sh", description=__doc__)
    parser.add_argument("out", type=Path, help="folder of the report")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="every section at a toy size")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("no GPU can be used here: add --device cpu --small for every section at a toy size on a CPU")
        return 2
    if arguments.device == "cpu" and not arguments.small:
        print("--device cpu needs --small: at full size this takes hours on a CPU")
        return 2
    device = torch.device(arguments.device)
    torch.backends.cuda.matmul.allow_tf32 = False
    logging.disable_progress_bar()
    report = Report(arguments.out, _environment(device))
    print(report.head())
    work = arguments.out / "work"
    shutil.rmtree(work, ignore_errors=True)
    material = Material(work, device, SMALL if arguments.small else FULL)
    for name, check in SECTIONS.items():
        section = Section(name)
        started = time.perf_counter()
        try:
            check(material, section)
        except Exception:
            section.error = traceback.format_exc()
        section.seconds = time.perf_counter() - started
        if device.type == "cuda":
            torch.cuda.empty_cache()
        report.add(section)
        print(section.text(), flush=True)
    report.add(_imports())
    shutil.rmtree(work, ignore_errors=True)  # the model alone is half a gigabyte
    print(report.conclusion())
    return 0 if report.passed else 1


def _environment(device: torch.device) -> dict[str, Any]:
    found: dict[str, Any] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    found |= {"device": "CPU", "processors": torch.get_num_threads(), "cuda": torch.version.cuda}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found["device"] = properties.name
        found["device_memory_gib"] = round(properties.total_memory / 2**30, 1)
        found["compute_capability"] = f"{properties.major}.{properties.minor}"
    return found


def _imports() -> Section:
    """What a GPU machine need not have was not imported."""
    section = Section("imports")
    imported = [name for name in ABSENT if name in sys.modules]
    section.check(f"none of {', '.join(ABSENT)} is imported", not imported, ", ".join(imported) or "none")
    return section


if __name__ == "__main__":
    sys.exit(main())
