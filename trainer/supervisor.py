"""The process between Slurm and the trainers of one task: signals, attempts, and whether to go on.

    Slurm ── warning, TERM, INT ─► supervisor ── one SIGTERM each ─► trainers ── checkpoint, exit 75
             or the time is up         │ asks the controller why
                                       └─► a `left` line per attempt; exit 85: requeue the task

Slurm sends its signals to every process of the step. Trainers start with the warning signal ignored, and
pass that on to what they start; they take SIGTERM as a request themselves, so that one from Slurm and one
from here are the same. They share the supervisor's process group, so that whatever ends the step ends them,
and watch for its death by GRPOSWEEP_LAUNCHER. There is no limit of time here: Slurm kills at its own.

Signals are blocked and waited for, never handled, so that none is lost between two looks. One that comes as
the interpreter starts, before that, ends the process.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainer.attempts import Asked, Exit, next_attempt
from trainer.files import append_line
from trainer.paths import RunPaths
from trainer.run_history import attempt_of, failed_in, is_finished, is_superseded, why_not_again
from trainer.slurm_report import Question, requeued, why_asked

REQUEUE = 85
"""Exit code that asks the job script to requeue the task."""
BUSY_PAUSES = (5.0, 10.0, 20.0, 40.0, 45.0)
"""Seconds before each new try at a run that an earlier process still trains; then it is given up."""
SETTLE = 2.0
"""Seconds for which a signal to the step may reach a trainer before it reaches the supervisor."""
QUESTION_PAUSE = 0.1
"""Seconds between looks at an answer that is under way."""
LONGEST_WAIT = 60.0


@dataclass(slots=True)
class Child:
    """One run of the task and the trainer that works on it."""

    run: RunPaths
    environment: Mapping[str, str]
    attempt: int = 0
    process: subprocess.Popen[bytes] | None = None
    start_at: float | None = 0.0
    """Monotonic time of its next start; None: none is due."""
    tries: int = 0
    ended_at: float | None = None
    result: int | None = None
    """What became of it, as an exit code of the task; None: still open."""

    @property
    def code(self) -> int | None:
        """Exit code of its process, minus the signal that ended it; None while it runs."""
        return None if self.process is None else self.process.poll()


class Supervisor:
    """Runs the trainers of one task to their end; one caller, no threads."""

    def __init__(
        self,
        *,
        job: str,
        restart: int,
        warning: signal.Signals,
        lead: float,
        end: float | None,
        max_timeouts: int,
        command: Sequence[str],
    ) -> None:
        self._job, self._restart = job, restart
        self._warning, self._lead, self._end = warning, lead, end
        self._max_timeouts = max_timeouts
        self._command = tuple(command)
        self._children: list[Child] = []
        self._asked: Asked | None = None
        self._requeued = False
        self._stopping = False
        self._question: Question | None = None
        self._warned = False
        self._by_clock = False
        """Whether the question under way is the clock's, which stops nothing before its answer."""
        self._blocked = {warning, signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
        self._mask: set[int] = set()

    def supervise(self, runs: Sequence[tuple[RunPaths, Mapping[str, str]]]) -> int:
        """Start a trainer per run, with its environment, and wait for all; exit code of the task."""
        # inherited as ignored, it would let children vanish without an exit code
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._mask = set(signal.pthread_sigmask(signal.SIG_BLOCK, self._blocked))
        try:
            self._children = [self._child(run, environment) for run, environment in runs]
            while any(child.result is None for child in self._children):
                self._step()
            return self._exit_code()
        finally:
            # nothing is left to do in good order; after a fault in here, no trainer must live on
            self._stop()
            for child in self._children:
                if child.process is not None:
                    child.process.wait()
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _child(self, run: RunPaths, environment: Mapping[str, str]) -> Child:
        if is_finished(run):
            self._say(run, "is finished already")
            return Child(run, environment, result=Exit.FINISHED)
        if self._restart and failed_in(run, self._job):
            self._say(run, "failed in this job and is not run again by its requeueing")
            return Child(run, environment, result=Exit.FAILED)
        return Child(run, environment)

    def _step(self) -> None:
        for child in self._children:
            if child.start_at is not None and child.result is None and time.monotonic() >= child.start_at:
                self._start(child)
        number = signal.sigtimedwait(self._blocked, self._patience())
        if number is not None and number.si_signo != signal.SIGCHLD:
            self._request(number.si_signo)
        self._answer()
        self._look_at_clock()
        for child in self._children:
            if child.result is None:
                self._look_at(child)

    def _patience(self) -> float:
        """Seconds for which nothing is to be done unless a signal comes."""
        now = time.monotonic()
        waits = [LONGEST_WAIT]
        if self._question is not None:
            waits.append(QUESTION_PAUSE)
        elif self._end is not None and not self._stopping:
            waits.append(self._end - self._lead - time.time())
        for child in self._children:
            if child.result is None:
                waits += [moment - now for moment in (child.start_at, child.ended_at) if moment is not None]
        return max(0.0, min(waits))

    def _start(self, child: Child) -> None:
        child.start_at = None
        if self._stopping:
            return
        run = child.run
        child.attempt = next_attempt(run)
        child.tries += 1
        log = run.log(child.attempt)
        log.parent.mkdir(parents=True, exist_ok=True)
        run.refused.unlink(missing_ok=True)
        with log.open("ab") as output:
            child.process = subprocess.Popen(
                [*self._command, str(run.folder)],
                cwd=run.folder,
                env=dict(child.environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # this process has one thread, so that code between fork and exec is safe
                preexec_fn=self._before_trainer,
            )
        self._say(run, f"starts attempt {child.attempt} as process {child.process.pid}")

    def _before_trainer(self) -> None:
        signal.signal(self._warning, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _request(self, number: int) -> None:
        """A signal asks the task to stop: do so at once, and find out why meanwhile."""
        print(f"task {self._job} was sent {signal.Signals(number).name}", flush=True)
        self._stop()
        self._by_clock = False
        if self._question is None and self._asked is not Asked.CANCELLED:
            self._warned = number == self._warning
            self._question = Question(self._job, (self._warning, signal.SIGTERM, signal.SIGINT))

    def _stop(self) -> None:
        """One SIGTERM to each trainer, however many signals come."""
        if self._stopping:
            return
        self._stopping = True
        for child in self._children:
            if child.process is not None and child.code is None:
                child.process.terminate()

    def _look_at_clock(self) -> None:
        """Act by itself when the time is nearly up, for sites whose warning does not arrive."""
        if self._stopping or self._question is not None or self._end is None:
            return
        if self._end - time.time() <= self._lead:
            self._by_clock, self._warned = True, False
            self._question = Question(self._job, (self._warning, signal.SIGTERM, signal.SIGINT))

    def _answer(self) -> None:
        question = self._question
        if question is None or not question.answered():
            return
        self._question = None
        report = question.report
        if self._by_clock:
            self._by_clock = False
            if report is not None and report.end is not None:
                self._end = report.end
            if self._end is None or self._end - time.time() > self._lead:
                # somebody gave the job more time
                return
            self._stop()
        asked = why_asked(
            report,
            warned=self._warned,
            restart=self._restart,
            end=self._end,
            lead=self._lead,
            now=time.time(),
        )
        self._requeued = self._requeued or requeued(report, self._restart)
        # the first cause counts, unless it was none, or the user now gives the task up
        if self._asked in (None, Asked.STOPPED) or asked is Asked.CANCELLED:
            self._asked = asked
            print(f"task {self._job} is to stop: {asked}", flush=True)

    def _look_at(self, child: Child) -> None:
        """Settle what became of a trainer that has ended, once it is known why."""
        code = child.code
        if code is None and (child.process is not None or not self._stopping):
            return
        if code == Exit.BUSY and not self._stopping and self._try_again(child):
            return
        interrupted = code is None or code == Exit.INTERRUPTED or -code in (signal.SIGTERM, signal.SIGINT)
        if self._stopping and code == Exit.BUSY:
            interrupted = True
        if interrupted and not self._stopping and not self._has_settled(child):
            return
        if self._question is not None:
            return
        child.result = self._leave(child, code, interrupted)

    def _has_settled(self, child: Child) -> bool:
        """Whether a signal that ended the trainer would have come here by now, had it been for the task."""
        child.ended_at = child.ended_at or time.monotonic() + SETTLE
        return time.monotonic() >= child.ended_at

    def _try_again(self, child: Child) -> bool:
        """Whether a run that another process trains is, or will be, started again."""
        if child.start_at is not None:
            return True
        assert child.process is not None
        number = attempt_of(child.run, child.process.pid, child.attempt)
        if child.tries > len(BUSY_PAUSES) or is_superseded(child.run, number):
            return False
        pause = BUSY_PAUSES[child.tries - 1]
        self._say(child.run, f"is still trained by an earlier process: next try in {pause:g} s")
        child.start_at = time.monotonic() + pause
        return True

    def _leave(self, child: Child, code: int | None, interrupted: bool) -> int:
        """Write how an attempt was left; returns what became of it, as an exit code of the task."""
        pid = None if child.process is None else child.process.pid
        expected = child.attempt or next_attempt(child.run)
        number = attempt_of(child.run, pid, expected)
        asked = self._asked if self._stopping else None
        again = interrupted and asked in (Asked.PREEMPTED, Asked.TIME_LIMIT)
        if again and asked is Asked.TIME_LIMIT:
            reason = why_not_again(child.run, self._job, number, self._max_timeouts)
            if reason is not None:
                again = False
                self._say(child.run, f"is not requeued: {reason}")
        ending = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        self._say(child.run, f"left attempt {number} with {ending}" + (", to be requeued" if again else ""))
        line = {"attempt": number, "event": "left", "time": time.time(), "host": socket.gethostname()}
        line |= {"job": self._job, "restart": self._restart}
        line |= {"exit_code": code if code is not None and code >= 0 else None}
        line |= {"signal": -code if code is not None and code < 0 else None, "asked": asked, "requeue": again}
        try:
            append_line(child.run.attempts, line)
        except OSError as error:
            # a full disk must not keep the task from going on elsewhere
            self._say(child.run, f"could not note that in {child.run.attempts}: {error}")
        if again:
            return REQUEUE
        if interrupted:
            return Exit.INTERRUPTED
        if code == Exit.FINISHED and not is_finished(child.run):
            self._say(child.run, "ended with exit code 0 and has no record of an end: it counts as failed")
            return Exit.FAILED
        return code if code in (Exit.FINISHED, Exit.USER_ERROR) else Exit.FAILED

    def _exit_code(self) -> int:
        results = {child.result for child in self._children}
        if REQUEUE in results:
            # Slurm has done it already where it preempts without a grace time
            return Exit.INTERRUPTED if self._requeued else REQUEUE
        for code in (Exit.FAILED, Exit.USER_ERROR, Exit.INTERRUPTED):
            if code in results:
                return code
        return Exit.FINISHED

    def _say(self, run: RunPaths, text: str) -> None:
        print(f"run {run.run_id} {text}", flush=True)
