"""turnaround: train image classifiers on 1..N workers, record every run, compare and predict.

The command line is `turnaround`; from Python, the functions of api.py are here: see docs/python.md. They are imported
when they are first used, so that `import turnaround` is quick and needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnaround.api import (
        EvaluationReport,
        Recorder,
        Report,
        TrainedRun,
        check_images,
        estimate,
        evaluate,
        fork_server,
        load,
        predict,
        report,
        resume,
        run_study,
        table,
        train,
    )

__all__ = [
    "EvaluationReport",
    "Recorder",
    "Report",
    "TrainedRun",
    "check_images",
    "estimate",
    "evaluate",
    "fork_server",
    "load",
    "predict",
    "report",
    "resume",
    "run_study",
    "table",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from turnaround import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
