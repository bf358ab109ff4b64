"""Lightning: one more callback.

    Trainer(..., callbacks=[TurnaroundCallback("runs/mine")])

For `lightning` and for `pytorch_lightning`: import this after the one that you use. Measures are what the module logs;
`val_acc`, `val/accuracy`, `train_loss_epoch` and the like are recognised.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Unpack

from turnaround.adapters import torch_facts
from turnaround.adapters.holding import Holder, ask, known, never_raises
from turnaround.recorder.facts import Facts
from turnaround.recorder.measures import our_name
from turnaround.recorder.timing import NoPart, TimedPart


def _callback_class() -> Any:
    """Return the Callback class of the package that is imported: the two know nothing of each other's callbacks."""
    if "lightning.pytorch" not in sys.modules and "pytorch_lightning" in sys.modules:
        import pytorch_lightning

        return pytorch_lightning.Callback
    try:
        import lightning.pytorch
    except ImportError:
        import pytorch_lightning

        return pytorch_lightning.Callback
    return lightning.pytorch.Callback


@never_raises
class TurnaroundCallback(_callback_class()):  # type: ignore[misc]
    """Records every fit of its trainer. Facts that are given go before what is read from the trainer."""

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        workers: int | None = None,
        batch_per_worker: int | None = None,
        **facts: Unpack[Facts],
    ) -> None:
        self._holder = Holder(path, workers=workers, batch_per_worker=batch_per_worker, **facts)
        self._updates, self._is_validated = 0, False
        self._evaluation: TimedPart | NoPart | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._updates = trainer.global_step
        self._holder.begin(lambda: facts_of(trainer, pl_module))

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._is_validated = False
        self._holder.recorder.epoch_begins()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._holder.recorder.mark("wait")

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        self._holder.recorder.mark("compute")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._holder.recorder.mark("update")
        if trainer.global_step != self._updates:  # else gradients are being accumulated
            self._updates = trainer.global_step
            self._holder.recorder.step()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self._evaluation = self._holder.recorder.span("evaluation")
            self._evaluation.__enter__()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if self._evaluation is not None:
            self._evaluation.__exit__(None, None, None)
            self._evaluation, self._is_validated = None, True

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        metrics = dict(trainer.callback_metrics)
        if not self._is_validated:  # those of an earlier epoch
            metrics = {name: value for name, value in metrics.items() if not (our_name(name) or "").startswith("val_")}
        said = {"learning_rate": ask(lambda: trainer.optimizers[0].param_groups[0]["lr"]), **metrics}
        self._holder.recorder.epoch(**{**said, "epoch": trainer.current_epoch + 1})

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._holder.recorder.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._holder.recorder.close(exception)


def facts_of(trainer: Any, module: Any) -> dict[str, Any]:
    """Return all facts that the trainer knows."""
    validation = ask(lambda: trainer.val_dataloaders)
    first = validation[0] if isinstance(validation, list) and validation else validation
    found = {
        **torch_facts.of_model(module),
        **(ask(lambda: torch_facts.of_optimizer(trainer.optimizers[0])) or {}),
        **torch_facts.of_loaders(ask(lambda: trainer.train_dataloader), first),
    }
    if "batch_per_worker" in found:
        found["batch_per_worker"] *= ask(lambda: int(trainer.accumulate_grad_batches)) or 1
    more = {
        "rank": lambda: int(trainer.global_rank),
        "size": lambda: int(trainer.world_size),
        "epochs": lambda: trainer.max_epochs if trainer.max_epochs > 0 else None,
        "precision": lambda: str(trainer.precision),
        "engine": lambda: f"lightning {type(trainer.strategy).__name__.removesuffix('Strategy').lower()}",
    }
    return {**found, **known(more)}
