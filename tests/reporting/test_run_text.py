"""Tables and sentences for the terminal."""

from __future__ import annotations

import io
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console, RenderableType

from turnaround.analysis.summary import RunSummary
from turnaround.findings import RULES, Finding
from turnaround.findings.times import PART_NAMES
from turnaround.record.reader import Run
from turnaround.record.schema import DISJOINT_TIME_PARTS, BestEpoch, ClassResult, EpochRecord, Evaluation, Status
from turnaround.reporting.run_text import (
    SAID_ALREADY,
    best_sentence,
    comparison,
    first_step_sentence,
    limit_sentence,
    noise_sentence,
    parts_sentence,
    run_end,
    scaling_sentence,
    weakest_class,
)

SUMMARY = RunSummary(
    directory="runs/mine",
    name="mine",
    state="finished",
    workers=4,
    processes=4,
    is_rehearsal=False,
    device="CPU",
    global_batch=128,
    epochs=3,
    epoch_time_s=12.34,
    images_per_s=1234.5,
    best_val_accuracy=0.9123,
    best_epoch=2,
    final_val_accuracy=0.9,
    final_top5_accuracy=0.99,
    turnaround_s=75.0,
    turnaround_parts_s={"start_up": 5.0, "training_steady": 70.0, "checkpoint": 0.01},
)
NOTHING_YET = replace(
    SUMMARY,
    epoch_time_s=None,
    images_per_s=None,
    best_val_accuracy=None,
    best_epoch=None,
    final_val_accuracy=None,
    turnaround_s=None,
    turnaround_parts_s={},
)


def shown(what: RenderableType) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=200).print(what)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def run_with(*accuracies: float | None, top5: float | None = None) -> Run:
    per_class = [
        ClassResult(name=name, num_images=0 if accuracy is None else 10, accuracy=accuracy)
        for name, accuracy in zip("abcdef", accuracies, strict=False)
    ]
    evaluation = Evaluation(
        epoch=3, num_images=1200, top1=0.9, top5=top5, loss=1.0, classes=[], per_class=per_class, confusion=[]
    )
    known = evaluation if accuracies else None
    return cast(Run, SimpleNamespace(evaluation=known, machine={"workers": 1}, epochs=[], imported=None))


def test_the_metrics_of_classes_in_one_line() -> None:
    known = replace(SUMMARY, macro_precision=0.91, macro_recall=0.9, macro_f1=0.905, calibration_error=0.032)
    line = "by class        precision 91.0 %, recall 90.0 %, F1 90.5 % (macro); calibration error 3.2 points"
    assert line in shown(run_end(known, run_with(0.9)))
    assert not any("by class" in line for line in shown(run_end(SUMMARY, run_with(0.9))))


def epoch(**noise: float | None) -> EpochRecord:
    return EpochRecord(
        epoch=1,
        train_loss=1.0,
        train_accuracy=0.5,
        val_loss=1.0,
        val_accuracy=0.5,
        epoch_time_s=1.0,
        images_per_s=1.0,
        learning_rate=0.1,
        **noise,  # type: ignore[arg-type]
    )


def test_the_noise_scale_in_words() -> None:
    run: Any = SimpleNamespace(
        epochs=[epoch(noise_scale=412.0, noise_scale_low=250.0, noise_scale_high=701.0), epoch()]
    )
    assert noise_sentence(run) == (
        "beyond about 410 images a step, more workers buy little (90 %: 250 to 701; an order of magnitude)"
    )
    run.epochs = [epoch(noise_scale=412.0, noise_scale_low=0.0, noise_scale_high=None)]
    assert noise_sentence(run) is None
    reason = "3 of at least 4 measurements: one step in 64 is measured"
    run.epochs = [replace(epoch(), noise_scale_reason=reason)]
    assert noise_sentence(run) == f"not known: {reason}"
    run.epochs = [replace(epoch(noise_scale_low=913.0), noise_scale_reason="it drowns")]
    assert noise_sentence(run) == (
        "at least about 910 images a step, so more workers still pay up to there (it drowns)"
    )
    run.epochs = [epoch()]
    assert noise_sentence(run) is None  # without an upper bound nothing is said
    run.epochs = [epoch()]
    assert noise_sentence(run) is None


def test_what_was_scaled_and_why() -> None:
    choices = {"scaling": {"value": 2.0, "reason": "Learning rate x 2."}}
    several: Any = SimpleNamespace(machine={"workers": 4, "choices": choices})
    assert scaling_sentence(several) == "Learning rate x 2."
    alone: Any = SimpleNamespace(machine={"workers": 1, "choices": choices})
    assert scaling_sentence(alone) is None


def test_every_part_of_the_time_has_a_name() -> None:
    assert {*DISJOINT_TIME_PARTS, "queue", "other", "preloaded"} <= set(PART_NAMES)


def test_runs_side_by_side() -> None:
    rehearsal = replace(SUMMARY, workers=8, processes=1, is_rehearsal=True)
    heading, real, rehearsed, nothing = shown(comparison([SUMMARY, rehearsal, NOTHING_YET]))
    assert heading.split() == ["workers", "processes", "batch", "s/epoch", "images/s", "best", "final", "turnaround"]
    assert " ".join(real.split()) == "4 4 128 12.34 1,234 91.2 % 90.0 % 75 s"
    assert " ".join(rehearsed.split()) == "8 1 128 (12.34) (1,234) 91.2 % 90.0 % (75 s) rehearsed"
    assert " ".join(nothing.split()) == "4 4 128 - - - - -"


def test_the_end_of_a_run() -> None:
    lines = shown(run_end(SUMMARY, run_with(0.9, 0.5, 0.7, top5=0.99)))
    assert [" ".join(line.split()) for line in lines] == [
        "final accuracy 90.0 % of 1,200 validation images, top-5 99.0 %",
        "best epoch 2 with 91.2 %",
        "weakest class b: 50.0 % of 10 images",
        "epoch time 12 s, 1,234 images/s",
        "turnaround 75 s: other epochs 70 s, starting up 5 s",
        "record runs/mine",
    ]


def test_a_few_findings_that_are_not_said_already_close_a_run() -> None:
    def finding(name: str, severity: Any = "note") -> Finding:
        return Finding(id=name, severity=severity, text=f"About {name}.", evidence=(), advice="Do this.")

    some = [finding("a", "problem"), finding("rehearsal-times", "caution"), *(finding(name) for name in "bcd")]
    lines = [" ".join(line.split()) for line in shown(run_end(SUMMARY, run_with(0.9), some))]
    assert lines[-4:] == ["problem About a.", "note About b.", "note About c.", "record runs/mine"]
    assert {rule.id for rule in RULES} >= SAID_ALREADY


def test_the_end_of_a_rehearsal_and_of_few_classes() -> None:
    lines = shown(run_end(replace(SUMMARY, is_rehearsal=True), run_with(0.9)))
    text = "\n".join(lines)
    assert "this machine's, for all workers together" in text
    assert "top-5" not in text
    assert "weakest class" not in text


def test_a_run_that_has_shown_nothing_yet() -> None:
    lines = shown(run_end(NOTHING_YET, run_with()))
    assert lines[0].split() == ["final", "accuracy", "-"]
    assert "None" not in "\n".join(lines)
    assert not any(line.startswith("best epoch") for line in lines)


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ((0.9, 0.5), "b: 50.0 % of 10 images"),
        ((0.5, 0.5), "a: 50.0 % of 10 images"),  # by name
        ((0.9, None, 0.8), "c: 80.0 % of 10 images"),  # a class without validation images has no accuracy
        ((0.9, None), None),
        ((), None),
    ],
)
def test_the_weakest_class(accuracies: tuple[Any, ...], expected: str | None) -> None:
    assert weakest_class(run_with(*accuracies)) == expected


def test_parts_largest_first_without_the_smallest() -> None:
    assert parts_sentence(SUMMARY) == "other epochs 70 s, starting up 5 s"
    unknown = replace(SUMMARY, turnaround_parts_s={"new_part": 1.0})
    assert parts_sentence(unknown) == "new_part 1 s"


def test_from_the_submission_to_the_first_step() -> None:
    """Of a job of a cluster; a run of one's own waits for nobody."""
    job = replace(SUMMARY, first_step_parts_s={"queue": 90.0, "import": 5.0, "start_up": 10.0})
    there: Any = SimpleNamespace(status=SimpleNamespace(job=object()))
    assert first_step_sentence(job, there) == (
        "105 s after it was submitted: the queue 90 s, importing torch 5 s, starting up 10 s"
    )
    here: Any = SimpleNamespace(status=SimpleNamespace(job=None))
    assert first_step_sentence(job, here) is None
    assert first_step_sentence(SUMMARY, there) is None


def test_brackets_in_names_stay_what_they_are() -> None:
    run: Any = run_with(0.9, 0.5)
    run.evaluation.per_class[1] = ClassResult(name="photos [old]/[/x]", num_images=10, accuracy=0.5)
    lines = shown(run_end(replace(SUMMARY, directory="runs/a [b]"), run))
    assert any("photos [old]/[/x]: 50.0 %" in line for line in lines)
    assert any(line.endswith("runs/a [b]") for line in lines)


def test_the_best_epoch_says_what_becomes_of_its_weights() -> None:
    run: Any = run_with(0.9, 0.5)
    assert best_sentence(SUMMARY, run) == "2 with 91.2 %"  # a run of before: none were kept
    kept = BestEpoch(epoch=2, val_accuracy=0.912, val_loss=0.3)
    run.evaluation = replace(run.evaluation, best=kept)
    assert best_sentence(replace(SUMMARY, epochs=3), run) == (
        "2 with 91.2 %: classify, export and serve use its weights; as the best of 3 it is optimistic"
    )
    assert best_sentence(replace(SUMMARY, epochs=1), run) == "2 with 91.2 %"


def test_a_time_limit_says_what_was_planned_and_what_was_done() -> None:
    run: Any = SimpleNamespace(status=Status(state="finished", epochs_planned=23))
    assert limit_sentence(SUMMARY, run) is None
    parts = {"queue": 900.0, "preloaded": 30.0, "training_cold": 581.0}
    limited = replace(SUMMARY, time_limit_s=600.0, epochs=23, turnaround_parts_s=parts)
    assert limit_sentence(limited, run) == "10 min: 23 epochs planned, 23 done in 9 min 41 s"
    late = limit_sentence(replace(limited, turnaround_parts_s={"training_cold": 700.0}), run)
    assert late is not None
    assert late.endswith("it was exceeded: an epoch is the least that is trained")


def test_an_early_stop_is_said_at_the_end() -> None:
    sentence = "Stopped early after epoch 12 of 30: no better for 5 epochs."
    lines = shown(run_end(replace(SUMMARY, stopped_early=sentence), run_with(0.9, 0.5)))
    assert any(" ".join(line.split()) == f"epochs {sentence}" for line in lines)
