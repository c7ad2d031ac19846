"""What every test can rely on."""

import signal

# A shell starts background jobs with SIGINT ignored, and processes inherit that; tests press Ctrl-C.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
