"""The wait in a queue: a cluster's estimate, its error as earlier jobs have shown it, and who is ready first."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from forecast.conftest import real
from turnaround.analysis.workloads import survey_of
from turnaround.findings.queue import queue_notes, ready_text
from turnaround.forecast.interval import Interval
from turnaround.forecast.question import Prediction, QueueForecast
from turnaround.forecast.queue import CYCLE_S, Wait, WaitLaw, ready_first, waits_in, with_queue
from turnaround.record.schema import JobStatus

NOON = datetime(2026, 11, 16, 12, 0)


def prediction(workers: int, time_s: float, gpu: str = "V100") -> Prediction:
    time = Interval(value=time_s, low=0.8 * time_s, high=1.25 * time_s)
    return Prediction(
        job="photos",
        workers=workers,
        gpu=gpu,
        processes=workers,
        hosts=1,
        global_batch=32 * workers,
        epochs_planned=30,
        time_to_stable_s=time,
        job_time_s=time.scaled(2),
    )


def queued(workers: int, time_s: float, estimated_s: float | None, law: WaitLaw | None = None) -> Prediction:
    return with_queue(prediction(workers, time_s), law or WaitLaw().fit([]), estimated_s=estimated_s)


def jobs(ratios: list[float], estimated_s: float = 3600.0) -> list[Wait]:
    """Jobs that waited so many times the estimate."""
    waits = [max(0.0, ratio * (estimated_s + CYCLE_S) - CYCLE_S) for ratio in ratios]
    return [Wait(gpus=4, gpu="V100", wait_s=wait_s, estimated_s=estimated_s) for wait_s in waits]


def test_without_earlier_jobs_the_error_is_a_wide_prior() -> None:
    wait_s = WaitLaw().fit([]).predict(gpus=4, gpu="V100", estimated_s=3600)
    assert wait_s is not None
    assert wait_s.low < 1000 < wait_s.value < 3600 < 3 * 3600 < wait_s.high
    at_once = WaitLaw().fit([]).predict(gpus=4, gpu="V100", estimated_s=0)
    assert at_once is not None
    assert (at_once.low, at_once.value) == (0, 0)
    assert at_once.high < 300


def test_the_error_is_learnt() -> None:
    steady = WaitLaw().fit(jobs([0.5, 0.52, 0.48, 0.5] * 10))
    assert steady.num_estimated_ == 40
    assert steady.ratio.value == pytest.approx(0.5, rel=0.1)
    assert steady.ratio.high < 1
    few = WaitLaw().fit(jobs([0.5, 0.5]))
    assert few.ratio.relative_width > 2 * steady.ratio.relative_width  # two jobs that agree prove little


def test_the_interval_holds_four_of_five_of_the_next_jobs() -> None:
    rng = np.random.default_rng(5)
    inside = []
    for _ in range(400):
        centre, spread = rng.normal(-0.5, 0.5), rng.uniform(0.3, 1.2)
        *known, following = np.exp(rng.normal(centre, spread, 13)).tolist()
        ratio = WaitLaw().fit(jobs(known, estimated_s=1e6)).ratio
        inside.append(ratio.low <= following <= ratio.high)
    assert 0.74 < np.mean(inside) < 0.88


def test_without_an_estimate_waits_of_the_like_stand_in() -> None:
    waits = [Wait(gpus=4, gpu="V100", wait_s=600.0)] * 3 + [Wait(gpus=32, gpu="V100", wait_s=9000.0)] * 3
    waits += [Wait(gpus=4, gpu="T4", wait_s=10.0)] * 3
    law = WaitLaw().fit(waits)
    few, many = (law.predict(gpus=gpus, gpu="V100", estimated_s=None) for gpus in (4, 16))
    assert few is not None
    assert many is not None
    assert few.value == pytest.approx(600)
    assert many.value == pytest.approx(9000)
    assert few.low < 300 < 1200 < few.high
    assert WaitLaw().fit([]).predict(gpus=4, gpu="V100", estimated_s=None) is None


def test_few_gpus_now_before_many_tonight() -> None:
    few, many = queued(4, 3600, 0), queued(16, 1200, 6 * 3600)
    found = ready_first([few, many])
    assert found is not None
    assert (found.first, found.fastest) == (few, many)
    text = ready_text([few, many], NOON)
    assert text is not None
    assert text.startswith("4 V100, which would start at once, are ready before 16 V100, which would wait about 4 h")
    assert "a stable accuracy in about 1 h (" in text
    assert ", at 13:00, against about 4 h" in text
    assert many.queue is not None
    assert few.queue is not None
    assert found.is_open == (few.queue.ready_s.high > many.queue.ready_s.low)  # type: ignore[union-attr]


def test_the_fastest_stays_first_where_nobody_waits() -> None:
    text = ready_text([queued(4, 3600, 0), queued(16, 1200, 0)], NOON)
    assert text is not None
    assert text.startswith("Ready first, the queue included: 16 V100, which would start at once: a stable accuracy in")


def test_one_number_of_workers() -> None:
    alone = queued(1, 100_000, 60)
    text = ready_text([alone], NOON)
    assert text is not None
    assert text.startswith("1 V100 would start at once: a stable accuracy in about 28 h")
    assert text.endswith("tomorrow at 15:47.")
    no_stable = with_queue(replace(prediction(4, 60), time_to_stable_s=None), WaitLaw().fit([]), estimated_s=7200)
    assert "would wait about" in (said := str(ready_text([no_stable], NOON)))
    assert "the end of the job in about" in said


def test_the_sum_is_no_narrower_than_its_parts() -> None:
    both = queued(4, 3600, 3600).queue
    assert both is not None
    assert both.wait_s is not None
    assert both.ready_s is not None
    assert both.ready_s.value == pytest.approx(3600 + both.wait_s.value)
    assert both.ready_s.high - both.ready_s.low >= 0.9 * (both.wait_s.high - both.wait_s.low)


def test_goals_that_differ_are_not_compared() -> None:
    end = with_queue(replace(prediction(8, 60), time_to_stable_s=None), WaitLaw().fit([]), estimated_s=0)
    assert ready_first([queued(4, 60, 0), end]) is None
    assert ready_first([prediction(4, 60)]) is None
    assert ready_text([prediction(4, 60)], NOON) is None


def test_notes_say_what_the_wait_rests_on() -> None:
    law = WaitLaw().fit(jobs([0.5, 0.6, 0.4]))
    refused = replace(prediction(64, 60), queue=QueueForecast(refused="4 hosts are asked for, 2 fit."))
    learnt = " ".join(queue_notes([queued(4, 60, 600, law), refused], "Slurm"))
    assert "its error in 3 earlier jobs: a job has waited about 0.6 times as long" in learnt
    assert "no start of 64 workers on Slurm: 4 hosts are asked for, 2 fit." in learnt
    prior = " ".join(queue_notes([queued(4, 60, 600)], "Slurm"))
    assert "no job here has shown how rough" in prior
    assert "in 80 %" in prior
    alone = " ".join(queue_notes([queued(4, 60, None, law)], "Slurm"))
    assert "Slurm does not say when such a job would start: the wait is that of 3 earlier jobs" in alone
    nothing = " ".join(queue_notes([queued(4, 60, None)], "Slurm"))
    assert "no earlier job is known: the queue is left out" in nothing


def test_waits_of_recorded_jobs(tmp_path: Path) -> None:
    submitted = {"submitted_at": "2026-11-16T10:00:00+00:00", "started_at": "2026-11-16T10:05:00+00:00"}
    real(tmp_path / "a", 2, **submitted)  # no job of a cluster
    real(tmp_path / "b", 4, **submitted, job=JobStatus(job_id="7", gpu="v100", estimated_wait_s=600.0))
    real(tmp_path / "c", 8, **submitted, job=JobStatus(job_id="8", gpu="v100"))
    real(tmp_path / "d", 8, **{**submitted, "started_at": "soon"}, job=JobStatus(job_id="9"))
    waits = waits_in(survey_of([tmp_path]))
    assert [(w.gpus, w.gpu, w.wait_s, w.estimated_s) for w in waits] == [
        (4, "V100", 300.0, 600.0),
        (8, "V100", 300.0, None),
    ]
