"""fastai: one more callback.

    Learner(..., cbs=[TurnaroundCallback("runs/mine")])

fastai's metrics are those of the validation images. `fine_tune` trains twice, so it gives two runs: mine and mine-2.
"""

from __future__ import annotations

import os
from typing import Any, Unpack

from fastai.callback.core import Callback

from turnaround.adapters import torch_facts
from turnaround.adapters.holding import Holder, ask, known, never_raises
from turnaround.recorder.facts import Facts


@never_raises
class TurnaroundCallback(Callback):  # type: ignore[misc]
    """Records every fit of its learner. Facts that are given go before what is read from the learner."""

    order = 60  # after fastai's own Recorder (50), which has the metrics of the epoch

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        workers: int | None = None,
        batch_per_worker: int | None = None,
        **facts: Unpack[Facts],
    ) -> None:
        super().__init__()
        self._holder = Holder(path, workers=workers, batch_per_worker=batch_per_worker, **facts)
        self._is_on = False

    def before_fit(self) -> None:
        self._is_on = False

    def before_train(self) -> None:
        # Not before_fit: to fastai, validating and predicting are fits too. Searching a learning rate is no training.
        if not self._is_on and not hasattr(self.learn, "lr_finder"):
            self._is_on = True
            self._holder.begin(lambda: facts_of(self.learn))
        if self._is_on:
            self._holder.recorder.epoch_begins()

    def before_batch(self) -> None:
        if self._is_on and self.training:
            self._holder.recorder.mark("wait")

    def before_step(self) -> None:
        if self._is_on:
            self._holder.recorder.mark("compute")

    def after_batch(self) -> None:
        if self._is_on and self.training:
            self._holder.recorder.mark("update")
            self._holder.recorder.step()

    def after_epoch(self) -> None:
        if self._is_on:
            self._holder.recorder.epoch(**{**measures_of(self.learn), "epoch": self.epoch + 1})

    def after_fit(self) -> None:
        if self._is_on:
            self._is_on = False
            self._holder.recorder.close()


def measures_of(learn: Any) -> dict[str, Any]:
    """Return the last line of fastai's own table, by our names."""
    names = [name for name in learn.recorder.metric_names if name not in ("epoch", "time")]
    said: dict[str, Any] = {"learning_rate": ask(lambda: float(learn.opt.hypers[-1]["lr"]))}
    for name, value in zip(names, learn.recorder.values[-1], strict=False):
        if name == "error_rate":
            said["val_accuracy"] = 1.0 - float(value)
        else:
            said[name if name in ("train_loss", "valid_loss") else f"valid_{name}"] = value
    return said


def facts_of(learn: Any) -> dict[str, Any]:
    """Return all facts that the learner knows."""
    more = {
        "epochs": lambda: int(learn.n_epoch),
        "batch_per_worker": lambda: int(learn.dls.train.bs),
        "num_train": lambda: len(learn.dls.train_ds),
        "num_validation": lambda: len(learn.dls.valid_ds),
        "classes": lambda: int(learn.dls.c),
        "optimizer": lambda: _opt_name(learn.opt_func),
        "learning_rate": lambda: float(learn.opt.hypers[-1]["lr"]),
        "loss": lambda: type(learn.loss_func).__name__ if not hasattr(learn.loss_func, "__name__") else None,
        "engine": lambda: "fastai",
    }
    return {**torch_facts.of_model(learn.model), **known(more)}


def _opt_name(function: Any) -> str:
    function = getattr(function, "func", function)  # of a partial
    return str(function.__name__).lower()
