"""The base of every adapter: a recorder that begins with the training, and reading facts that cannot fail."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from types import FrameType, FunctionType
from typing import Any, TypeVar

from turnaround.recorder import Recorder

Answer = TypeVar("Answer")
Kind = TypeVar("Kind", bound=type)


class Holder:
    """Holds the user's facts, and the recorder of the training that is under way."""

    def __init__(self, path: str | os.PathLike[str] | None, **given: Any) -> None:
        self.path, self.given = path, {name: value for name, value in given.items() if value is not None}
        self.recorder = Recorder(path, **self.given)

    def begin(self, read: Callable[[], dict[str, Any]]) -> Recorder:
        """Return a recorder for the training that begins now; what the user gave goes before what was read."""
        self.recorder.close()  # of a training before, in the same program, that came to no end
        self.recorder = Recorder(self.path, **{**(ask(read) or {}), **self.given})
        self.recorder.start()
        return self.recorder


def never_raises(kind: Kind) -> Kind:
    """Return a class of hooks, each of which ends the record instead of the training when a framework has changed."""
    for name, hook in list(vars(kind).items()):
        if isinstance(hook, FunctionType) and not name.startswith("_"):
            setattr(kind, name, _harmless(hook))
    return kind


def _harmless(hook: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(hook)
    def guarded(self: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return hook(self, *arguments, **named)
        except Exception as error:
            self._holder.recorder.step_aside(error)

    return guarded


def ask(question: Callable[[], Answer]) -> Answer | None:
    """Ask, or return None: a framework of tomorrow may have no such attribute, and that must not stop a training."""
    try:
        return question()
    except Exception:
        return None


def on_the_stack(is_it: Callable[[str, dict[str, Any]], bool]) -> dict[str, Any]:
    """Return the local variables of the nearest caller that is meant, by its function's name and its variables.

    What a framework does not hand to its callbacks is there while it calls them. It is only looked at.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_it(frame.f_code.co_name, frame.f_locals):
            return dict(frame.f_locals)
        frame = frame.f_back
    return {}


def known(facts: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    """Return the facts that can be read."""
    return {name: value for name, question in facts.items() if (value := ask(question)) is not None}
