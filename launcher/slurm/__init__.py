"""Runs as jobs of Slurm: site profiles, scripts and arrays, submission, and what Slurm says of a job."""
