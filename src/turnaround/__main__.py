"""The command `turnaround`, which `python -m turnaround` is too."""

import signal


def main() -> None:
    """Load the verbs and run the one that was typed; a Ctrl-C while they load ends the process without a trace."""
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else somebody ignores it, as nohup does
    if is_usual:
        # Loading takes up to a second, and nothing has begun yet: the shell is told "ended by SIGINT", 130.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from turnaround.cli import main as run_verb

    if is_usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run_verb()


if __name__ == "__main__":
    main()
