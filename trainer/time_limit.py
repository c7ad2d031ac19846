"""A limit on the time of work in this process, by SIGALRM. Torch-free."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class _OutOfTime(BaseException):
    """Not an `Exception`: libraries catch those on the way and go on."""


def within(seconds: float, work: Callable[[], T], *, late: T) -> T:
    """What `work` returns, or `late` if it takes longer than `seconds`; any time off the main thread.

    Uses SIGALRM and leaves its handler as it was. An earlier timer keeps its time, except that one that is
    due meanwhile fires afterwards. Work inside one long call of C code is not interrupted before its end.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    running = True

    def out_of_time(*_: object) -> None:
        if running:
            raise _OutOfTime

    # stopped first: an earlier timer must not fire into the new handler
    remaining, interval = signal.setitimer(signal.ITIMER_REAL, 0)
    started = time.monotonic()
    handler = signal.getsignal(signal.SIGALRM)
    try:
        try:
            signal.signal(signal.SIGALRM, out_of_time)
            # it repeats, as Python drops an exception that is raised inside a finalizer
            signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
            return work()
        finally:
            running = False
    except _OutOfTime:
        return late
    finally:
        running = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        # None: the handler was not set by Python and cannot be set again
        signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)
        if remaining:
            left = remaining - (time.monotonic() - started)
            signal.setitimer(signal.ITIMER_REAL, max(left, 1e-3), interval)
