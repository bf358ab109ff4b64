"""Not to be fooled: tables that cannot be what they say get a word, and honest ones get none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.build import import_table
from console import Console, Done
from forecast.conftest import real
from turnaround.analysis.workloads import survey_of
from turnaround.errors import InputError
from turnaround.findings.forecasts import Answer
from turnaround.forecast.doubts import doubts_of
from turnaround.forecast.predict import fit_forecaster
from turnaround.forecast.question import Question
from turnaround.forecast.ranking import best_of_range
from turnaround.forecast.step_time import StepObservation
from turnaround.forecast.trend import CountTime


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    return Console(monkeypatch, capsys)


HEADER = "name,dataset,gpu,workers,batch_per_worker,images_per_epoch,epochs,job_time_s,epoch_time_s\n"


def doubted(epoch_times_s: dict[int, float]) -> list[tuple[str, int]]:
    points = [CountTime(processes=n, is_on_several_hosts=False, time_s=t * n) for n, t in epoch_times_s.items()]
    return [(doubt.kind, doubt.processes) for doubt in doubts_of(points)]


def test_each_kind_of_doubt_and_none_for_an_honest_series() -> None:
    assert doubted({1: 100, 2: 52, 4: 28}) == []
    assert doubted({1: 100, 2: 60, 4: 40, 8: 30}) == []  # steep, but all the way
    assert doubted({1: 100, 2: 52, 4: 27, 8: 3 * 14.0}) == [("slower than fewer", 8)]
    assert doubted({1: 100, 4: 26, 16: 3 * 7.0}) == [("too slow", 16)]
    assert doubted({1: 100, 8: 130}) == [("slower than fewer", 8)]
    assert doubted({1: 100, 2: 101, 8: 99}) == [("same time", 8)]
    assert doubted({1: 100, 8: 40}) == [("lost at once", 8)]
    assert doubted({4: 80}) == []


def answer(tmp_path: Path, rows: list[str], workers: int = 16) -> Answer:
    found = survey_of([import_table(HEADER + "".join(f"{row}\n" for row in rows), tmp_path / "out")])
    return Answer.of(fit_forecaster(found, Question(workers=workers)).predict(workers))


def row(name: str, workers: int, epoch_time_s: float, job_time_s: float | None = None) -> str:
    job = 10 * epoch_time_s + 20 if job_time_s is None else job_time_s
    return f"{name},fruit,V100,{workers},32,20000,10,{job},{epoch_time_s}"


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ({1: 100, 4: 26, 16: 21}, "16 processes take 3.0 times as long as the smaller counts lead to expect"),
        ({1: 100, 8: 130}, "8 processes are slower than 1 process: 78 % of the throughput"),
        ({1: 100, 2: 100, 4: 100}, "All counts from 1 to 4 have the same throughput"),
        ({1: 100, 8: 40}, "8 processes have only 2.5 times the throughput of 1 process"),
    ],
)
def test_a_doubtful_table_gets_a_word(tmp_path: Path, times: dict[int, float], words: str) -> None:
    p = answer(tmp_path, [row(f"n{n}", n, t) for n, t in times.items()], workers=32)
    assert any(warning.startswith(words) for warning in p.warnings), p.warnings
    assert p.epoch_time_s is not None


def test_repeats_of_104_and_208_s_get_a_word_and_a_wide_interval(tmp_path: Path) -> None:
    p = answer(tmp_path, [row("a", 1, 104.0), row("b", 1, 208.0), row("c", 2, 54.0)], workers=4)
    assert any("took 104 s and 208 s an epoch: they are not the same work" in warning for warning in p.warnings)
    assert p.epoch_time_s is not None
    assert p.epoch_time_s.high > 1.5 * p.epoch_time_s.value


def test_hours_for_seconds_are_left_out_with_the_reason(console: Callable[..., Done], tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    rows = [row("good", 1, 100.0), row("hours", 2, 52.0, job_time_s=0.15), row("late", 4, 0.0075, job_time_s=290.0)]
    table.write_text(HEADER + "".join(f"{each}\n" for each in rows))
    done = console("import", str(table), "--out", str(tmp_path / "out"))
    told = " ".join((done.out + done.err).split())
    assert "job_time_s is 0.15, but 10 epochs of 52 s take 520 s: give both in seconds" in told
    assert "job_time_s is 290, but 10 epochs of 0.0075 s take 0.075 s: give both in seconds" in told
    assert not (tmp_path / "out" / "hours").exists()


def test_impossible_times_are_refused(console: Callable[..., Done], tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text(HEADER + "good,fruit,V100,1,32,20000,10,1020,100\nbig,fruit,V100,2,32,20000,10,,1e30\n")
    done = console("import", str(table), "--out", str(tmp_path / "out"))
    assert "epoch_time_s must be at most 1,000,000,000, received '1e30'" in " ".join((done.out + done.err).split())
    for time_s, words in ((1e30, "must be at most 1,000,000,000 s, not 1e+30"), (float("nan"), "must be above 0")):
        with pytest.raises(InputError, match=words.replace("+", r"\+")):
            StepObservation(processes=1, time_s=time_s, images_per_step=32)


def test_more_processes_than_cores_are_never_the_best(tmp_path: Path) -> None:
    for n in (1, 2):
        real(tmp_path / f"n{n}", n, gpu="cpu", machine={"cores": 2, "device": "cpu", "gpus": []})
    forecaster = fit_forecaster(survey_of([tmp_path]), Question(workers=4))
    best = best_of_range([forecaster.predict(n) for n in (2, 4)])
    assert best is not None
    assert (best.fastest, best.enough) == (2, 2)
