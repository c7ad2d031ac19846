"""Slurm's commands over a file, with faults that a real cluster does not have on demand.

The folder named by FAKE_SLURM holds

    cluster.json   jobs and tasks, as the commands leave them
    faults.json    faults (below), read at every call; absent: none
    calls.jsonl    command, arguments, environment and, for sbatch, script of every call
    faults:
      max_array_size          highest index + 1
      most_tasks              tasks in the queue above which sbatch refuses, as a QOS does
      accounting              false: sacct says that storage is disabled
      accounting_lag          true: sacct has not heard of any job yet
      <command>: [fault, …]   one for each of the next calls of the command, used up in order:
          null                it works
          {"stderr", "code"}  it fails so and does nothing
          {"stderr", "code", "done": true}   it does what was asked, and then fails so
      <command>_always: {"stderr", "code"}   every call fails so

Nothing runs by itself: `set_state` and `run_task` of the fixture move tasks on.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

QUEUED = ("PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD")
QOS = (
    "sbatch: error: QOSMaxSubmitJobPerUserLimit\n"
    "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, "
    "user's size and/or time limits)\n"
)


class Fault(Exception):  # noqa: N818
    """The command fails: what it prints, its exit code, and whether it has done its work before."""

    def __init__(self, stderr: str, code: int = 1) -> None:
        super().__init__(stderr)
        self.stderr, self.code = stderr, code


@contextmanager
def cluster(folder: Path) -> Iterator[dict[str, Any]]:
    """The jobs, under a lock; changes are kept."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = folder / "cluster.json"
        state = json.loads(path.read_text()) if path.exists() else {"next": 1, "jobs": {}}
        yield state
        new = path.with_suffix(".tmp")
        new.write_text(json.dumps(state))
        new.replace(path)


def read_faults(folder: Path) -> dict[str, Any]:
    path = folder / "faults.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def next_fault(folder: Path, command: str) -> dict[str, Any] | None:
    """The fault of this call, taken off the list."""
    faults = read_faults(folder)
    if f"{command}_always" in faults:
        always: dict[str, Any] = faults[f"{command}_always"]
        return always
    waiting = faults.get(command) or []
    if not waiting:
        return None
    fault: dict[str, Any] | None = waiting.pop(0)
    (folder / "faults.json").write_text(json.dumps(faults))
    return fault


def option(arguments: list[str], name: str) -> str | None:
    found = [word.partition("=")[2] for word in arguments if word.startswith(f"--{name}=")]
    return found[-1] if found else None


def in_queue(state: dict[str, Any]) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    return [
        (f"{job}_{index}", entry, task)
        for job, entry in state["jobs"].items()
        for index, task in entry["tasks"].items()
        if task["word"] in QUEUED
    ]


def sbatch(state: dict[str, Any], arguments: list[str], faults: dict[str, Any]) -> str:
    array = option(arguments, "array") or "0"
    last = int(array.partition("%")[0].rpartition("-")[2])
    if last >= faults.get("max_array_size", 1001):
        raise Fault("sbatch: error: Batch job submission failed: Invalid job array specification\n")
    most = faults.get("most_tasks")
    if most is not None and len(in_queue(state)) + last + 1 > most:
        raise Fault(QOS)
    job = str(state["next"])
    state["next"] += last + 1
    tasks = {str(index): {"word": "PENDING"} for index in range(last + 1)}
    state["jobs"][job] = {
        "name": option(arguments, "job-name"),
        "script": arguments[-1],
        "output": option(arguments, "output"),
        "arguments": arguments[:-1],
        "tasks": tasks,
    }
    return f"{job}\n"


def squeue(state: dict[str, Any], arguments: list[str], faults: dict[str, Any]) -> str:
    name, form = option(arguments, "name"), option(arguments, "format") or "%i"
    lines = []
    for task_id, job, task in in_queue(state):
        if name is not None and job["name"] != name:
            continue
        fields = {
            "%i": task_id,
            "%F": task_id.partition("_")[0],
            "%T": task["word"],
            "%r": task.get("reason", "None"),
            "%N": task.get("nodes", ""),
            "%L": task.get("left", "10:00"),
        }
        line = form
        for sign, value in fields.items():
            line = line.replace(sign, value)
        lines.append(line)
    return "".join(f"{line}\n" for line in lines)


def sacct(state: dict[str, Any], arguments: list[str], faults: dict[str, Any]) -> str:
    if faults.get("accounting") is False:
        raise Fault("Slurm accounting storage is disabled\n")
    if faults.get("accounting_lag"):
        return ""
    assert option(arguments, "starttime"), "without a start time, sacct speaks of today alone"
    wanted, name = option(arguments, "jobs"), option(arguments, "name")
    columns = (option(arguments, "format") or "").split(",")
    lines = []
    for job, entry in state["jobs"].items():
        if (wanted and job not in wanted.split(",")) or (name and entry["name"] != name):
            continue
        for index, task in entry["tasks"].items():
            if task.get("forgotten"):
                continue
            fields = {
                "JobID": f"{job}_{index}",
                "State": task["word"] + (f" by {task['by']}" if task.get("by") else ""),
                "ExitCode": task.get("exit", "0:0"),
                "NodeList": task.get("nodes", "None assigned"),
            }
            lines.append((option(arguments, "delimiter") or "|").join(fields[column] for column in columns))
    return "".join(f"{line}\n" for line in lines)


def scontrol(state: dict[str, Any], arguments: list[str], faults: dict[str, Any]) -> str:
    if arguments[:2] == ["show", "config"]:
        size = faults.get("max_array_size", 1001)
        values = {"KillWait": "30 sec", "MaxArraySize": size, "SLURM_VERSION": "22.05.8"}
        return "".join(f"{name:23} = {value}\n" for name, value in values.items())
    if arguments[:1] == ["requeue"]:
        job, _, index = arguments[1].partition("_")
        state["jobs"][job]["tasks"][index] = {"word": "PENDING"}
        return ""
    raise Fault(f"scontrol: error: the stand-in does not know {arguments}\n")


def scancel(state: dict[str, Any], arguments: list[str], faults: dict[str, Any]) -> str:
    for word in arguments:
        if not word.startswith("-"):
            job, _, index = word.partition("_")
            tasks = state["jobs"].get(job, {"tasks": {}})["tasks"]
            for key in [index] if index else list(tasks):
                if tasks.get(key, {}).get("word") in QUEUED:
                    tasks[key] = {"word": "CANCELLED", "by": "0"}
    return ""


COMMANDS = {"sbatch": sbatch, "squeue": squeue, "sacct": sacct, "scontrol": scontrol, "scancel": scancel}


def note(folder: Path, command: str, arguments: list[str]) -> None:
    line: dict[str, Any] = {"command": command, "arguments": arguments, "environment": dict(os.environ)}
    if command == "sbatch":
        line["script"] = Path(arguments[-1]).read_text()
    with (folder / "calls.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def main(command: str) -> int:
    folder, arguments = Path(os.environ["FAKE_SLURM"]), sys.argv[1:]
    try:
        with cluster(folder) as state:
            note(folder, command, arguments)
            fault = next_fault(folder, command)
            if fault is not None and not fault.get("done"):
                raise Fault(fault["stderr"], fault.get("code", 1))
            answer = COMMANDS[command](state, arguments, read_faults(folder))
        if fault is not None:
            raise Fault(fault["stderr"], fault.get("code", 1))
    except Fault as failed:
        sys.stderr.write(failed.stderr)
        return failed.code
    sys.stdout.write(answer)
    return 0
