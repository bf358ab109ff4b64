"""turnaround: train image classifiers on 1..N workers, record every run, compare and predict.

The command line is `turnaround`; from Python, the functions of api.py are here: see docs/python.md. They are imported
when they are first used, so that `import turnaround` is quick and needs no torch.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnaround.api import Recorder, Report, TrainedRun, load, predict, report, train

__all__ = ["Recorder", "Report", "TrainedRun", "load", "predict", "report", "train"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from turnaround import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Room(ModuleType):
    """turnaround.report is a function and a folder. Once the folder is imported it bears the name: it can be called."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        from turnaround import api

        return api.report(*arguments, **named)


class _Package(ModuleType):
    """Whatever imports turnaround.report.text or the like sets `report` here."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "report" and isinstance(value, ModuleType):
            value.__class__ = _Room
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
