"""Where a run stands now, by its own files: how far, how fast, how long, and what goes wrong."""

from __future__ import annotations

import json
import math
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.build import Plan, build, rising
from turnaround.analysis.progress import GIB, SILENT_S, Pace, disk_concerns, loss_concerns
from turnaround.record.folder import FollowedFolder
from turnaround.record.layout import RunDirectory
from turnaround.record.lock import RunLock
from turnaround.record.schema import EpochRecord, JobStatus, Status, to_json
from turnaround.record.writer import write_json, write_lines
from turnaround.reporting.live.now import now_blocks
from turnaround.reporting.live.progress import LAST_SAMPLES, RunProgress, RunWatch, warning

EPOCH = EpochRecord(
    epoch=1,
    train_loss=1.0,
    train_accuracy=0.5,
    val_loss=1.0,
    val_accuracy=0.5,
    epoch_time_s=10.0,
    images_per_s=1000.0,
    learning_rate=0.1,
    steps=100,
    images=10_000,
    evaluation_time_s=2.0,
)


def epochs(*losses: float) -> list[EpochRecord]:
    return [replace(EPOCH, epoch=number, train_loss=loss) for number, loss in enumerate(losses, start=1)]


class ProgramRun:
    """A run that is held by this process, looked at by a clock of its own."""

    def __init__(self, path: Path, **plan: Any) -> None:
        self.now_s = 1000.0
        build(path, Plan(**{"accuracy": rising(epochs=4), "training": {"epochs": 10}, **plan}))
        self.directory = RunDirectory(path)
        write_json(self.directory.status, to_json(Status(state="running", first_step_at="2026-03-01T08:00:00+00:00")))
        write_lines(self.directory.epochs, (to_json(replace(EPOCH, epoch=n)) for n in range(1, 5)))
        self.folder = FollowedFolder(path.parent, now_s=lambda: self.now_s)
        self.watch: RunWatch | None = None

    def look(self, *, after_s: float = 1.0) -> RunProgress:
        self.now_s += after_s
        self.folder.look()
        (run,) = self.folder.runs
        self.watch = self.watch or RunWatch(run, now_s=lambda: self.now_s)
        return self.watch.look()

    def beat(self, step: int, *, program_s: float, doing: str = "computes", pid: int | None = None) -> None:
        said = {"rank": 0, "host": socket.gethostname(), "pid": pid or os.getpid(), "step": step, "doing": doing}
        said |= {"beats": step, "ticks": int(program_s), "program_s": program_s}
        (self.directory.logs / "pulse-0.json").write_text(json.dumps(said))


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[ProgramRun]:
    run = ProgramRun(tmp_path / "runs" / "a")
    with RunLock(run.directory.lock):
        yield run


def test_a_run_on_its_way(watched: ProgramRun) -> None:
    watched.beat(450, program_s=50.0)
    watched.look()
    watched.beat(460, program_s=51.0)
    now = watched.look()
    assert (now.state, now.doing, now.epoch, now.epochs) == ("running", "trains", 5, 10)
    assert now.share == pytest.approx(0.46)
    assert now.images_per_s == pytest.approx(10 * 100)  # 10 steps a second of 100 images
    assert now.left_s == pytest.approx(5.4 * 12.0)
    assert now.val_accuracy == 0.5
    assert now.warnings == ()


def test_before_its_first_epoch_the_pace_of_its_steps_says_how_long(watched: ProgramRun) -> None:
    write_lines(watched.directory.epochs, ())
    watched.beat(10, program_s=50.0)
    watched.look()
    watched.beat(12, program_s=51.0)
    now = watched.look()
    # The recipe says 10,000 images, 32 for each of two workers: 157 steps an epoch.
    assert (now.epoch, now.share) == (1, pytest.approx(12 / 1570))
    assert now.left_s == pytest.approx(1558 / 2)
    assert now.images_per_s == pytest.approx(128)


def test_without_a_pulse_there_are_still_the_epochs(watched: ProgramRun) -> None:
    now = watched.look()
    assert (now.state, now.epoch, now.share) == ("running", 4, 0.4)
    assert now.images_per_s == 1000.0
    assert now.doing is None


def test_the_pace_leaves_out_evaluations_and_begins_anew_with_a_resume(watched: ProgramRun) -> None:
    pace = Pace()
    watched.beat(1, program_s=1.0)
    watched.look()
    (run,) = watched.folder.runs
    (seen,) = run.processes()
    for step, second in ((100, 10.0), (105, 11.0), (110, 12.0)):
        pace.saw(replace(seen, step=step, program_s=second))
    assert pace.steps_per_s == 5
    pace.saw(replace(seen, step=111, program_s=20.0, doing="evaluates"))
    assert pace.steps_per_s == 5
    pace.saw(replace(seen, step=50, program_s=1.0))
    assert pace.steps_per_s is None


def test_a_run_that_does_not_move_is_silent(watched: ProgramRun) -> None:
    watched.beat(450, program_s=50.0)
    watched.look()
    assert watched.look(after_s=SILENT_S - 5).warnings == ()
    (warning,) = watched.look(after_s=10).warnings
    assert (warning.kind, warning.is_problem) == ("silent", True)
    assert warning.text == "Nothing has moved for 65 s."
    watched.beat(451, program_s=51.0)
    assert watched.look().warnings == ()


def test_the_first_step_may_take_long(watched: ProgramRun) -> None:
    watched.beat(1, program_s=50.0)
    watched.look()
    assert watched.look(after_s=300).warnings == ()
    assert watched.look(after_s=1000).warnings[0].kind == "silent"


def test_a_process_that_is_gone_is_named(watched: ProgramRun) -> None:
    watched.beat(450, program_s=50.0, pid=2**22 - 1)
    (warning,) = watched.look().warnings
    assert warning.kind == "gone"
    assert warning.text == f"Process 0 (host {socket.gethostname()}, step 450) has ended, and others go on."


def test_a_starving_gpu_and_what_holds_it_back(tmp_path: Path) -> None:
    run = ProgramRun(tmp_path / "runs" / "a", gpu="Tesla T4", busy_percent=20.0, parts_s={0: (0.3, 0.1, 0.1, 0, 0.01)})
    with RunLock(run.directory.lock):
        run.beat(450, program_s=50.0)
        now = run.look()
    assert [w.text for w in now.warnings] == [
        f"The GPUs were busy 20 % of the last {LAST_SAMPLES} s: they wait for something."
    ]
    assert now.held_back is not None
    assert now.held_back.kind == "input"
    html = now_blocks([now], [], waiting="")[1].html
    assert "Held back by input:" in html
    assert "they wait for something" in html


def test_states_of_runs_that_do_not_run(tmp_path: Path) -> None:
    run = ProgramRun(tmp_path / "runs" / "a")
    write_json(run.directory.status, to_json(Status(state="failed", cause="the disk was full")))
    now = run.look()
    assert (now.state, now.cause, now.epoch, now.left_s) == ("failed", "the disk was full", 4, None)
    slurm = JobStatus(job_id="17", state="PENDING", reason="Resources")
    write_json(run.directory.status, to_json(Status(state="queued", job=slurm)))
    now = run.look()
    assert (now.state, now.cause) == ("queued", "job 17 of the cluster: PENDING, Resources")
    run.directory.status.write_text("{}")
    assert (run.look().state, run.look().cause) == ("unreadable", "its status cannot be read")
    run.directory.status.write_text("nonsense")
    assert run.look().cause == "status.json is damaged: not JSON (Expecting value: line 1 column 1 (char 0))."


def test_a_run_that_prepares_its_images(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "runs" / "a")
    folder = FollowedFolder(tmp_path / "runs")
    with RunLock(directory.lock):
        folder.look()
        (run,) = folder.runs
        now = RunWatch(run).look()
    assert (now.state, now.cause) == ("preparing", "reads and decodes its images")


def test_losses_that_go_wrong() -> None:
    assert list(loss_concerns([])) == []
    assert list(loss_concerns(epochs(3.0, 2.0, 1.0, 1.2))) == []
    assert list(loss_concerns(epochs(3.0, 1.0, 2.5, 2.0))) == []  # on its way down again
    (rising_loss,) = map(warning, loss_concerns(epochs(3.0, 1.0, 1.2, 2.0)))
    assert rising_loss.text == ("The training loss rises: 2 after epoch 4, 1 at its lowest. The run may be diverging.")
    assert not rising_loss.is_problem
    (no_number,) = map(warning, loss_concerns(epochs(3.0, 1.0, math.nan)))
    assert (no_number.text, no_number.is_problem) == ("The training loss of epoch 3 is no number.", True)
    (no_number,) = map(warning, loss_concerns([replace(EPOCH, val_loss=math.nan)]))
    assert no_number.text == "The validation loss of epoch 1 is no number."


def test_a_disk_that_fills_up() -> None:
    assert list(disk_concerns([], None)) == []
    assert list(disk_concerns([(0, 100 * GIB), (100, 100 * GIB)], 3600)) == []
    assert list(disk_concerns([(0, 110 * GIB), (100, 100 * GIB)], 500)) == []  # it ends in time
    (filling,) = map(warning, disk_concerns([(0, 110 * GIB), (100, 100 * GIB)], 3600))
    assert filling.text == "The disk fills up: 100.0 GiB are free, for 17 min at this pace."
    (little,) = map(warning, disk_concerns([(0, 3 * GIB)], None))
    assert (little.text, little.is_problem) == ("The disk has little space: 3.0 GiB are free.", False)
    (full,) = map(warning, disk_concerns([(0, GIB // 2)], None))
    assert (full.text, full.is_problem) == ("The disk is nearly full: 0.50 GiB are free.", True)


def test_a_checkpoint_that_had_no_room(watched: ProgramRun) -> None:
    assert [w.kind for w in watched.look().warnings if w.kind == "unsaved"] == []
    not_saved = "Cannot save a checkpoint runs/a: the disk or your quota is full (0.00 GiB free). Free some space."
    write_json(watched.directory.status, to_json(Status(state="running", not_saved=not_saved)))
    (warning,) = (w for w in watched.look().warnings if w.kind == "unsaved")
    assert (warning.text, warning.is_problem) == (f"{not_saved} The training goes on.", True)


def test_pulses_of_others_are_data(watched: ProgramRun) -> None:
    heartbeat = watched.directory.logs / "pulse-0.json"
    for content in ("[]", '{"rank": "<b>"}', "{" * 10_000, json.dumps({"rank": 0, "step": 10**400}), "x" * 100_000):
        heartbeat.write_text(content)
        assert watched.look().state == "running"
    hostile = {"rank": 0, "host": "h", "pid": 1, "step": -5, "doing": "<img src=x>" * 100, "beats": 2, "ticks": 1}
    heartbeat.write_text(json.dumps({**hostile, "program_s": 1.0}))
    block = now_blocks([watched.look()], [], waiting="")[1]
    assert "<img" not in block.html


def test_blocks_are_in_the_order_of_interest() -> None:
    found = [
        RunProgress(id="1", name="done", state="finished", val_accuracy=0.5),
        RunProgress(id="2", name="broken", state="failed", cause="x"),
        RunProgress(id="3", name="moves", state="running", epoch=2, epochs=4, share=0.5, left_s=90.0),
        RunProgress(id="4", name="waits", state="queued"),
    ]
    blocks = now_blocks(found, ["a note"], waiting="")
    assert [block.id for block in blocks] == ["live", "live/run/3", "live/run/4", "live/run/2", "live/finished"]
    assert "a note" in blocks[0].html
    assert '<progress max="1" value="0.5000"' in blocks[1].html
    assert "<b>about 90 s</b> left" in blocks[1].html
    assert "done <b>50.0 %</b>" in blocks[-1].html
    assert "nothing here" in now_blocks([], [], waiting="nothing here")[0].html
