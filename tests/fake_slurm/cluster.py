"""A cluster in a folder: what the fake commands do and print. Standard library alone, a process per command.

The folder is named by FAKE_SLURM; a lock in it is held for as long as a command works.

    jobs.json     array id → name, tasks (index → word, reason, nodes, code, restarts, submitted), script, …
    faults.json   what goes wrong, see `Faults`
    states.json   job ("17_3") → word, or {"word", "reason", "code", "nodes", "left"}: what Slurm says of it
    calls.jsonl   every call: command, arguments, environment, the script's text

Answers have the form that Slurm 22.05 gives them; tests/test_slurm_commands.py runs on both.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

OVER = {
    *("COMPLETED", "FAILED", "BOOT_FAIL", "CANCELLED", "DEADLINE", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "REVOKED", "TIMEOUT"),
}
"""Words of jobs that squeue leaves out; every other word, a new one too, is in the queue."""
POLICY = (
    "Batch job submission failed: Job violates accounting/QOS policy "
    "(job submit limit, user's size and/or time limits)"
)


class Failed(Exception):  # noqa: N818
    """A command fails: what it prints and its exit code."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


class Folder:
    """The state on disk. Keys of faults.json:

    calls              list of {command, call (its number from 1, or null: any), times (1), stderr, code (1),
                       queued (sbatch: the job was made all the same), sleep (seconds)}
    accounting         false: "Slurm accounting storage is disabled"
    accounting_from    Unix time before which accounting has heard of nothing
    max_submit         tasks in the queue at once; more is QOSMaxSubmitJobPerUserLimit
    max_array_size, max_array_tasks
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, name: str) -> dict[str, Any]:
        file = self.path / name
        found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        return found

    def write(self, name: str, data: dict[str, Any]) -> None:
        draft = self.path / f"{name}.draft"
        draft.write_text(json.dumps(data))
        draft.replace(self.path / name)

    @contextmanager
    def locked(self) -> Iterator[None]:
        with (self.path / "lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def record(self, command: str, arguments: list[str], script: str | None) -> int:
        """Note a call; its number among those of the command."""
        line = {"command": command, "argv": arguments, "env": dict(os.environ), "script": script}
        with (self.path / "calls.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        return sum(json.loads(line)["command"] == command for line in self._calls())

    def _calls(self) -> list[str]:
        return (self.path / "calls.jsonl").read_text().splitlines()

    def fault(self, command: str, call: int) -> dict[str, Any] | None:
        """The fault of this call; it is used up."""
        faults = self.read("faults.json")
        for fault in faults.get("calls", []):
            if fault["command"] == command and fault.get("call") in (None, call):
                left = fault.get("times", 1)
                if left > 0:
                    fault["times"] = left - 1
                    self.write("faults.json", faults)
                    return dict(fault)
        return None

    def tasks(self) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
        """Every task: its name, its job, and what Slurm says of it."""
        said = self.read("states.json")
        for array, job in self.read("jobs.json").items():
            for index, task in job["tasks"].items():
                name = f"{array}_{index}"
                more = said.get(name, {})
                yield name, job, task | ({"word": more} if isinstance(more, str) else more)


def option(arguments: list[str], *names: str) -> str | None:
    """Value of an option, as `--name=value` or `--name value` or `-n value`."""
    for position, word in enumerate(arguments):
        head, sign, value = word.partition("=")
        if head in names:
            return value if sign else arguments[position + 1]
    return None


def sbatch(folder: Folder, arguments: list[str]) -> str:
    if "--version" in arguments:
        return "slurm-wlm 22.05.8"
    script = Path(next(word for word in reversed(arguments) if not word.startswith("-")))
    if not script.is_file():
        raise Failed(f"sbatch: error: Unable to open file {script}")
    spec = (option(arguments, "--array", "-a") or "").partition("%")[0]
    indices = _indices(spec) if spec else [0]
    faults = folder.read("faults.json")
    size = faults.get("max_array_size", 1001)
    if max(indices) >= size or len(indices) > faults.get("max_array_tasks", size):
        raise Failed("sbatch: error: Batch job submission failed: Invalid job array specification")
    waiting = sum(task["word"] not in OVER for _, _, task in folder.tasks())
    if waiting + len(indices) > faults.get("max_submit", 1_000_000):
        raise Failed(f"sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: {POLICY}")
    jobs = folder.read("jobs.json")
    array = str(max(map(int, jobs), default=0) + 1)
    held = "--hold" in arguments or "-H" in arguments
    task = {"word": "PENDING", "reason": "JobHeldUser" if held else "Priority", "submitted": time.time()}
    jobs[array] = {
        "name": option(arguments, "--job-name", "-J") or script.name,
        "script": script.read_text(),
        "folder": option(arguments, "--chdir", "-D") or str(Path.cwd()),
        "output": option(arguments, "--output", "-o") or "slurm-%A_%a.out",
        "environment": dict(os.environ),
        "sent": time.time(),
        "tasks": {str(index): dict(task) for index in indices},
    }
    folder.write("jobs.json", jobs)
    return f"{array}"


def _indices(spec: str) -> list[int]:
    found = []
    for part in spec.split(","):
        ends, _, step = part.partition(":")
        first, _, last = ends.partition("-")
        found += list(range(int(first), int(last or first) + 1, int(step or 1)))
    return found


def squeue(folder: Folder, arguments: list[str]) -> str:
    """Of the formats only %i %F %T %r %N %L %j."""
    form = option(arguments, "--format", "-o") or "%i %T"
    name, everything = option(arguments, "--name", "-n"), option(arguments, "--states", "-t") == "all"
    rows: list[tuple[str, bool, tuple[str, ...]]] = []
    letters = re.findall(r"%(\w)", form)
    for job, owner, task in folder.tasks():
        if (task["word"] in OVER and not everything) or (name and owner["name"] != name):
            continue
        waits = task["word"] in ("PENDING", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
        fields = {
            "F": job.partition("_")[0],
            "T": task["word"],
            "r": task.get("reason") or ("Priority" if waits else "None"),
            "N": "" if waits else task.get("nodes", "n1"),
            "L": task.get("left", "1:00:00" if waits else "59:58"),
            "j": owner["name"],
        }
        joined = waits and not task.get("restarts") and "--array" not in arguments and "-r" not in arguments
        rows.append((job, joined, tuple(fields.get(letter, "") for letter in letters)))
    lines = []
    for job, values in joined_tasks(rows):
        line = form
        for letter, value in zip(letters, values, strict=True):
            line = line.replace(f"%{letter}", job if letter == "i" else value)
        lines.append(line)
    return "\n".join(lines)


def sacct(folder: Folder, arguments: list[str]) -> str:
    faults = folder.read("faults.json")
    if not faults.get("accounting", True):
        raise Failed("Slurm accounting storage is disabled")
    if time.time() < faults.get("accounting_from", 0):
        return ""
    between = option(arguments, "--delimiter") or "|"
    columns = (option(arguments, "--format", "-o") or "JobID,State").split(",")
    name, arrays = option(arguments, "--name"), (option(arguments, "--jobs", "-j") or "").split(",")
    rows: list[tuple[str, bool, tuple[str, ...]]] = []
    for job, owner, task in folder.tasks():
        if (name and owner["name"] != name) or (arrays != [""] and job.partition("_")[0] not in arrays):
            continue
        if task.get("untold"):
            continue
        for record in (*(task.get("earlier", []) if "-D" in arguments else []), task):
            values = _accounted(columns, record)
            rows.append((job, "None assigned" in values, values))
    return "\n".join(between.join((job, *values)) for job, values in joined_tasks(rows))


def _accounted(columns: list[str], task: dict[str, Any]) -> tuple[str, ...]:
    """What sacct says of a task beside its name, which comes first."""
    never = task["word"] == "PENDING" or (task["word"].startswith("CANCELLED") and not task.get("nodes"))
    fields = {
        "Submit": str(int(task["submitted"])),
        "State": "CANCELLED by 0" if task["word"] == "CANCELLED" else task["word"],
        "ExitCode": task.get("code", "0:0"),
        "NodeList": "None assigned" if never else task.get("nodes", "n1"),
    }
    return tuple(fields[column] for column in columns if column != "JobID")


def joined_tasks(
    rows: list[tuple[str, bool, tuple[str, ...]]],
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Rows (task, whether it never left the queue, what is said of it), of which those that never did share
    one, `17_[0-2,5]`, cut off after 64 letters unless SLURM_BITSTR_LEN=0."""
    groups: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for job, joined, values in rows:
        array, _, index = job.partition("_")
        if joined:
            groups.setdefault((array, values), []).append(int(index))
        else:
            yield job, values
    for (array, values), indices in groups.items():
        yield f"{array}_[{_ranges(sorted(indices))}]", values


def _ranges(indices: list[int]) -> str:
    parts = []
    for _, group in itertools.groupby(enumerate(indices), key=lambda pair: pair[1] - pair[0]):
        run = [index for _, index in group]
        parts.append(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}")
    text = ",".join(parts)
    if len(text) <= 64 or os.environ.get("SLURM_BITSTR_LEN") == "0":
        return text
    return text[:60].rpartition(",")[0] + ",..."


def scontrol(folder: Folder, arguments: list[str]) -> str:
    faults = folder.read("faults.json")
    match [word for word in arguments if not word.startswith("-")]:
        case ["show", "config"]:
            tasks = faults.get("max_array_tasks")
            storage = "slurmdbd" if faults.get("accounting", True) else "none"
            settings = {
                "AccountingStorageType": f"accounting_storage/{storage}",
                "KillWait": "30 sec",
                "MaxArraySize": faults.get("max_array_size", 1001),
                "MaxJobCount": 10_000,
                "SchedulerParameters": f"max_array_tasks={tasks}" if tasks else "(null)",
                "SLURM_VERSION": faults.get("version", "22.05.8"),
            }
            return "\n".join(f"{name:<23} = {value}" for name, value in settings.items())
        case ["show", "job", job]:
            task = next((task for name, _, task in folder.tasks() if name == job), None)
            if task is None:
                raise Failed("slurm_load_jobs error: Invalid job id specified")
            restarts = task.get("restarts", 0)
            return f"JobId=1 JobState={task['word']} Reason=None Restarts={restarts} EndTime=Unknown"
        case ["requeue", job]:
            change(folder, job, requeue=True)
        case ["release", job]:
            change(folder, job, reason="Priority")
        case words:
            raise Failed(f"scontrol: error: the fake has no {words}")
    return ""


def change(folder: Folder, job: str, *, requeue: bool = False, **fields: Any) -> None:
    """Change a task of jobs.json, or put it back into the queue."""
    jobs, said = folder.read("jobs.json"), folder.read("states.json")
    if said.pop(job, None) is not None:
        folder.write("states.json", said)
    array, _, index = job.partition("_")
    tasks = jobs.get(array, {}).get("tasks", {})
    for task in tasks.values() if not index else [tasks[index]] if index in tasks else []:
        if requeue:
            old = {name: value for name, value in task.items() if name != "earlier"}
            task.setdefault("earlier", []).append(old | {"word": "REQUEUED"})
            task |= {"word": "PENDING", "reason": "BeginTime", "submitted": time.time()}
            task["restarts"] = task.get("restarts", 0) + 1
        elif fields.get("word") != "CANCELLED":
            task |= fields
        elif task["word"] not in OVER:
            task |= fields | {"untold": fields["untold"] and task["word"] == "PENDING"}
    folder.write("jobs.json", jobs)


def scancel(folder: Folder, arguments: list[str]) -> str:
    for job in arguments:
        if not job.startswith("-"):
            if not re.fullmatch(r"\d+(_\d+)?", job):
                raise Failed(f"scancel: error: Invalid job id {job}")
            # one task that waits leaves no trace in accounting
            change(folder, job, word="CANCELLED", untold="_" in job)
    return ""


COMMANDS = {"sbatch": sbatch, "squeue": squeue, "sacct": sacct, "scontrol": scontrol, "scancel": scancel}


def main(command: str, arguments: list[str]) -> int:
    folder = Folder(Path(os.environ["FAKE_SLURM"]))
    with folder.locked():
        script = Path(arguments[-1]) if command == "sbatch" and arguments else None
        text = script.read_text() if script is not None and script.is_file() else None
        fault = folder.fault(command, folder.record(command, arguments, text))
        if fault is not None and fault.get("queued"):
            COMMANDS[command](folder, arguments)
    if fault is not None:
        time.sleep(fault.get("sleep", 0))
        print(fault.get("stderr", ""), file=sys.stderr)
        return int(fault.get("code", 1))
    try:
        with folder.locked():
            answer = COMMANDS[command](folder, arguments)
    except Failed as failure:
        print(failure, file=sys.stderr)
        return failure.code
    if answer:
        print(answer)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
