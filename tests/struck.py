"""How tests strike a training with a fault on purpose, and what must be true afterwards (tests/faults)."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch

from running import largest_difference, request, train, weights
from turnaround.errors import TurnaroundError
from turnaround.launch import lifecycle
from turnaround.launch.contract import Launcher
from turnaround.record.reader import Run
from turnaround.training import checkpoint

SETTINGS = (
    "data.size_px=16",
    "workers.count=2",
    "training.batch_per_worker=8",
    "training.epochs=2",
    "training.learning_rate=0.001",
    "training.checkpoint_every_s=1000",
    "training.checkpoint_every_steps=5",
    "augment.rotation_degrees=10",
    "augment.flip=true",
)
NOT_COMPARED = ("epoch_time_s", "images_per_s", "evaluation_time_s", "segment")


def struck(
    fault: str,
    folder: Path,
    out: Path,
    kind: type[TurnaroundError],
    *,
    processes: int = 1,
    launcher: Launcher | None = None,
    settings: tuple[str, ...] = SETTINGS,
    share: str | None = None,
) -> TurnaroundError:
    """The error of a training that a fault strikes; all its processes are gone within half a minute of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURNAROUND_FAULT", fault)
        begun_s = time.monotonic()
        with pytest.raises(kind) as caught:
            train(folder, out, *settings, processes=processes, launcher=launcher, share=share)
    assert time.monotonic() - begun_s < 300  # a start takes some seconds, the end of all processes 30 at most
    waits_for(lambda: processes_of(out) == [], seconds=30)  # those that die with their parent do so a moment later
    return caught.value


def processes_of(out: Path) -> list[psutil.Process]:
    """Whatever still works for this run."""
    found = [p for p in psutil.process_iter(["pid", "cmdline"]) if str(out) in (p.info["cmdline"] or [])]
    return [p for p in found if is_alive(p)]


def is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def lines(run: Run) -> list[dict[str, object]]:
    """The epochs without what differs from start to start."""
    return [{k: v for k, v in dataclasses.asdict(e).items() if k not in NOT_COMPARED} for e in run.epochs]


def identical(one: Run, other: Run) -> bool:
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def goes_on_to_the_same_end(out: Path, undisturbed: Run, launcher: Launcher, *, processes: int = 1) -> Run:
    """Resumed, it ends with the same weights and the same record, to the bit."""
    resumed = lifecycle.resume(request(out, processes=processes, launcher=launcher))
    assert resumed.status.state == "finished"
    assert identical(resumed, undisturbed)
    assert lines(resumed) == lines(undisturbed)
    assert resumed.evaluation == undisturbed.evaluation
    return resumed


def newest(out: Path) -> str:
    path, _ = checkpoint.newest_valid(out / "checkpoint")
    assert path is not None
    return path.name


def assert_same_curve(run: Run, undisturbed: Run) -> None:
    """To float tolerance: sums over processes round otherwise."""
    assert run.status.state == "finished"
    assert largest_difference(weights(run), weights(undisturbed)) < 1e-5
    for one, other in zip(run.epochs, undisturbed.epochs, strict=True):
        assert (one.images, one.val_accuracy) == (other.images, other.val_accuracy)
        assert one.train_loss == pytest.approx(other.train_loss, rel=1e-5)


def waits_for(condition: Callable[[], bool], *, seconds: float = 300) -> None:
    latest_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < latest_s, "waited too long"
        time.sleep(0.05)  # a look at all processes takes a fifth of that


def decoders_below(process: psutil.Process) -> list[psutil.Process]:
    found = []
    for child in process.children():
        with contextlib.suppress(psutil.NoSuchProcess):  # ended, or ended and not yet waited for
            if "spawn_main" in " ".join(child.cmdline()):
                found.append(child)
    return found
