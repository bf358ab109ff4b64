"""What every engine must do, written once: one process alone, torch over Gloo, Horovod over Gloo.

`.ci/horovod` runs the Horovod part in an environment where Horovod is built; nothing may skip there.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from forking import ForkingLauncher
from running import TESTS, contract_told, largest_difference, request, weights
from struck import waits_for
from turnaround import fruitbowl, recipes
from turnaround.errors import ProcessFailedError
from turnaround.launch import lifecycle, local
from turnaround.launch.contract import Launcher
from turnaround.record.reader import Run
from turnaround.workers import engines

ENGINES = ("single", "torch", pytest.param("horovod", marks=pytest.mark.horovod))
SEVERAL = ENGINES[1:]
LONG = 100_000
PROCESSES = {"single": 1, "torch": 2, "horovod": 2}

SHARED = (
    "data.size_px=32",
    "training.batch_per_worker=4",
    "training.optimizer=adamw",
    "training.learning_rate=0.002",
    "training.scaling=none",
    "training.warmup_epochs=0",
    "training.precision=fp64",
    "training.checkpoint_every_s=0",
    "augment.rotation_degrees=15",
    "augment.flip=true",
)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 images to train on, which leave a smaller last step, and 15 held out, which two processes share unevenly."""
    return fruitbowl.generate(tmp_path_factory.mktemp("images") / "few", images=75, size_px=32, seed=7)


# --- the contract itself


# One process, or two through the engine's own launcher.
START = {
    "single": ["-m"],
    "torch": ["-m", *engines.ENGINES["torch"].spread(2)],
    "horovod": ["-m", *engines.ENGINES["horovod"].spread(2)],
}


@pytest.fixture(scope="module")
def contract(tmp_path_factory: pytest.TempPathFactory, forking: ForkingLauncher) -> Callable[[str], list[dict]]:
    """What the processes of an engine told, by rank; each engine is started once, by its own launcher."""

    @functools.cache
    def of(engine: str) -> list[dict]:
        named = "torch" if engine == "single" else engine
        python = sys.executable if engine == "horovod" else forking.parent.python_with_agent
        folder = tmp_path_factory.mktemp(engine)
        return contract_told(folder, named, start=START[engine], processes=PROCESSES[engine], python=python)

    return of


@pytest.mark.parametrize("engine", ENGINES)
def test_each_process_knows_its_place(engine: str, contract: Callable[[str], list[dict]]) -> None:
    expected = [[0, 1, 2, [0, 1]]] if engine == "single" else [[0, 2, 2, [0]], [1, 2, 2, [1]]]
    assert [told["place"] for told in contract(engine)] == expected


@pytest.mark.parametrize("engine", ENGINES)
def test_sums_of_every_type_and_layout(engine: str, contract: Callable[[str], list[dict]]) -> None:
    total = 1 if engine == "single" else 3
    vector = [total, 2 * total, 3 * total]
    for told in contract(engine):
        assert all(found == [vector, total, vector, vector] for found in told["sums"].values())


@pytest.mark.parametrize("engine", ENGINES)
def test_broadcasts_of_every_type_and_layout(engine: str, contract: Callable[[str], list[dict]]) -> None:
    for told in contract(engine):
        assert told["broadcasts"].pop("torch.bool") == [[False, True, True], False, [False, True, True]]
        assert all(found == [[0, 1, 2], 0, [0, 1, 2]] for found in told["broadcasts"].values())


@pytest.mark.parametrize("engine", ENGINES)
def test_texts_are_gathered_by_rank(engine: str, contract: Callable[[str], list[dict]]) -> None:
    expected, lengths = ["process 0: ", "process 1: ä"], [0, LONG]
    for told in contract(engine):
        assert told["gathered"] == expected[: PROCESSES[engine]]
        assert told["gathered_lengths"] == lengths[: PROCESSES[engine]]


@pytest.mark.parametrize("engine", ENGINES)
def test_gradients_are_averaged_once_a_step(engine: str, contract: Callable[[str], list[dict]]) -> None:
    for told in contract(engine):
        averaging = told["averaging"]
        assert averaging["local"] == 0  # inside `deferred` nothing is averaged yet
        assert averaging["mean"] < 1e-15
        assert averaging["same_layout"]
        assert not averaging["frozen_has_gradient"]


@pytest.mark.parametrize("engine", SEVERAL)
def test_the_last_gradient_is_told_once_a_step(engine: str, contract: Callable[[str], list[dict]]) -> None:
    for told in contract(engine):
        assert told["averaging"]["calls"] == [1, 2, 3]
        assert told["averaging"]["gradients_at_call"] == [6, 6, 6]  # weight and bias of three layers that learn


@pytest.mark.parametrize("engine", SEVERAL)
def test_processes_that_disagree_are_named(engine: str, contract: Callable[[str], list[dict]]) -> None:
    for rank, told in enumerate(contract(engine)):
        said = told["disagreements"]
        assert said["nothing"] is None
        assert f"Processes {1 - rank} and {rank} disagree about the recipe" in said["recipe"]
        assert all(f'"seed": {seed}' in said["recipe"] for seed in (0, 1))  # both values are named
        assert f"Processes {1 - rank} and {rank} disagree about the images" in said["images"]
        assert f"fingerprint-{1 - rank} against fingerprint-{rank}" in said["images"]


# --- trainings


def troubled(patch: pytest.MonkeyPatch, **troubles: str) -> None:
    """From here on every worker process is conformance_worker, with these troubles."""
    patch.setattr(local, "WORKER_MODULE", "conformance_worker")
    for folder in (TESTS, TESTS / "workers"):
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    for name, value in troubles.items():
        patch.setenv(f"CONFORMANCE_{name.upper()}", value)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """In every process, however it is started: sums by several threads round otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


Quick = Callable[[str], Launcher | None]


@pytest.fixture(scope="module")
def quick(forking: ForkingLauncher) -> Quick:
    """By engine, what starts a training that is not about its start; None is the launcher of every day."""
    return lambda engine: None if engine == "horovod" else forking


def start(engine: str, images: Path, out: Path, launcher: Launcher | None) -> Run:
    named = "torch" if engine == "single" else engine
    settings = (*SHARED, "workers.count=2", f"workers.engine={named}", "training.epochs=3")
    asked = request(out, processes=PROCESSES[engine], launcher=launcher)
    return lifecycle.start(recipes.find(str(images), list(settings)), asked)


@pytest.fixture(scope="module")
def whole(images: Path, tmp_path_factory: pytest.TempPathFactory, quick: Quick) -> Callable[[str], Run]:
    """A training without interruption; where there are several processes, one begins with other weights."""

    @functools.cache
    def of(engine: str) -> Run:
        with pytest.MonkeyPatch.context() as patch:
            troubled(patch, other_start="1")
            return start(engine, images, tmp_path_factory.mktemp(engine) / "whole", quick(engine))

    return of


@pytest.mark.parametrize("engine", SEVERAL)
def test_weights_and_running_statistics_are_those_of_one_process(engine: str, whole: Callable[[str], Run]) -> None:
    """So order, augmentation, averaging, the broadcast at the start and the buffers are right."""
    one, several = whole("single"), whole(engine)
    names = [name for name in weights(one) if "running_" in name]
    assert names
    for epoch in (2, 3):  # the two newest checkpoints are kept
        assert largest_difference(weights(one, epoch), weights(several, epoch)) < 1e-12
    assert several.machine["engine"] == f"{engine} gloo"
    assert several.machine["processes"] == 2


@pytest.mark.parametrize("engine", SEVERAL)
def test_evaluation_counts_every_image_once(engine: str, whole: Callable[[str], Run]) -> None:
    one, several = whole("single"), whole(engine)
    assert one.evaluation is not None
    assert several.evaluation is not None
    assert several.evaluation.confusion == one.evaluation.confusion
    counted = sum(map(sum, one.evaluation.confusion))
    assert counted == one.recipe["images"]["num_validation"]
    assert counted % 2 == 1  # cannot be shared evenly by two processes
    for epoch, other in zip(one.epochs, several.epochs, strict=True):
        assert (other.images, other.steps) == (epoch.images, epoch.steps)
        assert (other.val_accuracy, other.train_accuracy) == (epoch.val_accuracy, epoch.train_accuracy)
        assert other.val_loss == pytest.approx(epoch.val_loss, rel=1e-12)
        assert other.train_loss == pytest.approx(epoch.train_loss, rel=1e-12)


def processes_of(run: Path) -> list[int]:
    """The processes that have this run's directory on their command line."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        if any(str(run) in word for word in words) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found


@pytest.mark.parametrize("engine", ENGINES)
def test_an_error_a_kill_and_two_resumes_change_nothing(
    engine: str,
    images: Path,
    tmp_path: Path,
    whole: Callable[[str], Run],
    quick: Quick,
    forking_agent: ForkingLauncher,
) -> None:
    out, last = tmp_path / "run", PROCESSES[engine] - 1
    with pytest.MonkeyPatch.context() as patch:  # the last process raises in epoch 2: the first cause is named
        troubled(patch, fail=f"{last}:2")
        with pytest.raises(
            ProcessFailedError, match=rf"Process {last} \(host .*\) failed: RuntimeError: told to fail in epoch 2"
        ):
            start(engine, images, out, None if engine == "horovod" else forking_agent)
    waits_for(lambda: processes_of(out) == [])
    assert Run.load(out).status.state == "failed"
    with pytest.MonkeyPatch.context() as patch:  # process 0 is killed between an epoch's line and its checkpoint
        troubled(patch, kill_after="2")
        with pytest.raises(ProcessFailedError):
            lifecycle.resume(request(out, processes=PROCESSES[engine], launcher=quick(engine)))
    waits_for(lambda: processes_of(out) == [])
    assert [e.epoch for e in Run.load(out).epochs] == [1, 2]
    run = lifecycle.resume(request(out, processes=PROCESSES[engine], launcher=quick(engine)))
    assert run.status.state == "finished"
    assert run.status.segments == 3
    assert [e.epoch for e in run.epochs] == [1, 2, 3]
    assert largest_difference(weights(run), weights(whole(engine))) == 0  # bit for bit
    assert run.epochs[-1].val_loss == whole(engine).epochs[-1].val_loss
