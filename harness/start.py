"""Where the ``parity`` command starts: signals are answered before anything heavy is imported.

An interrupt (SIGINT) or a request to end (SIGTERM) becomes a ``KeyboardInterrupt`` in the main
thread, so that whatever is open is closed on the way out: threads end, hooks are removed, a file
that is half written is removed. A second signal does not wait for that.
"""

import os
import signal
import sys
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED = 128 + signal.SIGINT


class Stop:
    """Answers signals.

    Attributes:
        code: Exit code that the first signal asks for, 128 and its number; None before it.
    """

    def __init__(self) -> None:
        self.code: int | None = None

    def install(self) -> None:
        """Answer the signals from now on, but for those that whoever started us has us ignore."""
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._answer)

    def _answer(self, number: int, frame: FrameType | None) -> None:
        if self.code is not None:
            os._exit(self.code)
        self.code = 128 + number
        raise KeyboardInterrupt


def main() -> None:
    """Entry point of the ``parity`` command."""
    stop = Stop()
    stop.install()
    try:
        code = _run()
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code == INTERRUPTED:
        sys.stderr.write("Interrupted.\n")
        code = stop.code or code
    # All is closed and written; what follows is Python's own end, which answers with a traceback.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


def _run() -> int:
    """The command's exit code."""
    try:
        from . import cli

        try:
            cli.main()
        finally:
            sys.stdout.flush()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except OSError as error:
        # Standard output is all that is left to fail here; nothing else can be said anywhere.
        reason = (error.strerror or type(error).__name__).lower()
        sys.stderr.write(
            "Error: standard output\n"
            "  expected: a place that takes what is printed\n"
            f"  found:    {reason}\n"
            "  advice:   make room there, or send it elsewhere\n"
        )
        _drop_output()
        return 2
    return 0


def _drop_output() -> None:
    """What is still to be printed goes nowhere, so that Python's end does not fail on it again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
