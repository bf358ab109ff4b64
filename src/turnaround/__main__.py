"""The command `turnaround`, which `python -m turnaround` is too."""

import _thread
import os
import signal
import sys
import threading
from types import FrameType

from turnaround.errors import EXIT_CTRL_C, STOPPED


def main() -> None:
    """Load the verbs and run the one that was typed; a Ctrl-C is one line at any moment, never a stack trace."""
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else somebody ignores it, as nohup does
    if is_usual:
        # Loading takes up to a second, and nothing has begun yet that would have to be put away.
        signal.signal(signal.SIGINT, _end_at_once)
    from turnaround.cli import main as run_verb

    if is_usual:
        sys.unraisablehook = _not_lost
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run_verb()
    finally:
        if is_usual:
            # Python takes seconds to put torch away: whoever presses again by then has been told already.
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _not_lost(unraisable: "sys.UnraisableHookArgs") -> None:
    """Ask again where Python would print a Ctrl-C and forget it: within a finalizer, or the end of an import."""
    if not isinstance(unraisable.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
        return
    again = threading.Timer(0.05, _thread.interrupt_main)  # by then the finalizer is over
    again.daemon = True
    again.start()


def _end_at_once(signum: int, frame: FrameType | None) -> None:
    sys.stderr.write(f"{STOPPED}\n")
    sys.stderr.flush()
    os._exit(EXIT_CTRL_C)


if __name__ == "__main__":
    main()
