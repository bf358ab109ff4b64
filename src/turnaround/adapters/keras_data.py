"""Finds the images of a fit, which Keras does not tell its callbacks.

A callback sees the model and the number of steps, neither the batch size nor the data. They are the arguments of `fit`,
which is on the stack while `on_train_begin` runs: they are looked at there, and nothing is changed.
"""

from __future__ import annotations

from typing import Any

from turnaround.adapters.holding import ask, on_the_stack

DEFAULT_BATCH = 32  # of `fit` itself, for arrays


def arguments_of_fit(model: Any) -> dict[str, Any]:
    """x, batch_size, validation_data and so on, of the fit of this model that is under way; nothing without one."""
    return on_the_stack(lambda name, variables: name == "fit" and variables.get("self") is model)


def batch_of(data: Any, given: Any) -> int | None:
    """Images of a step of one process."""
    if isinstance(given, int):
        return given
    for name in ("batch_size", "_batch_size"):
        if isinstance(size := getattr(data, name, None), int) and size > 0:
            return size
    if (spec := getattr(data, "element_spec", None)) is not None:  # tf.data
        static = ask(lambda: next(iter(_flat(spec))).shape[0])
        return int(static) if static else None
    return DEFAULT_BATCH if _num_rows(data) is not None else None


def num_images(data: Any) -> int | None:
    """Return the images of an array, a Keras generator or a dataset of known length; None where nobody can tell."""
    if (rows := _num_rows(data)) is not None:
        return rows
    for name in ("samples", "n", "num_samples"):  # an iterator of ImageDataGenerator
        if isinstance(count := getattr(data, name, None), int) and count > 0:
            return count
    loader = getattr(data, "dataset", None)  # torch's DataLoader
    return ask(lambda: len(loader)) if loader is not None else None


def whole_set(count: int | None, *, steps: int | None, batch: int | None, size: int) -> int | None:
    """Training images over all processes: each may hold all of them, or a share. None when the steps fit neither."""
    if count is None or size == 1 or not steps or not batch:
        return count
    return next((n for n in (count, count * size) if abs(n / (batch * size) - steps) <= 1), None)


def size_of(data: Any, model: Any) -> int | None:
    """Return the height of an image in pixels, where it is fixed."""
    shape = tuple(ask(lambda: model.input_shape) or ask(lambda: _first(data).shape) or ())
    sides = [side for side in shape[1:] if isinstance(side, int)]
    return sides[0] if len(sides) == 3 else None


def classes_of(data: Any, model: Any) -> Any:
    """Their names where the data has them, else the width of the last layer."""
    for name in ("class_names", "class_indices"):
        if names := getattr(data, name, None):
            return list(names)
    shape = ask(lambda: tuple(model.output_shape)) or ()
    return shape[1] if len(shape) == 2 and isinstance(shape[1], int) and shape[1] > 1 else None


def _first(data: Any) -> Any:
    return next(iter(data.values())) if isinstance(data, dict) else data[0] if isinstance(data, list | tuple) else data


def _num_rows(data: Any) -> int | None:
    """Return the rows of an array or tensor, or of several beside each other."""
    return ask(lambda: int(_first(data).shape[0]))


def _flat(spec: Any) -> Any:
    if isinstance(spec, list | tuple):
        for one in spec:
            yield from _flat(one)
    elif isinstance(spec, dict):
        for one in spec.values():
            yield from _flat(one)
    else:
        yield spec
