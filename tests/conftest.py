"""Fixtures for all tests: small real folders of images, and a cache of their own.

The sample photos and weights are looked for in ../shared beside the checkout, or where TURNAROUND_SAMPLES says.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from turnaround.data import fruitbowl
from turnaround.workers.environment import VARIABLES

SAMPLES = Path(os.environ.get("TURNAROUND_SAMPLES", Path(__file__).resolve().parents[2] / "shared"))

HAS_HOROVOD = find_spec("horovod") is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips with a reason what cannot run here."""
    for item in items:
        if item.get_closest_marker("photos") and not (SAMPLES / "data" / "fruit").is_dir():
            item.add_marker(pytest.mark.skip(reason=f"no sample photos and weights in {SAMPLES}"))
        if item.get_closest_marker("horovod") and not (HAS_HOROVOD or "TURNAROUND_REQUIRE_HOROVOD" in os.environ):
            item.add_marker(pytest.mark.skip(reason="Horovod is not installed here; .ci/horovod runs this"))
        if item.get_closest_marker("gpu"):
            import torch

            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="no CUDA device here"))


@pytest.fixture(scope="session")
def session_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("session")


@pytest.fixture(autouse=True)
def own_cache(session_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test touches the user's cache; within one session the decoded pixels are shared."""
    monkeypatch.setenv("TURNAROUND_CACHE", str(session_folder / "cache"))
    for name in (name for names in VARIABLES.values() for name in names):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def fruit_folder(session_folder: Path) -> Path:
    """A real folder of 240 small images in six classes, without a split: 192 to train on, 48 held out."""
    return fruitbowl.generate(session_folder / "fruit", images=240, size_px=32, seed=3)


@pytest.fixture
def samples() -> Path:
    return SAMPLES
