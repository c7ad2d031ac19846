"""One attempt at a run, from start to its end mark: lock, state, signals, summary.

Only this process writes the run's state. It ends in one of the ways of `trainer.record.Exit`.
"""

from __future__ import annotations

import os
import time
import traceback
from pathlib import Path

import torch

import trainer
from trainer.budget import Budget
from trainer.collapse import RULE_VERSION
from trainer.config import RunConfig
from trainer.errors import UserError
from trainer.files import LockHeldError, locked, write_json
from trainer.journal import Journals
from trainer.lockstep import JOURNALS, Lockstep
from trainer.record import Exit, Outcome, RunPaths, Summary, read_budget, read_config, read_summary
from trainer.running_attempt import Attempt, Interrupted, Superseded, close_last_attempt


def run_job(folder: Path) -> Exit:
    """Train the run in `folder` to its budget's end, or until asked to stop."""
    paths = RunPaths(folder.resolve())
    try:
        _check_code()
        config, budget = read_config(paths), read_budget(paths)
        with locked(paths.lock):
            attempt = Attempt(paths)
            close_last_attempt(paths)
            attempt.note_start()
            torch.set_num_threads(config.resources.threads)
            _use_device(config)
            with attempt.listening():
                return _attempt(attempt, paths, config, budget)
    except UserError as error:
        print(error, flush=True)
        return Exit.USER_ERROR
    except LockHeldError as error:
        print(f"not started: {error}", flush=True)
        return Exit.BUSY


def _attempt(attempt: Attempt, paths: RunPaths, config: RunConfig, budget: Budget) -> Exit:
    try:
        return _run(attempt, paths, config, budget)
    except Superseded:
        print(f"attempt {attempt.number} stops: a newer attempt has started", flush=True)
        attempt.note_end("superseded", None)
        return Exit.BUSY


def _run(attempt: Attempt, paths: RunPaths, config: RunConfig, budget: Budget) -> Exit:
    """One attempt and its end in the record; raises `Superseded`, also for errors that a newer one caused."""
    engine: Lockstep | None = None
    try:
        attempt.write_state("running", None)
        engine = Lockstep(paths, config, budget, attempt.check, attempt.fence)
        engine.restore(attempt.number - 1, lambda text: print(text, flush=True))
        _drop_summary_beyond(engine.step, paths)
        attempt.last_beat = (time.monotonic(), engine.step, 0)  # restored updates count for no speed
        with Journals(paths.folder, JOURNALS, attempt.fence) as journals:
            _train(attempt, engine, journals)
        attempt.fence()
        write_json(paths.summary, _summary(paths, engine).model_dump(mode="json"))
        attempt.write_state("finished", engine)
        attempt.note_end("finished", engine)
        return Exit.FINISHED
    except Interrupted as reason:
        attempt.write_state("interrupted", engine, str(reason))
        attempt.note_end("interrupted", engine, str(reason))
        return Exit.INTERRUPTED
    except Superseded:
        raise
    except Exception as error:
        if isinstance(error, UserError):
            print(error, flush=True)
        else:
            traceback.print_exc()
        attempt.write_state("failed", engine, "".join(traceback.format_exception(error)[-2:]).strip())
        attempt.note_end("exception", engine, repr(error))
        return Exit.USER_ERROR if isinstance(error, UserError) else Exit.FAILED


def _use_device(config: RunConfig) -> None:
    """Raises `UserError` when the device is not there."""
    if config.resources.device == "cuda" and not torch.cuda.is_available():
        raise UserError("resources.device=cuda, but no GPU can be used here: set resources.device=cpu")
    # on a GPU not every operation has a deterministic kernel, and byte-equality is promised for CPUs only
    on_gpu = config.resources.device == "cuda"
    torch.use_deterministic_algorithms(True, warn_only=on_gpu)
    torch.utils.deterministic.fill_uninitialized_memory = not on_gpu


def _drop_summary_beyond(step: int, paths: RunPaths) -> None:
    """Remove a summary of updates that are not there any more; that of a shorter horizon still holds."""
    if paths.summary.is_file():
        summary = read_summary(paths)
        if summary is None or summary.updates > step:
            paths.summary.unlink()


def _train(attempt: Attempt, engine: Lockstep, journals: Journals) -> None:
    """Update until done; on a request to stop, write a checkpoint within one update."""
    saved = engine.step
    budget = engine.budget
    try:
        while not engine.done:
            attempt.check()
            engine.advance(journals)
            if engine.step - saved >= budget.checkpoint_every and not engine.done:
                engine.save(journals, keep=budget.keep_checkpoints)
                saved = engine.step
            if attempt.due():
                attempt.write_state("running", engine)
    except Interrupted:
        engine.save(journals, keep=budget.keep_checkpoints)
        raise
    engine.save(journals, keep=1)


def _summary(paths: RunPaths, engine: Lockstep) -> Summary:
    verdict = engine.detector.verdict()
    outcome = Outcome(verdict.status)
    if engine.fault and outcome not in (Outcome.COLLAPSED, Outcome.RECOVERED):
        outcome = Outcome.INVALID
    rates = [0.0]
    for step in range(engine.step):
        rates.append(rates[-1] + engine.learner.rate(step))
    ends = None
    if verdict.t_low is not None and verdict.t_high is not None:
        ends = (rates[verdict.t_low], rates[min(verdict.t_high, engine.step)])
    return Summary(
        run_id=paths.run_id,
        outcome=outcome,
        reason=engine.fault,
        updates=engine.step,
        horizon=engine.budget.horizon,
        cumulative_rate=engine.cumulative_rate,
        collapse=verdict.to_dict(),
        collapse_cumulative_rate=ends,
        rule_version=RULE_VERSION,
        peak_reward=verdict.peak,
        peak_step=verdict.peak_step,
        final_reward=verdict.final,
        warm_start=engine.warm_start,
        prompts=engine.prompt_hash,
        best=engine.best,
    )


def _check_code() -> None:
    """Refuse to run from elsewhere than the code snapshot that the launcher named."""
    snapshot = os.environ.get("GRPOSWEEP_CODE")
    home = Path(trainer.__file__).resolve().parent.parent
    if snapshot and Path(snapshot).resolve() != home:
        raise UserError(f"the job runs code from {home}, not from its snapshot {snapshot}: check PYTHONPATH")
