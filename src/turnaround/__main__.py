"""The command `turnaround`, which `python -m turnaround` is too."""

import _thread
import os
import signal
import sys
import threading

from turnaround import safe_path
from turnaround.errors import end_on_ctrl_c


def main() -> None:
    """Load the verbs and run the one that was typed; a Ctrl-C is one line at any moment, never a stack trace."""
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else somebody ignores it, as nohup does
    if is_usual:
        # Loading takes up to a second; Python's own handler comes back when the verb begins (cli/verbs.py).
        signal.signal(signal.SIGINT, end_on_ctrl_c)
    os.environ.update(safe_path.settings())  # for whatever is started from here on
    from turnaround.launch import preload

    preload.begin(sys.argv[1:])  # before the verbs are loaded: its own imports take longer
    from turnaround.cli import main as run_verb
    from turnaround.cli import options

    options.owns_process = True
    if is_usual:
        sys.unraisablehook = _not_lost
    try:
        run_verb()
    finally:
        preload.end()
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


if __name__ == "__main__":
    main()
