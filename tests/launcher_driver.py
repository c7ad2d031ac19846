"""The command line with stand-ins for grid, jobs and MLflow, to be run as a process of its own."""

import sys

import launcher_fakes

import launcher.executors
from launcher.cli import main

launcher_fakes.install(sys.modules)
launcher.executors.JOB = launcher_fakes.FAKE_JOB
main()
