"""Fixtures for all tests: small real folders of images, and a cache of their own.

The sample photos and weights are looked for in ../shared beside the checkout, or where TURNAROUND_SAMPLES says.
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

# Two test processes and their trainings share the cores: threads that wait must not spin. Before torch reads it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# The matrices of analysis/ are small: a second thread of OpenBLAS burns as much as it saves. Before numpy reads it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from forking import ForkingLauncher, ForkingParent
from turnaround import children, fruitbowl
from turnaround.children import num_helpers
from turnaround.workers.environment import VARIABLES

# What tests import lives as long as they do: a collection of garbage need not look at it, least of all while it comes.
gc.disable()

SAMPLES = Path(os.environ.get("TURNAROUND_SAMPLES", Path(__file__).resolve().parents[2] / "shared"))

LONGEST = (
    *("workers/test_equivalence.py", "cli/test_cli.py", "faults/test_two_processes.py", "launch/test_early_start.py"),
    *("launch/test_handshake.py", "training/test_plan_of_runs.py", "cli/test_watch.py", "training/test_averaging.py"),
    *("data/test_decoders.py", "model/test_convolutions.py", "shell_queue/test_shell_queue.py", "use/test_export.py"),
    *("cli/test_study.py", "workers/test_conformance.py", "faults/test_going_on.py", "study/test_command.py"),
    *("use/test_service.py", "cli/test_study_command.py", "cli/test_cli_bad_input.py", "reporting/page/test_build.py"),
    *("cli/test_report.py", "faults/test_storage.py", "reporting/page/test_figures.py", "test_structure.py"),
    *("data/test_pixels.py", "record/test_reader.py", "recorder/test_recorder.py", "training/test_run.py"),
    *("analysis/test_stable.py", "analysis/test_overfit.py", "data/test_inputs.py", "check/test_before_training.py"),
    *("faults/test_one_process.py", "cli/test_serve.py", "bench/test_soak.py", "bench/test_side_by_side.py"),
    *("cli/test_bench.py", "bench/test_forecast_bench.py", "training/test_noise.py", "adapters/test_torch_ddp.py"),
    *("test_api.py", "launch/test_resume_checks.py"),
)
"""The files that take longest: `make test` begins with them, so that none is left when there is nothing else to do."""

HAS_HOROVOD = find_spec("horovod") is not None
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
BROWSER_ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    "--disable-sync",
)
HAS_BROWSER = CHROMIUM is not None and find_spec("playwright") is not None


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, which not every environment of .ci has
def pytest_xdist_auto_num_workers() -> int:
    """Two test processes for each core: a third of the time of a test it waits, for a training to stop or fall silent.

    Twelve are enough: the longest file takes a twelfth of all, and each has torch loaded.
    """
    return min(12, 2 * num_helpers())


def pytest_configure(config: pytest.Config) -> None:
    """The one that starts the test processes of pytest-xdist has the forking parent of all of them."""
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory(prefix="turnaround-tests-")
        parent = ForkingParent(Path(folder.name))
        parent.share()
        config.add_cleanup(folder.cleanup)
        config.add_cleanup(parent.close)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begins with what takes longest, and skips with a reason what cannot run here."""
    places = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
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


def pytest_collection_finish() -> None:
    """From here on garbage is collected, but for what is there already; and torch, if it is there, has one thread."""
    gc.freeze()
    gc.enable()
    # Tests run side by side, and their networks are small: two threads spend 7 % more than one (2026-11-16, two cores).
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="session")
def session_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("session")


@pytest.fixture(scope="session", autouse=True)  # also while fixtures are made that several tests share
def own_cache(session_folder: Path) -> Iterator[None]:
    """No test touches the user's cache, settings and state; within one session the decoded pixels are shared."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURNAROUND_CACHE", str(session_folder / "cache"))
        patch.setenv("TURNAROUND_CONFIG", str(session_folder / "config"))
        patch.setenv("XDG_STATE_HOME", str(session_folder / "state"))
        for name in (name for names in VARIABLES.values() for name in names):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)  # also while fixtures are made that several tests share
def images_in_this_process() -> Iterator[None]:
    """Images are read, compared and decoded by the process of the test: it takes two others 0.6 s to start, and the
    240 images of most tests 0.1 s to decode. Commands of forking parents do so too, those of the real Python do not.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(children, "num_helpers", lambda: 1)
        yield


@pytest.fixture
def all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process for each core, as everywhere but in tests: for data/ and check/, whose processes these are."""
    monkeypatch.setattr(children, "num_helpers", num_helpers)


@pytest.fixture(scope="session")
def fruit_folder(session_folder: Path) -> Path:
    """A real folder of 240 small images in six classes, without a split: 192 to train on, 48 held out."""
    return fruitbowl.generate(session_folder / "fruit", images=240, size_px=32, seed=3)


@pytest.fixture(scope="session")
def few_fruit_folder(session_folder: Path) -> Path:
    """Half of it, three steps of 32 images: for trainings that have to take several steps, and to learn little."""
    return fruitbowl.generate(session_folder / "few" / "fruit", images=120, size_px=32, seed=3)


@pytest.fixture(scope="session")
def samples() -> Path:
    return SAMPLES


@pytest.fixture(scope="session")
def forking_parent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkingParent]:
    """A Python that has loaded torch: for commands and trainings of tests that are not about how they start."""
    parent = ForkingParent(tmp_path_factory.mktemp("forking"))
    yield parent
    parent.close()


@pytest.fixture(scope="session")
def forking(forking_parent: ForkingParent) -> ForkingLauncher:
    """Starts the processes of a training at once, for all tests that are not about how they start and end."""
    return ForkingLauncher(forking_parent)


@pytest.fixture(scope="session")
def forking_agent(forking_parent: ForkingParent) -> ForkingLauncher:
    """The same through torch.distributed.run: for tests of how it ends several processes, not of how they load."""
    return ForkingLauncher(forking_parent, has_agent=True)


@pytest.fixture(scope="session")
def trained_run(session_folder: Path, fruit_folder: Path, forking: ForkingLauncher) -> Path:
    """The directory of one small real training, for everything that uses what was trained: read, never changed."""
    from running import train

    out = session_folder / "trained" / "fruit"
    settings = ("data.size_px=32", "training.epochs=3", "training.checkpoint_every_s=0")
    train(fruit_folder, out, *settings, launcher=forking)
    return out


@pytest.fixture(scope="module")  # not for longer: while it lives, no other event loop can run in this thread
def browser() -> Iterator[Any]:
    """A real Chromium, which asks nobody for anything by itself."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(BROWSER_ARGUMENTS), timeout=180_000)
        yield browser
        browser.close()
