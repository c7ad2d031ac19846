"""The check on a GPU machine: `tests/gpu/run.sh`. Imports of the project only `trainer`."""
