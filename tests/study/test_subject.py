"""What a study is of: planned in the same way from the command line and from Python."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from turnaround.errors import InputError, RunDirectoryError
from turnaround.record.layout import StudyDirectory
from turnaround.record.lock import RunLock
from turnaround.study import subject
from turnaround.study.lifecycle import Conductor
from turnaround.study.subject import StudyAsked, of_program, of_recipe, run_here


def test_the_devices_are_those_of_this_machine_or_whatever_a_cluster_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subject, "usable_cores", lambda: 3)
    assert StudyAsked(workers=[8]).num_devices == 3
    assert StudyAsked(workers=[8], gpus=("0", "1")).num_devices == 2
    assert StudyAsked(workers=[8], device="mps").num_devices == 1
    assert (
        StudyAsked(workers=[8, 2], is_here=False).num_devices,
        StudyAsked(workers=[], is_here=False).num_devices,
    ) == (
        8,
        1,
    )


def test_the_seeds_begin_with_the_recipes_and_the_folder_has_its_name() -> None:
    asked = StudyAsked(workers=[1], repeat=2, device="cpu", settings=("training.seed=7",))
    fruit = of_recipe("fruitbowl", asked)
    work = fruit.work(asked, out=None)
    assert [run.seed for run in fruit.planned] == [7, 8]
    assert (work.folder, work.source, work.overrides) == (Path("runs/fruitbowl-study"), "fruitbowl", asked.settings)
    assert fruit.compared["source"] == "fruitbowl"


def test_a_program_runs_with_any_number_of_workers() -> None:
    program = of_program("true --gpus {workers}", StudyAsked(workers=[1, 64], repeat=2))
    assert {(run.workers, run.seed) for run in program.planned} == {(1, 0), (1, 1), (64, 0), (64, 1)}


def test_two_commands_do_not_run_one_study_at_once(tmp_path: Path) -> None:
    asked = StudyAsked(workers=[1], device="cpu")
    program = of_program("true --gpus {workers}", asked)
    conductor = Conductor(program.work(asked, out=tmp_path), program.planned)
    with RunLock(StudyDirectory(tmp_path).lock), pytest.raises(RunDirectoryError, match="in use by another run"):
        run_here(conductor, program, preparing=nullcontext(print), running=nullcontext())


def test_what_every_run_would_refuse_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    asked = StudyAsked(workers=[1], device="cpu", settings=("model.name=nothing_like_it",))
    fruit = of_recipe("fruitbowl", asked)
    conductor = Conductor(fruit.work(asked, out=tmp_path / "s"), fruit.planned)
    with pytest.raises(InputError, match="nothing_like_it"):
        run_here(conductor, fruit, preparing=nullcontext(print), running=nullcontext())
    assert not (tmp_path / "s").exists()
