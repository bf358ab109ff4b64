"""What a fault must not change: the same training, undisturbed."""

from __future__ import annotations

from pathlib import Path

import pytest

from forking import ForkingLauncher
from running import train
from struck import SETTINGS
from turnaround.record.reader import Run


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the undisturbed training; a sum by several threads would round otherwise."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def whole(fruit_folder: Path, tmp_path_factory: pytest.TempPathFactory, forking: ForkingLauncher) -> Run:
    """Two workers in one process, undisturbed."""
    return train(fruit_folder, tmp_path_factory.mktemp("whole") / "run", *SETTINGS, launcher=forking)


@pytest.fixture(scope="session")
def whole_on_two(fruit_folder: Path, tmp_path_factory: pytest.TempPathFactory, forking: ForkingLauncher) -> Run:
    """The same on two processes."""
    out = tmp_path_factory.mktemp("two") / "run"
    return train(fruit_folder, out, *SETTINGS, processes=2, launcher=forking)
