"""Measures how long a step of Keras on TensorFlow waits for its batch: there the batch is fetched inside the step.

`fit` hands an iterator of tf.data to a compiled function, so that no callback can see when the batch was there. The
pipeline is made to note it: one more stage at its end writes the time at which an element passed into a variable, and
hands the element on as it is. Order and values stay the same.
"""

from __future__ import annotations

import sys
import time
from types import FrameType
from typing import Any

from turnaround.adapters.holding import ask

RING = 64
"""Elements whose times are kept: more than any buffer behind the stage holds."""


class Arrivals:
    """Arrival times of the batches of a fit; empty where `fit` fetches them in another way."""

    def __init__(self) -> None:
        self._times: Any = None
        self._new_epoch_of: Any = None
        """The model, between the beginning of an epoch and that of its first step."""
        self._iterator: Any = None
        self._position = 0
        """Index of the next batch in its iterator."""
        self._began_s = 0.0

    @classmethod
    def of(cls, model: Any) -> Arrivals:
        """Observe the fit of this model that has just begun; to be called before its first batch."""
        arrivals = cls()
        ask(lambda: arrivals._observe(fit_of(model)))
        return arrivals

    def _observe(self, fit: FrameType | None) -> None:
        tensorflow = sys.modules.get("tensorflow")
        if fit is None or tensorflow is None:
            return
        # Keras 2, then Keras 3; each makes its iterators of this attribute, one or one an epoch.
        for name, attribute in (("data_handler", "_dataset"), ("epoch_iterator", "_distributed_dataset")):
            holder = fit.f_locals.get(name)
            dataset = getattr(holder, attribute, None)
            if isinstance(dataset, tensorflow.data.Dataset) and _steps_at_once(holder) == 1:
                observed, times = stamped(dataset, tensorflow)
                # Otherwise it stays as it is: a compiled step must not see another shape or type because of us.
                if observed.element_spec == dataset.element_spec:
                    setattr(holder, attribute, observed)
                    self._times = times
                return

    def epoch_begins(self, model: Any) -> None:
        """Note the begin of an epoch, before its first batch: some pipelines begin anew then."""
        self._new_epoch_of = model if self._times is not None else None

    def step_begins(self) -> None:
        if self._new_epoch_of is not None:
            model, self._new_epoch_of = self._new_epoch_of, None
            iterator = ask(lambda: fit_of(model).f_locals.get("iterator"))  # type: ignore[union-attr]
            if iterator is None or iterator is not self._iterator:
                self._iterator, self._position = iterator, 0
        self._began_s = time.time()

    def step_ends(self, *, is_sampled: bool) -> float | None:
        """Return the seconds that the step waited for its batch; None when not sampled or not known."""
        position, self._position = self._position, self._position + 1
        if self._times is None or not is_sampled:
            return None
        arrived_s = ask(lambda: float(self._times[position % RING].numpy()))
        # A batch that was there before the step began (prefetched) has cost it no waiting.
        return None if arrived_s is None else min(max(0.0, arrived_s - self._began_s), time.time() - self._began_s)


def fit_of(model: Any) -> FrameType | None:
    """Return the frame of the call of fit that is under way."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "fit" and frame.f_locals.get("self") is model:
            return frame
        frame = frame.f_back
    return None


def stamped(dataset: Any, tensorflow: Any) -> tuple[Any, Any]:
    """Return the dataset, and a variable with the time at which element n has left it, at n modulo RING."""
    times = tensorflow.Variable([0.0] * RING, dtype=tensorflow.float64, trainable=False)

    def note(number: Any, *element: Any) -> Any:
        noted = times.scatter_nd_update([[number % RING]], [tensorflow.timestamp()])
        with tensorflow.control_dependencies([noted]):
            return tensorflow.nest.map_structure(tensorflow.identity, element if len(element) > 1 else element[0])

    return dataset.enumerate().map(lambda number, element: note(number, *_parts(element))), times


def _parts(element: Any) -> tuple[Any, ...]:
    return element if isinstance(element, tuple) else (element,)


def _steps_at_once(holder: Any) -> int:
    """Return the steps of one call of the compiled function; with several, a single time says nothing."""
    for name in ("_steps_per_execution", "steps_per_execution"):
        if (count := getattr(holder, name, None)) is not None:
            return int(count)
    return 1
