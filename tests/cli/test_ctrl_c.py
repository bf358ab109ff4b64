"""A Ctrl-C in the first moment of every verb: one line, exit code 130, no stack trace."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import typer.main

from console import Console
from turnaround.cli import VERBS, app
from turnaround.cli.verbs import examples

GROUP: Any = typer.main.get_command(app)


@pytest.fixture
def own_handler() -> Any:
    """Python's own handler: a shell starts background jobs with SIGINT ignored, and pytest has one too."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    sys.setprofile(None)
    signal.signal(signal.SIGINT, before)


def interrupt_in(verb: Callable[..., None]) -> None:
    """Send a real SIGINT to this process as soon as the body of the verb is entered."""

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is verb.__code__:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

    sys.setprofile(look)


@pytest.mark.usefixtures("own_handler")
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: str(verb.__name__))
def test_one_line(
    verb: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = verb.__name__.rstrip("_")
    words = shlex.split((examples(GROUP.commands[name]) or [f"turnaround {name}"])[0])
    interrupt_in(verb)
    done = Console(monkeypatch, capsys)(*words[1:])
    assert (done.code, done.out, done.err) == (130, "", "Stopped by Ctrl-C.\n")
