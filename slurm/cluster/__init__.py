"""A private Slurm cluster on one machine, for tests: several nodes, fake GPUs, accounting if wanted.

    python3 slurm/cluster up DIR        (or: make cluster-up)
    . DIR/env.sh; sinfo; sbatch ...
    python3 slurm/cluster down DIR      (or: make cluster-down)

Needs Slurm's programs and a Python with its standard library, nothing of the project.

    cli ─► cluster ─► daemons, database ─► supervisor ─► munged, mariadbd, slurmdbd, slurmctld, slurmd ─► jobs
             │             │                   the parent of every process of the cluster
             └─────────────┴─► options, layout, ports, configuration, programs, processes
"""
