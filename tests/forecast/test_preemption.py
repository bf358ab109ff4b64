"""Machines that are taken away: forecasts against jobs that are played through second by second."""

from __future__ import annotations

import math
import random
import statistics
from pathlib import Path

import numpy as np
import pytest

from forecast.conftest import real
from turnaround.analysis.prices import Price
from turnaround.analysis.workloads import survey_of
from turnaround.errors import InputError
from turnaround.findings.interruptions import interruptions_notes, interruptions_text
from turnaround.forecast.interval import Interval
from turnaround.forecast.observations import Overheads
from turnaround.forecast.predict import fit_forecaster
from turnaround.forecast.preemption import UNKNOWN_PAUSE_S, costs_in, expected_paid_s, interrupted
from turnaround.forecast.question import InterruptionCosts, Prediction, Question
from turnaround.forecast.step_time import StepObservation, StepTime
from turnaround.forecast.time_law import Deployment
from turnaround.forecast.turnaround import fixed_overhead
from turnaround.interruptions import HOUR_S, best_interval_s
from turnaround.record.schema import JobStatus

START_S, PAUSE_S, WAIT_S = 40.0, 2.0, 120.0


def costs(wait_s: float = WAIT_S) -> InterruptionCosts:
    start, pause, wait = (Interval.exact(value) for value in (START_S, PAUSE_S, wait_s))
    return InterruptionCosts(start_s=start, pause_s=pause, wait_s=wait)


def played(
    work_s: float,
    *,
    every_s: float,
    per_h: float,
    rng: random.Random,
    start_s: float = START_S,
    pause_s: float = PAUSE_S,
    wait_s: float = WAIT_S,
) -> tuple[float, float]:
    """One job, event by event: its time, and its time on machines. Written without the formulas of the forecast."""
    clock_s = paid_s = saved_s = 0.0
    while True:
        lives_s = rng.expovariate(per_h / HOUR_S)
        here_s, done_s = start_s, saved_s
        while here_s < lives_s and done_s < work_s:
            step_s = min(every_s, work_s - done_s)
            here_s += step_s + pause_s
            if here_s <= lives_s:
                done_s += step_s
        if done_s >= work_s:
            return clock_s + here_s, paid_s + here_s
        saved_s = done_s
        clock_s += lives_s + wait_s
        paid_s += lives_s


@pytest.mark.parametrize("per_h", [0.3, 2.0, 12.0])
def test_fifty_simulated_jobs(per_h: float) -> None:
    work_s, every_s, rng = 3000.0, best_interval_s(pause_s=PAUSE_S, per_h=per_h), random.Random(7)
    forecast = interrupted(Interval.exact(work_s), costs(), every_s=every_s, per_h=per_h)
    assert forecast is not None
    jobs = [played(work_s, every_s=every_s, per_h=per_h, rng=rng) for _ in range(50)]
    inside = sum(forecast.time_s.low - 1e-6 <= time_s <= forecast.time_s.high + 1e-6 for time_s, _ in jobs)
    assert 32 <= inside <= 50  # 40 are expected; at the low rate most jobs have the very same time
    many = [played(work_s, every_s=every_s, per_h=per_h, rng=rng) for _ in range(2000)]
    assert statistics.mean(time_s for time_s, _ in many) == pytest.approx(forecast.time_s.value, rel=0.04)
    assert statistics.mean(paid_s for _, paid_s in many) == pytest.approx(forecast.paid_s.value, rel=0.04)
    waits = statistics.mean((time_s - paid_s) / WAIT_S for time_s, paid_s in many)
    assert waits == pytest.approx(forecast.count, rel=0.08)


def around(value: float, width: float) -> Interval:
    return Interval(value=value, low=value * (1 - width), high=value * (1 + width))


def one_of(interval: Interval, rng: random.Random) -> float:
    return float(interval.spread(np.array(rng.gauss(0, 1))))


@pytest.mark.parametrize(
    ("per_h", "start_s", "work_s"),
    [
        (10, 2, 20),
        (10, 15, 120),
        (60, 15, 20),
        (60, 60, 120),
        (60, 60, 7200),
        (150, 2, 7200),
        (150, 15, 7200),
        (150, 60, 900),
    ],
)
def test_four_of_five_jobs_whose_work_and_starts_scatter_are_inside(
    per_h: float, start_s: float, work_s: float
) -> None:
    work, start, pause, rng = around(work_s, 0.03), around(start_s, 0.2), around(0.2, 0.3), random.Random(11)
    every_s = best_interval_s(pause_s=0.2, per_h=per_h)
    asked_costs = InterruptionCosts(start_s=start, pause_s=pause, wait_s=Interval.exact(0.0))
    forecast = interrupted(work, asked_costs, every_s=every_s, per_h=per_h)
    assert forecast is not None
    inside = 0
    for _ in range(200):
        own = (one_of(work, rng), one_of(start, rng), one_of(pause, rng))
        time_s, _ = played(own[0], every_s=every_s, per_h=per_h, rng=rng, start_s=own[1], pause_s=own[2], wait_s=0.0)
        inside += forecast.time_s.low <= time_s <= forecast.time_s.high
    assert 0.72 <= inside / 200 <= 0.92


def test_where_most_jobs_are_not_interrupted_the_interval_reaches_down_to_theirs() -> None:
    every_s = best_interval_s(pause_s=PAUSE_S, per_h=2.0)
    calm, rough = (interrupted(around(1000.0, 0.1), costs(), every_s=every_s, per_h=per_h) for per_h in (0.0, 2.0))
    assert calm is not None
    assert rough is not None
    assert rough.time_s.low == pytest.approx(calm.time_s.low, rel=1e-3)
    assert rough.time_s.high > calm.time_s.high


def test_three_runs_forecast_the_next_job(tmp_path: Path) -> None:
    """Three repeats say little about their own scatter: four of five further jobs must lie inside all the same."""
    rng, inside, jobs = random.Random(3), 0, 300
    for _ in range(jobs):
        steps = [0.2 * math.exp(rng.gauss(0, 0.1)) for _ in range(4)]
        starts = [5 * math.exp(rng.gauss(0, 0.2)) for _ in range(4)]
        seen = [StepObservation(processes=1, time_s=each, images_per_step=32) for each in steps[:3]]
        work = StepTime().fit(seen).predict(Deployment(processes=1)).scaled(1000)
        start = fixed_overhead([Overheads(processes=1, fixed_s=sorted(starts[:3])[1], fixed_runs_s=tuple(starts[:3]))])
        asked_costs = InterruptionCosts(start_s=start, pause_s=Interval.exact(0.1), wait_s=Interval.exact(0.0))
        forecast = interrupted(work, asked_costs, every_s=30.0, per_h=6.0)
        assert forecast is not None
        own = {"start_s": starts[3], "pause_s": 0.1, "wait_s": 0.0}
        time_s, _ = played(1000 * steps[3], every_s=30.0, per_h=6.0, rng=rng, **own)
        inside += forecast.time_s.low <= time_s <= forecast.time_s.high
    assert 0.74 <= inside / jobs <= 0.90


def test_an_unmeasured_pause_that_may_be_too_long_for_the_rate_is_answered_at_once() -> None:
    start = Interval(value=5.0, low=4.0, high=6.0)
    asked_costs = InterruptionCosts(start_s=start, pause_s=UNKNOWN_PAUSE_S, wait_s=Interval.exact(0.0))
    # Among 4,000 draws are pauses of ten minutes: at 150 interruptions an hour such a job never ends.
    found = interrupted(around(60.0, 0.03), asked_costs, every_s=7.0, per_h=150.0)
    assert found is not None
    assert found.time_s.high < 1000


def test_the_mean_without_interruptions_is_the_plain_time() -> None:
    assert expected_paid_s(1000.0, (START_S, PAUSE_S), every_s=300.0, per_h=0.0) == START_S + 1000 + 4 * PAUSE_S
    never = interrupted(Interval.exact(1000.0), costs(), every_s=math.inf, per_h=0.0)
    assert never is not None
    assert (never.time_s.value, never.count) == (START_S + 1000 + PAUSE_S, 0)


def test_no_other_interval_is_better() -> None:
    best_s = best_interval_s(pause_s=PAUSE_S, per_h=6.0)
    times = {
        f: expected_paid_s(20_000, (START_S, PAUSE_S), every_s=best_s * f, per_h=6.0) for f in (0.3, 0.7, 1, 1.4, 3)
    }
    assert min(times, key=times.__getitem__) == 1


def test_more_interruptions_take_longer_until_nothing_ends() -> None:
    found = [interrupted(Interval.exact(3000.0), costs(), every_s=60.0, per_h=per_h) for per_h in (0.1, 1, 10, 40)]
    values = [each.time_s.value for each in found if each is not None]
    assert values == sorted(values)
    assert len(values) == 4
    assert interrupted(Interval.exact(3000.0), costs(), every_s=60.0, per_h=400.0) is None
    endless = interrupted(Interval.exact(1e7), costs(), every_s=60.0, per_h=10.0)  # thousands of interruptions
    assert endless is not None
    assert endless.time_s.low == pytest.approx(endless.time_s.value, rel=0.01)


def asked(folder: Path, **question: object) -> Prediction:
    forecaster = fit_forecaster(survey_of([folder]), Question(workers=2, **question))  # type: ignore[arg-type]
    return forecaster.predict(2)


def test_what_the_runs_tell(tmp_path: Path) -> None:
    real(tmp_path / "a", 1, time_s={"checkpoint": 6.0, "start_up": 30.0}, saves=3)
    job = JobStatus(job_id="7", starts=3, requeued_s=240.0)
    real(tmp_path / "b", 2, time_s={"checkpoint": 6.0, "start_up": 30.0, "lost": 90.0}, saves=3, segments=3, job=job)
    forecaster = fit_forecaster(survey_of([tmp_path]), Question(workers=2))
    found = costs_in(forecaster.laws)
    assert (found.pause_s.value, found.is_pause_measured) == (2.0, True)
    assert (found.wait_s.value, found.is_wait_measured) == (120.0, True)
    assert (found.lost_s, found.interruptions_seen) == (45.0, 2)
    assert found.start_s.value >= 30
    p = asked(tmp_path, interruptions_per_h=2.0, prices={"H200": Price(per_hour=3.0, spot_per_hour=1.0)})
    assert p.interrupted is not None
    assert p.interrupted.job_time_s is not None
    assert p.job_time_s is not None
    assert p.interrupted.job_time_s.value > p.job_time_s.value
    assert p.interrupted.checkpoint_every_s == pytest.approx(best_interval_s(pause_s=2.0, per_h=2.0))
    assert p.interrupted.cost is not None
    assert p.cost is not None
    assert p.interrupted.cost.value < p.cost.value
    text, notes = str(interruptions_text(p)), " ".join(interruptions_notes(p))
    assert text.startswith("With 2 interruptions of the job an hour: about ")
    assert "saving every 84 s. Interrupted, the job costs about " in text
    assert "at the spot price; undisturbed, at the full price, " in text
    assert "2 s for a checkpoint" in notes
    assert "assumed" not in notes
    assert "about 2 min until another machine is there" in notes
    assert "2 interruptions of these runs lost about 45 s of work each" in notes
    assert "--set training.checkpoint_every_s=auto --set training.interruptions_per_h=2" in notes


def test_an_interrupted_job_is_longer_than_the_same_job_was_measured_to_be(tmp_path: Path) -> None:
    # Starts of one and two are far apart: the forecast has the median of them, and one took longer than that.
    real(tmp_path / "slow", 1, time_s={"start_up": 400.0})
    real(tmp_path / "quick", 2, time_s={"start_up": 20.0})
    question = Question(workers=1, interruptions_per_h=1.0)
    p = fit_forecaster(survey_of([tmp_path]), question).predict(1)
    assert p.interrupted is not None
    assert p.interrupted.job_time_s is not None
    assert p.job_time_s is not None
    assert p.measured["job_time_s"].value > p.job_time_s.value
    assert p.interrupted.job_time_s.value > p.measured["job_time_s"].value


def test_what_no_run_tells(tmp_path: Path) -> None:
    real(tmp_path / "a", 2)
    plain, p = asked(tmp_path), asked(tmp_path, interruptions_per_h=6.0)
    assert plain.interrupted is None
    assert interruptions_text(plain) is None
    assert list(interruptions_notes(plain)) == []
    assert p.interrupted is not None
    assert p.interrupted.costs.pause_s == UNKNOWN_PAUSE_S
    notes = " ".join(interruptions_notes(p))
    assert "(assumed: no run has counted its checkpoints)" in notes
    assert "another machine is there at once: no run here has waited for one" in notes
    hopeless = asked(tmp_path, interruptions_per_h=3600.0)
    real(tmp_path / "slow", 2, time_s={"start_up": 60.0})
    hopeless = asked(tmp_path / "slow", interruptions_per_h=600.0)
    assert hopeless.interrupted is not None
    assert hopeless.interrupted.job_time_s is None
    said = str(interruptions_text(hopeless))
    assert "does not get done, however often it saves: a start takes about 60 s" in said
    assert not any("--set" in note for note in interruptions_notes(hopeless))  # no way of saving helps
    with pytest.raises(InputError, match="Interruptions an hour must be from 0 to 3600, received -1"):
        Question(workers=1, interruptions_per_h=-1.0)


def test_every_host_may_be_lost(tmp_path: Path) -> None:
    real(tmp_path / "a", 2)
    one, two = (asked(tmp_path, interruptions_per_h=1.0, hosts=hosts).interrupted for hosts in (1, 2))
    assert one is not None
    assert two is not None
    assert (one.per_h, two.per_h) == (1.0, 2.0)
