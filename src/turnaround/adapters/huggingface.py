"""Hugging Face Transformers: one more callback.

    Trainer(..., callbacks=[TurnaroundCallback("runs/mine")])

An epoch is evaluated after it has ended, so it is told when the next one begins. The loss is the mean of what the
trainer logs in the epoch: with `logging_strategy="epoch"` it is that of the whole epoch.
"""

from __future__ import annotations

import os
from typing import Any, Unpack

from transformers import TrainerCallback

from turnaround.adapters import torch_facts
from turnaround.adapters.holding import Holder, ask, known, never_raises, on_the_stack
from turnaround.recorder.facts import Facts


@never_raises
class TurnaroundCallback(TrainerCallback):  # type: ignore[misc]
    """Records every `train()` of its trainer. Facts that are given go before what is read from the trainer."""

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        workers: int | None = None,
        batch_per_worker: int | None = None,
        **facts: Unpack[Facts],
    ) -> None:
        self._holder = Holder(path, workers=workers, batch_per_worker=batch_per_worker, **facts)
        self._told: dict[str, Any] = {}
        self._losses: list[float] = []
        self._has_ended = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self._forget()
        self._holder.begin(lambda: facts_of(args, state, parts))

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self._tell()
        self._holder.recorder.epoch_begins()

    def on_step_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self._holder.recorder.mark("wait")

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self._holder.recorder.mark("compute")

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self._holder.recorder.mark("update")

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self._holder.recorder.step()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self._told["epoch"] = max(1, round(state.epoch))
        self._has_ended = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **parts: Any) -> None:
        logs = logs or {}
        if "loss" in logs:  # the summary at the end has none
            self._losses.append(float(logs["loss"]))
            self._told |= {"learning_rate": logs.get("learning_rate"), "grad_norm": logs.get("grad_norm")}

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **parts: Any) -> None:
        metrics = dict(metrics or {})
        self._holder.recorder.add("evaluation", float(metrics.get("eval_runtime", 0.0)))
        self._told |= {name: value for name, value in metrics.items() if name != "epoch"}

    def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self._tell()
        self._holder.recorder.close()

    def _tell(self) -> None:
        """Record the epoch that has ended, with the evaluation that came after it."""
        if self._has_ended:
            loss = {"train_loss": sum(self._losses) / len(self._losses)} if self._losses else {}
            self._holder.recorder.epoch(**{**self._told, **loss})
            self._forget()

    def _forget(self) -> None:
        self._told, self._losses, self._has_ended = {}, [], False


def facts_of(args: Any, state: Any, parts: dict[str, Any]) -> dict[str, Any]:
    """Return all facts that the trainer knows."""
    found = {
        **torch_facts.of_model(parts.get("model")),
        **torch_facts.of_optimizer(parts.get("optimizer")),
        **torch_facts.of_loaders(parts.get("train_dataloader"), parts.get("eval_dataloader")),
    }
    trainer: Any = ask(_trainer)
    gpus = max(1, ask(lambda: int(args.n_gpu)) or 1)
    more = {
        "rank": lambda: int(args.process_index),
        "size": lambda: int(args.world_size),
        "workers": lambda: int(args.world_size) * gpus,
        "batch_per_worker": lambda: args.per_device_train_batch_size * args.gradient_accumulation_steps,
        "epochs": lambda: int(state.num_train_epochs),
        "schedule": lambda: str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)),
        "learning_rate": lambda: float(args.learning_rate),
        "num_validation": lambda: len(trainer.eval_dataset),
        "classes": lambda: _classes(parts["model"].config.id2label),
        "precision": lambda: "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32",
        "seed": lambda: int(args.seed),
        "engine": lambda: f"transformers {'ddp' if args.world_size > 1 else 'dp' if gpus > 1 else 'single'}",
    }
    return {**found, **known(more)}


def _trainer() -> Any:
    """Return the Trainer from the stack: it does not tell its callbacks of the images it evaluates."""
    return on_the_stack(lambda name, variables: hasattr(variables.get("self"), "eval_dataset"))["self"]


def _classes(names: dict[int, str]) -> int | list[str]:
    """Return the names of the classes, or their number where nobody has named them."""
    is_unnamed = all(name == f"LABEL_{number}" for number, name in names.items())
    return len(names) if is_unnamed else list(names.values())
