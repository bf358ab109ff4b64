"""What process 0 writes while it trains, on a disk that is full."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from training.test_plan import plan
from turnaround.errors import DiskFullError
from turnaround.recipe import Recipe, TrainingRecipe
from turnaround.record.layout import RunDirectory
from turnaround.record.schema import Status
from turnaround.training import recording
from turnaround.training.position import TrainingPosition
from turnaround.training.recording import RunRecorder

NO_ROOM = DiskFullError("Cannot save a checkpoint runs/a: the disk or your quota is full.")


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What reaches status.json; an error in it is raised instead."""
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(recording, "write_json", lambda path, payload: found.append(payload))
    return found


def recorder(told: list[str], *, stops: bool = False) -> RunRecorder:
    return RunRecorder(
        RunDirectory(Path("runs/a")),
        clock=SimpleNamespace(totals_s=dict),  # type: ignore[arg-type]
        recipe=Recipe(training=TrainingRecipe(stop_on_full_disk=stops)),
        plan=plan(),
        step=SimpleNamespace(),  # type: ignore[arg-type]
        status=Status(state="running"),
        progress=SimpleNamespace(warn=told.append),  # type: ignore[arg-type]
    )


def test_it_is_said_once_until_a_checkpoint_has_room_again(written: list[dict[str, Any]]) -> None:
    told: list[str] = []
    made = recorder(told)
    made._not_saved(NO_ROOM)
    made._not_saved(NO_ROOM)
    assert len(told) == 1
    assert "there is none yet of this start" in told[0]
    assert written[-1]["not_saved"] == str(NO_ROOM)
    made.saver.last = TrainingPosition(epochs_done=2)
    made.set_status()
    assert written[-1]["not_saved"] is None
    made._not_saved(NO_ROOM)
    assert "the last one is epoch-00002" in told[1]
    assert written[-1]["not_saved"] == str(NO_ROOM)


def test_a_status_without_room_is_written_with_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, payload: object) -> None:
        raise NO_ROOM

    monkeypatch.setattr(recording, "write_json", full)
    recorder([]).set_status()
    with pytest.raises(DiskFullError):
        recorder([], stops=True).set_status()
    with pytest.raises(DiskFullError):
        recorder([]).set_status(state="finished")
