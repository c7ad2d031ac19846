"""The check for a GPU machine, at a toy size on the CPU."""

import json
import os
import subprocess
import sys

import pytest
import torch

from tests.helpers import ROOT

pytestmark = pytest.mark.end_to_end
SECTIONS = [
    *("model", "losses", "ratio", "generation", "training", "grid", "small_updates"),
    "imports",
]


def run_check(*arguments):
    return subprocess.run(
        [str(ROOT / "tests" / "gpu" / "run.sh"), *map(str, arguments)],
        env=os.environ | {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_every_section_passes_on_a_cpu(tmp_path):
    done = run_check(tmp_path / "out", "--device", "cpu", "--small")
    text = (tmp_path / "out" / "report.txt").read_text()
    assert done.returncode == 0, done.stderr[-2000:] + text
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert list(report["sections"]) == SECTIONS
    for name, section in report["sections"].items():
        assert section["passed"] and section["checks"], name
        assert f"{name}: passed" in text
    assert report["passed"] and report["environment"]["torch"] and "all passed" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_refuses(tmp_path):
    done = run_check(tmp_path)
    assert done.returncode == 2 and done.stdout.startswith("no GPU") and done.stdout.count("\n") == 1
    assert not (tmp_path / "report.json").exists()
