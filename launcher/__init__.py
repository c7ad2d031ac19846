"""Getting a grid run: the sweep folder, executors, the state of every run, MLflow and the command line."""
