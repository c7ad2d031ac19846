"""Runs tasks of the fake cluster: `srun` inside a script, and the script of a task as its node would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]  # this is run by its path

from tests.fake_slurm.cluster import Folder, change  # noqa: E402


def srun(arguments: list[str]) -> int:
    """Run the step's command here."""
    while arguments and arguments[0].startswith("-"):
        arguments = arguments[1:]
    os.execvp(arguments[0], arguments)


def run_task(folder: Folder, job: str) -> int:
    """Run a task's script as its node would; its exit code."""
    array, _, index = job.partition("_")
    with folder.locked():
        found = folder.read("jobs.json")[array]
        change(folder, job, word="RUNNING", nodes="n1", reason=None)
    restarts = found["tasks"][index].get("restarts", 0)
    own = {"SLURM_ARRAY_JOB_ID": array, "SLURM_ARRAY_TASK_ID": index, "SLURMD_NODENAME": "n1"}
    own |= {"SLURM_JOB_ID": str(1000 * int(array) + int(index))}
    own |= {"SLURM_RESTART_COUNT": str(restarts)} if restarts else {}
    output = found["output"].replace("%A", array).replace("%a", index).replace("%%", "%")
    script = folder.path / f"{job}.sh"
    script.write_text(found["script"])
    with (Path(found["folder"]) / output).open("ab") as file:
        code = subprocess.run(
            ["/bin/bash", str(script)],
            cwd=found["folder"],
            env=found["environment"] | own,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    with folder.locked():
        task = folder.read("jobs.json")[array]["tasks"][index]
        if task["word"] == "RUNNING":  # neither requeued nor cancelled
            how = f"0:{-code}" if code < 0 else f"{code}:0"
            change(folder, job, word="COMPLETED" if code == 0 else "FAILED", code=how)
    return code


if __name__ == "__main__":
    if sys.argv[1] == "srun":
        srun(sys.argv[2:])
    sys.exit(run_task(Folder(Path(os.environ["FAKE_SLURM"])), sys.argv[2]))
