"""The exception tree: its exit codes, and the sentence for an unknown name."""

from __future__ import annotations

import inspect

import pytest

from turnaround import errors

EXIT_CODES = {
    "TurnaroundError": 1,
    "InputError": 2,
    "RecipeError": 2,
    "DataError": 2,
    "ModelError": 2,
    "RunDirectoryError": 2,
    "StorageError": 2,
    "DamagedCacheError": 2,
    "PassingStorageError": 2,
    "DiskFullError": 2,
    "MissingPartError": 2,
    "TrainingError": 1,
    "DivergedError": 1,
    "ProcessFailedError": 1,
    "InterruptedRunError": 75,
}


def test_every_error_has_its_exit_code_and_stands_in_the_drawing() -> None:
    found = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind)}
    assert {name: kind.exit_code for name, kind in found.items()} == EXIT_CODES
    assert all(issubclass(kind, errors.TurnaroundError) for kind in found.values())
    assert all(name in (errors.__doc__ or "") for name in found)
    assert all(kind.__doc__ for kind in found.values())


@pytest.mark.parametrize(
    ("received", "hint"),
    [("adm", " Did you mean 'adam'?"), ("zzz", ""), (3, ""), (None, "")],
)
def test_an_unknown_name_is_answered_with_the_valid_ones(received: object, hint: str) -> None:
    message = errors.one_of("optimiser", received, ("sgd", "adam"))
    assert message == f"Unknown optimiser {received!r}.{hint} Valid: sgd, adam."
