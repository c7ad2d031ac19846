"""A trainer's stand-in for tests of the supervisor: keeps its contract on disk, trains nothing.

`plan.json` in the run folder: `updates`, `pause` seconds each, `busy`, times that it cannot have the lock,
and `way`: `fail`, `import` (it does not listen yet), `stuck` (no progress), `silent` (exit code 0 without a
record), `superseded`.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from trainer.attempts import next_attempt, slurm_job
from trainer.files import append_line, read_json, read_lines, write_json
from trainer.paths import RunPaths


def main() -> int:
    run = RunPaths(Path(sys.argv[1]))
    plan = read_json(run.folder / "plan.json") or {}
    way = plan.get("way", "")
    asked: list[int] = []
    print(json.dumps(dict(os.environ)), flush=True)
    with (run.folder / "starts").open("a") as starts:
        starts.write(f"{os.getpid()}\n")
    if way == "import":
        append_line(run.folder / "importing", {})
        time.sleep(60)
    if len((run.folder / "starts").read_text().split()) <= plan.get("busy", 0):
        return 76
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    helper = subprocess.Popen(["/bin/sleep", "60"])
    number, (job, restart) = next_attempt(run), slurm_job(os.environ)
    about = {"attempt": number, "time": time.time(), "host": socket.gethostname(), "pid": os.getpid()}
    started = {"event": "started", "job": job, "restart": restart}
    append_line(run.attempts, about | started | {"devices": os.environ.get("CUDA_VISIBLE_DEVICES")})
    step = len(read_lines(run.metrics))
    if way == "superseded":
        helper.kill()
        append_line(run.attempts, about | {"event": "ended", "how": "superseded"})
        return 76
    if way == "fail":
        helper.kill()
        return 1
    while step < plan["updates"]:
        time.sleep(plan.get("pause", 0.0))
        if os.getppid() != int(os.environ["GRPOSWEEP_LAUNCHER"]):
            asked.append(0)
        if asked:
            time.sleep(0.3)  # for a second request to arrive
            end = {"how": "interrupted", "step": step, "requests": len(asked), "helper": helper.poll()}
            helper.kill()
            append_line(run.attempts, about | {"event": "ended"} | end | {"time": time.time()})
            return 75
        if way != "stuck":
            append_line(run.metrics, {"step": step})
            step += 1
    helper.kill()
    if way != "silent":
        write_json(run.summary, {"updates": step, "reason": None, "collapse": {}})
        write_json(run.state, {"state": "finished"})
        append_line(run.attempts, about | {"event": "ended", "how": "finished", "step": step})
    return 0


sys.exit(main())
