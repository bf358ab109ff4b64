"""The run that would narrow an estimate most: which it is, and what it would leave open."""

from __future__ import annotations

from dataclasses import replace

from forecast.test_estimate import HERE, asked, one
from forecast.test_prior import RESNET50
from turnaround.findings.estimates import narrowing_text
from turnaround.forecast.epochs import INSIDE
from turnaround.forecast.estimate import choices, estimate_all
from turnaround.forecast.interval import Interval
from turnaround.forecast.narrowing import narrowing_run


def test_the_run_that_narrows_most() -> None:
    question = asked("h100", prices={"H100": 7.0})
    best = choices(estimate_all(HERE, question))
    assert best is not None
    run = narrowing_run(HERE, question, best.near_fastest)
    assert run is not None
    assert run.kind == "train there"
    assert (run.workers, run.gpu) == (1, "H100")
    assert run.width_after < 0.7 * run.width_before
    assert run.cost is not None
    # Where the time is known already, the epochs are what is left: a rehearsal on the GPU that is here.
    here = replace(HERE, device="H100", precision="bf16", images_per_s=Interval(value=4e3, low=3.9e3, high=4.1e3))
    about = one(estimate_all(here, question), "H100", 16)
    rehearsal = narrowing_run(here, question, about)
    assert rehearsal is not None
    assert (rehearsal.kind, rehearsal.workers) == ("rehearse here", 16)


def test_a_run_on_the_kind_takes_away_all_doubt_of_its_speed_but_five_percent() -> None:
    """A single GPU and epochs that are told within 15 %: hardly more than the doubt of the epochs may be left."""
    question = asked("h100", workers=(1,))
    for measured in (HERE, replace(HERE, device="H100", precision="bf16")):
        (about,) = estimate_all(measured, question)
        run = narrowing_run(measured, question, about)
        assert run is not None
        assert run.kind == "train there"
        assert run.width_after < (1 + INSIDE) / (1 - INSIDE) * 1.15


def test_a_run_on_a_gpu_tells_nothing_by_the_processors_of_the_trial() -> None:
    """The backbone's one pass took the processor's hours, and its 30 s to begin, for those of the GPU."""
    frozen = replace(HERE, network=replace(RESNET50, keeps_features=True), epochs=3)
    slow = replace(frozen, backbone_images_per_s=Interval(value=2.0, low=2.0, high=2.0), start_up_s=30.0)
    question = asked("h100", workers=(1,))
    widths = []
    for measured in (frozen, slow):
        (about,) = estimate_all(measured, question)
        run = narrowing_run(measured, question, about)
        assert run is not None
        assert run.kind == "train there"
        widths.append(run.width_after)
    assert widths[0] == widths[1]


def test_a_rehearsal_of_one_worker_is_a_plain_run() -> None:
    question = asked("h100", workers=(1,))
    (about,) = estimate_all(HERE, question)
    run = narrowing_run(HERE, question, about)
    assert run is not None
    said = narrowing_text(replace(run, kind="rehearse here", workers=1, gpu="CPU"))
    assert said.startswith("a run of one worker here (")
    assert narrowing_text(replace(run, kind="rehearse here", workers=4)).startswith("a rehearsal of 4 workers here (")
