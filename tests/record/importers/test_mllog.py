"""The :::MLLOG lines of an MLPerf log."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from turnaround.errors import InputError
from turnaround.record.importers.read import read_runs
from turnaround.record.importers.values import ImportedRun, ImportOptions, Reading

START_MS = 1_700_000_000_000


def line(at_s: float, key: str, value: Any = None, **metadata: Any) -> str:
    kind = "INTERVAL_START" if key.endswith("_start") else "INTERVAL_END" if key.endswith("_stop") else "POINT_IN_TIME"
    content = {
        "namespace": "",
        "time_ms": START_MS + int(1000 * at_s),
        "event_type": kind,
        "key": key,
        "value": value,
        "metadata": {"file": "train.py", "lineno": 7, **metadata},
    }
    return f":::MLLOG {json.dumps(content)}"


LOG = (
    "some chatter of the launcher",
    line(0, "cache_clear", True),
    line(1, "submission_benchmark", "resnet"),
    line(1, "submission_platform", "1xDGX-A100"),
    line(1, "global_batch_size", 256),
    line(1, "train_samples", 1_281_167),
    line(1, "eval_samples", 50_000),
    line(1, "seed", 17),
    line(0, "init_start"),
    line(20, "init_stop"),
    line(20, "run_start"),
    line(20, "epoch_start", epoch_num=1),
    line(50, "epoch_stop", epoch_num=1),
    "0: " + line(55, "eval_accuracy", 0.25, epoch_num=1),
    line(55, "epoch_start", epoch_num=2),
    line(83, "epoch_stop", epoch_num=2),
    line(90, "eval_accuracy", 0.76, epoch_num=2),
    line(91, "run_stop", None, status="success"),
)


def read(tmp_path: Path, *lines: str, is_percent: bool = False, **given: Any) -> Reading:
    file = tmp_path / "result_0.txt"
    file.write_text("\n".join(lines) + "\n")
    return read_runs(file, options=ImportOptions(**given), is_percent=is_percent)


def only(reading: Reading) -> ImportedRun:
    (run,) = reading.runs
    return run


def test_a_log_becomes_a_run(tmp_path: Path) -> None:
    reading = read(tmp_path, *LOG, workers=8, gpu="A100", dataset="imagenet", nodes=1)
    run = only(reading)
    assert (run.name, run.format, run.source) == ("result_0", "mllog", "result_0.txt")
    assert (run.workers, run.gpu, run.nodes, run.network, run.dataset) == (8, "A100", 1, "resnet", "imagenet")
    assert (run.batch_per_worker, run.batch_total, run.images_per_epoch) == (32, None, 1_281_167)
    assert (run.num_validation, run.seed) == (50_000, 17)
    assert (run.job_time_s, run.start_up_s, run.epoch_time_s) == (91.0, 20.0, 29.0)
    assert (run.state, run.cause, run.epochs, run.val_accuracy) == ("finished", None, 2, 0.76)
    assert [(e.epoch, e.val_accuracy, e.epoch_time_s) for e in run.curve] == [(1, 0.25, 30.0), (2, 0.76, 28.0)]
    assert math.isnan(run.curve[0].train_accuracy)
    assert (reading.left_out, reading.notes) == ((), ())


def test_what_the_log_does_not_say_is_assumed_and_said(tmp_path: Path) -> None:
    reading = read(tmp_path, *LOG)
    run = only(reading)
    assert (run.workers, run.gpu, run.batch_per_worker) == (1, "1xDGX-A100", 256)
    assert "1 is assumed" in reading.notes[0]
    assert "its platform, '1xDGX-A100', stands for it. Give --gpu NAME" in reading.notes[1]


def test_the_number_of_accelerators_may_be_in_the_log(tmp_path: Path) -> None:
    run = only(read(tmp_path, line(0, "number_of_ranks", 16), line(0, "number_of_nodes", 2), *LOG))
    assert (run.workers, run.nodes, run.batch_per_worker) == (16, 2, 16)
    assert only(read(tmp_path, line(0, "number_of_ranks", 16), *LOG, workers=8)).workers == 8


def test_a_batch_that_is_no_multiple_of_the_workers_stays_whole(tmp_path: Path) -> None:
    run = only(read(tmp_path, *LOG, workers=3))
    assert (run.batch_per_worker, run.batch_total) == (None, 256)


@pytest.mark.parametrize(
    ("end", "state", "words"),
    [
        ((line(91, "run_stop", None, status="aborted"),), "failed", "says: aborted"),
        ((), "running", "no run_stop"),
    ],
)
def test_how_it_ended(end: tuple[str, ...], state: str, words: str, tmp_path: Path) -> None:
    run = only(read(tmp_path, *LOG[:-1], *end))
    assert run.state == state
    assert words in (run.cause or "")


def test_blocks_of_epochs_and_epochs_from_zero(tmp_path: Path) -> None:
    lines = (
        line(0, "run_start"),
        line(0, "block_start", first_epoch_num=0, epoch_count=4),
        line(40, "block_stop", first_epoch_num=0),
        line(41, "eval_accuracy", 0.5, epoch_num=0),
        line(45, "eval_accuracy", 0.6, epoch_num=3.0),
    )
    run = only(read(tmp_path, *lines))
    assert [(e.epoch, e.epoch_time_s) for e in run.curve] == [(1, 10.0), (4, 10.0)]
    assert run.epoch_time_s == 10.0


def test_lines_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    lines = (
        *LOG[:-1],
        line(91, "eval_accuracy", 1.5, epoch_num=3),
        line(91, "eval_accuracy", "good", epoch_num=3),
        line(91, "eval_accuracy", 0.5),
        LOG[-1][:60],
    )
    reading = read(tmp_path, *lines)
    assert {item.where: item.reason for item in reading.left_out} == {
        "line 18": "eval_accuracy must be from 0 to 1, received 1.5: percent among fractions?",
        "line 19": "eval_accuracy must be a number, received 'good'",
        "line 20": "eval_accuracy needs an epoch_num from 0, received None",
        "line 21": "not a whole MLLOG line",
    }
    assert len(only(reading).curve) == 2


def test_percent(tmp_path: Path) -> None:
    lines = (line(0, "run_start"), line(1, "eval_accuracy", 75.9, epoch_num=1))
    with pytest.raises(InputError, match="eval_accuracy looks like percent; give --percent"):
        read(tmp_path, *lines)
    assert only(read(tmp_path, *lines, is_percent=True)).val_accuracy == 0.759


def test_two_runs_in_one_log_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has 2 runs in it \(run_start in lines 11, 29\)"):
        read(tmp_path, *LOG, *LOG)


def test_a_log_without_a_whole_line_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"(?s)Nothing in .*line 1: not a whole MLLOG line"):
        read(tmp_path, ':::MLLOG {"key": "run_start"')


def test_names_lose_what_a_terminal_would_obey(tmp_path: Path) -> None:
    file = tmp_path / "log"
    lines = (line(0, "submission_platform", "DGX\x1b[31m \x07"), line(0, "submission_benchmark", "\x1b"), *LOG[4:])
    file.write_text("\n".join(lines))
    (run,) = read_runs(file, options=ImportOptions()).runs
    assert (run.gpu, run.network) == ("DGX [31m", None)
