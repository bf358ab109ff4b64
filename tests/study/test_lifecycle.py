"""What is started next, what it costs, and that nothing runs twice."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from turnaround.errors import InputError
from turnaround.record.growing import JsonFile
from turnaround.record.layout import RunDirectory
from turnaround.record.lock import RunLock
from turnaround.record.writer import write_json
from turnaround.study.lifecycle import Conductor, Work, seconds_left
from turnaround.study.plan import PlannedRun, plan
from turnaround.study.program import Program
from turnaround.study.state import PlanFollower, RunState, agree_with_before, state_of

PLANNED = plan(workers=[1, 2], rehearse=[8, 4], seeds=[0], devices=2)


def state(planned: PlannedRun, standing: str, program_s: float | None = None, epochs_done: int = 0) -> RunState:
    return RunState(
        planned=planned,
        directory=Path("study") / planned.name,
        standing=standing,  # type: ignore[arg-type]
        program_s=program_s,
        epochs_done=epochs_done,
        epochs=10,
    )


class Started(Conductor):
    """Notes what it would start."""

    started: list[str]

    def _start(self, state: RunState) -> None:
        self.started = [*getattr(self, "started", []), state.planned.name]
        self._running[state.planned.name] = None  # type: ignore[assignment]
        self._tried.add(state.planned.name)


def started(states: list[RunState], **work: object) -> Started:
    conductor = Started(Work(folder=Path("study"), source="photos", **work), PLANNED)  # type: ignore[arg-type]
    conductor.started = []
    conductor._start_what_fits(states)
    return conductor


def waiting() -> list[RunState]:
    return [state(run, "missing") for run in PLANNED]


def test_a_timed_run_has_the_machine_to_itself() -> None:
    assert started(waiting(), gpus=("0", "1")).started == ["1w-seed0"]


def test_rehearsals_share_the_gpus_and_a_cpu_takes_one() -> None:
    states = [state(r, "missing" if r.is_rehearsal else "finished", program_s=10.0) for r in PLANNED]
    assert started(states, gpus=("0", "1")).started == ["8w-rehearsed-seed0", "4w-rehearsed-seed0"]
    assert started(states, gpus=("0",)).started == ["8w-rehearsed-seed0"]
    assert started(states).started == ["8w-rehearsed-seed0"]


def test_done_and_failed_runs_are_left_alone_unless_told_otherwise() -> None:
    states = [state(PLANNED[0], "finished"), state(PLANNED[1], "diverged"), *(state(r, "failed") for r in PLANNED[2:])]
    assert started(states).started == []
    assert started(states, retries_failed=True).started == ["8w-rehearsed-seed0"]


def test_a_stopped_run_is_resumed_and_a_new_one_started() -> None:
    work = Work(folder=Path("study"), source="photos", overrides=("training.epochs=3",), device="cpu")
    fresh = work.command(state(PLANNED[1], "missing"))
    assert fresh[2:] == [
        *("turnaround", "train", "photos", "--workers", "2", "--processes", "2", "--device", "cpu"),
        *("--out", "study/2w-seed0", "--set", "training.epochs=3", "--set", "training.seed=0"),
    ]
    rest = work.command(state(PLANNED[1], "interrupted"))
    assert rest[2:] == ["turnaround", "resume", "study/2w-seed0", "--processes", "2", "--device", "cpu"]


def test_the_budget_ends_the_study_and_names_what_is_left_out() -> None:
    states = [state(PLANNED[0], "finished", program_s=100.0), *(state(r, "missing") for r in PLANNED[1:])]
    assert started(states, budget_gpu_s=250.0).started == ["2w-seed0"]
    poor = started(states, budget_gpu_s=150.0)
    assert poor.started == []
    assert poor.left_out == ["2 workers, seed 0", "8 workers rehearsed, seed 0", "4 workers rehearsed, seed 0"]
    assert started(waiting(), budget_gpu_s=1.0).started == ["1w-seed0"]  # the first is always started


def test_the_time_left_follows_the_pace() -> None:
    assert seconds_left(waiting()) is None
    states = [state(PLANNED[0], "finished", program_s=60.0), state(PLANNED[1], "running", epochs_done=5)]
    assert seconds_left(states) == pytest.approx(30.0)


def test_a_run_that_left_nothing_has_failed(tmp_path: Path) -> None:
    conductor = Conductor(Work(folder=tmp_path, source="photos"), PLANNED[:1])
    assert [s.standing for s in conductor.states()] == ["missing"]
    conductor._tried.add(PLANNED[0].name)
    [found] = conductor.states()
    assert (found.standing, found.cause) == ("failed", "It ended before it had begun; its log says why.")


def test_a_training_without_a_directory_yet_is_starting(tmp_path: Path) -> None:
    """It does not run, then start, then run: each of these changes would be told."""
    training = Conductor(Work(folder=tmp_path, source="photos"), PLANNED[:1])
    program = Conductor(Work(folder=tmp_path, program=Program.parse("python lab10.py {workers}")), PLANNED[:1])
    with subprocess.Popen(["true"]) as process:
        for conductor, standing in ((training, "starting"), (program, "running")):
            conductor._tried.add(PLANNED[0].name)
            conductor._running[PLANNED[0].name] = process
            assert [state.standing for state in conductor.states()] == [standing]


def test_a_damaged_run_is_named(tmp_path: Path) -> None:
    (tmp_path / PLANNED[0].name).mkdir()
    write_json(tmp_path / PLANNED[0].name / "recipe.json", {"training": {"epochs": 3}})
    found = state_of(PLANNED[0], tmp_path)
    assert found.standing == "failed"
    assert "status.json" in str(found.cause)


def test_a_study_keeps_its_recipe(tmp_path: Path) -> None:
    agree_with_before(tmp_path / "study", {"source": "photos", "recipe": {"training": {"epochs": 3}}})
    agree_with_before(tmp_path / "study", {"source": "photos", "recipe": {"training": {"epochs": 3}}})
    with pytest.raises(InputError, match=r"holds a study with another source: 'photos' then, 'others' now"):
        agree_with_before(tmp_path / "study", {"source": "others"})


def test_what_is_still_to_come(tmp_path: Path) -> None:
    plan = PlanFollower(tmp_path)
    assert plan.to_come() == []  # no study
    agree_with_before(tmp_path, {"source": "photos"}, PLANNED[:2])
    agree_with_before(tmp_path, {"source": "photos"}, PLANNED[1:3])  # others join
    assert plan.to_come() == [run.label for run in PLANNED[:3]]
    (tmp_path / PLANNED[1].name).mkdir()
    write_json(tmp_path / PLANNED[1].name / "status.json", {"state": "running"})
    assert plan.to_come() == [PLANNED[0].label, PLANNED[2].label]


def test_a_plan_that_is_watched_is_read_when_it_has_changed_and_has_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agree_with_before(tmp_path, {"source": "photos"}, PLANNED[:2])
    reads: list[str] = []
    real = JsonFile._read
    monkeypatch.setattr(JsonFile, "_read", lambda self, folder: (reads.append(self.name), real(self, folder))[1])
    plan = PlanFollower(tmp_path)
    for _ in range(3):
        assert len(plan.to_come()) == 2
    assert reads == ["study.json"]
    with (tmp_path / "study.json").open("r+b") as file:
        file.truncate(200 * 2**20)  # sparse: nothing of it may be read
    assert plan.to_come() == []


@pytest.mark.parametrize("planned", [None, [1, 2], {"../x": "a", "": 3, "y": None}, "words"])
def test_a_plan_that_makes_no_sense_is_none(tmp_path: Path, planned: object) -> None:
    plan = PlanFollower(tmp_path)
    write_json(tmp_path / "study.json", {"source": "photos", "planned": planned})
    assert plan.to_come() == []
    agree_with_before(tmp_path, {"source": "photos"}, PLANNED[:1])
    assert plan.to_come() == [PLANNED[0].label]


def test_a_run_whose_process_lives_and_has_no_status_yet_is_starting(tmp_path: Path) -> None:
    first = PLANNED[0]
    directory = RunDirectory.create(tmp_path / first.name)
    with RunLock(directory.lock):
        assert state_of(first, tmp_path).standing == "starting"
        write_json(directory.recipe, {})  # somebody else's program writes it before its status
        assert state_of(first, tmp_path).standing == "starting"
        assert state_of(first, tmp_path).is_alive
    gone = state_of(first, tmp_path)
    assert (gone.standing, "status.json is missing" in str(gone.cause)) == ("failed", True)
    directory.recipe.unlink()
    assert state_of(first, tmp_path).standing == "missing"
    assert started([state(run, "starting" if run is first else "finished") for run in PLANNED]).started == []
