"""The grid as a table: every heading and name is readable in a terminal of 80 columns."""

import io

import pytest
from rich.console import Console

from launcher import sweep_folder
from launcher.board import board
from launcher.ledger import read_ledger
from launcher.locate import sweep_paths
from launcher.state import job_states
from sweeps.grid import expand
from trainer.record import read_sweep


@pytest.mark.parametrize(
    ("preset", "heads", "sides"),
    [
        ("laptop_stability", ["S=1", "S=64"], ["0.001", "0.008"]),
        ("laptop_replay", ["η=0.002", "η=0.008"], ["queue", "fifo_y8", "positive_y8", "asymre_y4"]),
    ],
)
def test_board_names_every_value(tmp_path, preset, heads, sides):
    paths = sweep_paths(tmp_path, preset)
    sweep_folder.apply(paths, sweep_folder.compare(paths, expand([f"sweep={preset}"])), {})
    sweep = read_sweep(paths)
    table = board(sweep, job_states([paths.run(cell.run_id) for cell in sweep.cells], read_ledger(paths)))
    shown = io.StringIO()
    Console(file=shown, width=80).print(table)
    lines = shown.getvalue().splitlines()
    assert "…" not in shown.getvalue()
    assert all(head in lines[0] for head in heads)
    assert all(any(line.startswith(side) for line in lines) for side in sides)
