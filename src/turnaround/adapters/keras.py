"""Keras: one more callback.

    model.fit(..., callbacks=[..., TurnaroundCallback("runs/mine")])

Works with Keras 3 on every backend and with tf.keras 2; under Horovod it takes rank and size from `hvd`, so the same
line goes into every process. It is no part of the training: the weights are the same with and without it.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Unpack

from turnaround.adapters import keras_data
from turnaround.adapters.holding import Holder, ask, known, never_raises
from turnaround.adapters.keras_wait import Arrivals
from turnaround.recorder.facts import Facts
from turnaround.recorder.timing import NoPart, TimedPart


def _callback_class() -> Any:
    """That of the Keras which the program uses: Keras 2 has a package of its own beside Keras 3."""
    uses_legacy = os.environ.get("TF_USE_LEGACY_KERAS") == "1" or "keras" not in sys.modules
    if uses_legacy and "tf_keras" in sys.modules:
        import tf_keras

        return tf_keras.callbacks.Callback
    import keras

    return keras.callbacks.Callback


@never_raises
class TurnaroundCallback(_callback_class()):  # type: ignore[misc]
    """Records every `fit` that it is given to. Facts that are given go before what is read from the model."""

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
        self._batch, self._arrivals, self._fetches_within = 0, Arrivals(), True
        self._evaluation: TimedPart | NoPart = NoPart()

    def on_train_begin(self, logs: Any = None) -> None:
        self._holder.begin(self._facts)
        self._arrivals = Arrivals.of(self.model)
        self._fetches_within = backend() in ("tensorflow", "jax")

    def on_train_end(self, logs: Any = None) -> None:
        self._holder.recorder.close()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._batch = 0
        self._arrivals.epoch_begins(self.model)
        self._holder.recorder.epoch_begins()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if not self._fetches_within:
            self._holder.recorder.mark("wait")
        self._arrivals.step_begins()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # With steps_per_execution Keras calls once for several steps, with the number of the last.
        done, self._batch = max(1, batch + 1 - self._batch), batch + 1
        waited_s = self._arrivals.step_ends(is_sampled=self._holder.recorder.is_sampling)
        # Where the batch is fetched within the step and nobody can tell when it came, the step is not taken apart.
        if waited_s is not None:
            self._holder.recorder.add("wait", waited_s)
        self._holder.recorder.step(done)

    def on_test_begin(self, logs: Any = None) -> None:
        self._evaluation = self._holder.recorder.span("evaluation")
        self._evaluation.__enter__()

    def on_test_end(self, logs: Any = None) -> None:
        self._evaluation.__exit__(None, None, None)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        said = {"learning_rate": ask(lambda: learning_rate(self.model.optimizer)), **dict(logs or {})}
        self._holder.recorder.epoch(**{**said, "epoch": epoch + 1})

    def _facts(self) -> dict[str, Any]:
        model, parameters = self.model, self.params or {}
        fit = ask(lambda: keras_data.arguments_of_fit(model)) or {}
        data, validation = fit.get("x"), fit.get("validation_data")
        batch = ask(lambda: keras_data.batch_of(data, fit.get("batch_size")))
        place = horovod_place() or {}
        replicas = ask(lambda: int(model.distribute_strategy.num_replicas_in_sync)) or 1  # of tf.distribute
        per_worker = None if batch is None else max(1, batch // replicas)  # which shares a batch out
        size = place.get("size", 1) * replicas
        count, steps = ask(lambda: keras_data.num_images(data)), parameters.get("steps")
        found = {
            "epochs": lambda: int(parameters["epochs"]),
            "model": lambda: str(model.name),
            "optimizer": lambda: type(_inner(model.optimizer)).__name__.lower(),
            "learning_rate": lambda: learning_rate(model.optimizer),
            "loss": lambda: model.loss if isinstance(model.loss, str) else type(model.loss).__name__,
            "num_train": lambda: keras_data.whole_set(count, steps=steps, batch=per_worker, size=size),
            "num_validation": lambda: keras_data.num_images(validation),
            "classes": lambda: keras_data.classes_of(data, model),
            "size_px": lambda: keras_data.size_of(data, model),
            "engine": lambda: engine(place, replicas),
            "fine_tune": lambda: None if all(layer.trainable for layer in model.layers) else False,
            "parameters": lambda: int(model.count_params()),
            "trainable_parameters": lambda: sum(_size(weight) for weight in model.trainable_weights),
            "batch_per_worker": lambda: per_worker,
            "workers": lambda: size if size > 1 else None,
        }
        return {**known(found), **place}


def horovod_place() -> dict[str, int] | None:
    """rank and size, where the program has initialised Horovod."""
    for name in ("horovod.tensorflow.keras", "horovod.keras", "horovod.tensorflow", "horovod.torch"):
        hvd = sys.modules.get(name)
        if hvd is not None and ask(lambda hvd=hvd: hvd.is_initialized()):  # type: ignore[misc]
            return {"rank": int(hvd.rank()), "size": int(hvd.size())}
    return None


def engine(place: dict[str, int], replicas: int) -> str:
    """Return the backend, and how its processes or replicas agree."""
    return f"keras {backend()}" + (" horovod" if place else " strategy" if replicas > 1 else "")


def backend() -> str:
    """tensorflow, torch or jax; Keras 2 has only the first."""
    return ask(lambda: str(sys.modules["keras"].backend.backend())) or "tensorflow"


def learning_rate(optimizer: Any) -> float:
    """Return the learning rate at this moment; a schedule is asked for its value now."""
    rate = _inner(optimizer).learning_rate
    if callable(rate) and not hasattr(rate, "shape"):
        rate = rate(optimizer.iterations)
    return float(f"{float(rate.numpy() if hasattr(rate, 'numpy') else rate):.7g}")  # Keras keeps it in 32 bits


def _inner(optimizer: Any) -> Any:
    """Return the optimizer inside a wrapper for mixed precision, or the optimizer itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def _size(weight: Any) -> int:
    product = 1
    for side in weight.shape:
        product *= int(side)
    return product
