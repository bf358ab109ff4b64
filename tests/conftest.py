"""Fixtures for all tests: small real folders of images, and a cache of their own.

The sample photos and weights are looked for in ../shared beside the checkout, or where TURNAROUND_SAMPLES says.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

# Two test processes and their trainings share the cores: threads that wait must not spin. Before torch reads it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from turnaround.data import fruitbowl
from turnaround.workers.environment import VARIABLES

SAMPLES = Path(os.environ.get("TURNAROUND_SAMPLES", Path(__file__).resolve().parents[2] / "shared"))

HAS_HOROVOD = find_spec("horovod") is not None
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
BROWSER_ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    "--disable-sync",
)
HAS_BROWSER = CHROMIUM is not None and find_spec("playwright") is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips with a reason what cannot run here."""
    for item in items:
        if item.get_closest_marker("photos") and not (SAMPLES / "data" / "fruit").is_dir():
            item.add_marker(pytest.mark.skip(reason=f"no sample photos and weights in {SAMPLES}"))
        if item.get_closest_marker("horovod") and not (HAS_HOROVOD or "TURNAROUND_REQUIRE_HOROVOD" in os.environ):
            item.add_marker(pytest.mark.skip(reason="Horovod is not installed here; .ci/horovod runs this"))
        if item.get_closest_marker("browser") and not (HAS_BROWSER or "TURNAROUND_REQUIRE_BROWSER" in os.environ):
            item.add_marker(pytest.mark.skip(reason="no Chromium or Playwright here; .ci/browser runs this"))
        if item.get_closest_marker("frameworks") and "TURNAROUND_REQUIRE_FRAMEWORKS" not in os.environ:
            item.add_marker(pytest.mark.skip(reason="needs frameworks of others; .ci/frameworks runs this"))
        if item.get_closest_marker("slurm") and "TURNAROUND_REQUIRE_SLURM" not in os.environ:
            item.add_marker(pytest.mark.skip(reason="starts a Slurm cluster as root for minutes; .ci/slurm runs this"))
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


@pytest.fixture(scope="session")
def trained_run(session_folder: Path, fruit_folder: Path) -> Path:
    """The directory of one small real training, for everything that uses what was trained: read, never changed."""
    from running import train

    out = session_folder / "trained" / "fruit"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURNAROUND_CACHE", str(session_folder / "cache"))
        patch.setenv("OMP_NUM_THREADS", "1")
        train(fruit_folder, out, "data.size_px=32", "training.epochs=3", "training.checkpoint_every_s=0")
    return out


@pytest.fixture(scope="module")  # not for longer: while it lives, no other event loop can run in this thread
def browser() -> Iterator[Any]:
    """A real Chromium, which asks nobody for anything by itself."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(BROWSER_ARGUMENTS))
        yield browser
        browser.close()
