"""The supervisor with a stand-in for the trainer: `python slurm_driver.py <task file>`."""

import os
import sys
from pathlib import Path

import trainer.supervisor
from trainer.slurm_task import supervise

if len(sys.argv) > 2:
    trainer.supervisor.BUSY_PAUSES = tuple(float(text) for text in sys.argv[2].split(","))
stand_in = (sys.executable, "-P", str(Path(__file__).with_name("slurm_stand_in.py")))
sys.exit(supervise(Path(sys.argv[1]), os.environ, stand_in))
