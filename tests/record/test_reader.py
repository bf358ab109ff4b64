"""What was written is read back; whatever else is in the files, only our own errors come out."""

import dataclasses
import json
import math
import os
import subprocess
import sys
from operator import attrgetter, methodcaller
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turnaround.errors import RunDirectoryError, TurnaroundError
from turnaround.record import files, growing, layout
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import Run, find_runs
from turnaround.record.schema import (
    EpochRecord,
    Evaluation,
    Imported,
    JobStatus,
    Span,
    Status,
    TelemetrySample,
    to_json,
)
from turnaround.record.writer import Lines, write_json


def epoch_line(epoch: int, val_accuracy: float = 0.5, **values) -> dict:
    record = EpochRecord(
        epoch=epoch,
        train_loss=1.0,
        train_accuracy=0.5,
        val_loss=1.0,
        val_accuracy=val_accuracy,
        epoch_time_s=2.0,
        images_per_s=50.0,
        learning_rate=0.1,
        **values,
    )
    return to_json(record)


def make_run(path: Path, accuracies=(0.5, 0.9, 0.8), **machine) -> RunDirectory:
    directory = RunDirectory.create(path)
    write_json(directory.recipe, {"data": {"source": "fruitbowl"}})
    write_json(directory.machine, {"workers": 4, "processes": 1} | machine)
    times = {"start_up": 3.0, "decode": 1.0, "training_cold": 4.0, "training_steady": 8.0, "program": 20.0}
    status = Status(
        state="finished",
        submitted_at="2026-03-01T09:00:00+00:00",
        started_at="2026-03-01T09:02:00+00:00",
        time_s=times,
    )
    write_json(directory.status, to_json(status))
    with Lines(directory.epochs, sync=True) as lines:
        for epoch, accuracy in enumerate(accuracies, 1):
            lines.write(epoch_line(epoch, accuracy))
    return directory


def test_a_run_is_read_back(tmp_path):
    directory = make_run(tmp_path)
    evaluation = Evaluation(
        epoch=3, num_images=1, top1=1.0, top5=None, loss=0.1, classes=["a"], per_class=[], confusion=[[1]]
    )
    write_json(directory.evaluation, to_json(evaluation))
    run = Run.load(tmp_path)
    assert run.path == tmp_path
    assert run.recipe == {"data": {"source": "fruitbowl"}}
    assert run.machine == {"workers": 4, "processes": 1}
    assert run.status.state == "finished"
    assert [record.epoch for record in run.epochs] == [1, 2, 3]
    assert run.evaluation == evaluation
    assert (run.best, run.final) == (0.9, 0.8)
    assert (run.bad_lines, run.is_torn) == (0, False)


def test_a_run_that_has_just_begun(tmp_path):
    directory = RunDirectory.create(tmp_path)
    write_json(directory.recipe, {})
    write_json(directory.status, to_json(Status(state="queued")))
    run = Run.load(tmp_path)
    assert run.status.state == "queued"
    assert run.epochs == [] == run.spans(0) == run.ranks
    assert run.telemetry() == {} == run.turnaround_parts()
    assert run.evaluation is run.best is run.final is None
    with pytest.raises(RunDirectoryError, match=r"machine\.json is missing: the run has not come that far"):
        _ = run.machine


def test_only_an_imported_run_says_so(tmp_path):
    directory = make_run(tmp_path)
    assert Run.load(tmp_path).imported is None
    imported = Imported(source="runs.csv", format="table", epochs=30, missing=["val_accuracy"])
    write_json(directory.imported, to_json(imported))
    assert Run.load(tmp_path).imported == imported
    directory.imported.write_text('{"source": 3, "source_format": "table"}')
    with pytest.raises(RunDirectoryError, match=r"imported\.json: source: expected a text, received 3"):
        _ = Run.load(tmp_path).imported


def test_accuracies_that_are_no_numbers_are_not_the_best(tmp_path):
    make_run(tmp_path, accuracies=(0.4, math.nan))
    assert (Run.load(tmp_path).best, Run.load(tmp_path).final) == (0.4, None)


@pytest.mark.parametrize(("workers", "processes", "expected"), [(8, 1, True), (8, 8, False), (1, 1, False)])
def test_a_rehearsal_has_more_workers_than_processes(tmp_path, workers, processes, expected):
    make_run(tmp_path, workers=workers, processes=processes)
    assert Run.load(tmp_path).is_rehearsal is expected


def test_a_machine_without_counts_is_an_error(tmp_path):
    make_run(tmp_path, workers="many")
    with pytest.raises(RunDirectoryError, match=r"machine\.json: workers and processes must be whole numbers"):
        _ = Run.load(tmp_path).is_rehearsal


def test_the_parts_add_up_to_the_turnaround(tmp_path):
    make_run(tmp_path)
    parts = Run.load(tmp_path).turnaround_parts()
    assert list(parts) == ["queue", "start_up", "decode", "training_cold", "training_steady", "other"]
    assert sum(parts.values()) == 120 + 20


def test_a_requeued_job_waits_again(tmp_path):
    directory = make_run(tmp_path)
    queue_s = Run.load(tmp_path).turnaround_parts()["queue"]
    status = Run.load(tmp_path).status
    for again_s, expected_s in ((30.0, 30.0), (math.nan, 0.0), (-5.0, 0.0)):
        slurm = JobStatus(job_id="7", requeued_s=again_s)
        write_json(directory.status, to_json(dataclasses.replace(status, job=slurm)))
        assert Run.load(tmp_path).turnaround_parts()["queue"] == queue_s + expected_s


def test_from_the_submission_to_the_first_step(tmp_path):
    directory = make_run(tmp_path)
    at = "2026-03-01T09:{:02d}:00+00:00"
    status = Status(state="running", submitted_at=at.format(0), started_at=at.format(2), first_step_at=at.format(3))
    for changes, expected in (
        ({"time_s": {"import": 12.0}}, {"queue": 120.0, "import": 12.0, "start_up": 48.0}),
        ({"time_s": {"import": 12.0}, "segments": 2}, {"queue": 120.0, "start_up": 60.0}),
        ({"time_s": {"import": math.nan}}, {"queue": 120.0, "start_up": 60.0}),
        ({"time_s": {"import": 99.0}}, {"queue": 120.0, "start_up": 60.0}),
        ({"first_step_at": None}, {}),
    ):
        write_json(directory.status, to_json(dataclasses.replace(status, **changes)))
        assert Run.load(tmp_path).first_step_parts() == expected


@pytest.mark.fault(28, "clocks of two hosts differ: a duration between them is left out, never negative")
@pytest.mark.parametrize("started_at", [None, "yesterday", "2026-03-01T08:59:00+00:00", "2026-03-01T09:01:00"])
def test_a_queue_that_cannot_be_known_is_left_out(tmp_path, started_at):
    directory = make_run(tmp_path)
    status = Status(state="finished", submitted_at="2026-03-01T09:00:00+00:00", started_at=started_at)
    write_json(directory.status, to_json(status))
    assert Run.load(tmp_path).turnaround_parts() == {}


@pytest.mark.fault(22, "garbage within the record: skipped and counted")
def test_damage_in_the_epochs_is_skipped_counted_and_shown(tmp_path):
    directory = make_run(tmp_path)
    with directory.epochs.open("ab") as file:
        file.write(b"\xff\xfe\n[1]\n" + b"{}\n" + b"[" * 9000 + b"\n" + b"9" * 9000 + b"\n")
        file.write(json.dumps(epoch_line(0)).encode() + b"\n")
        file.write(json.dumps(epoch_line(2, 0.7, segment=2)).encode() + b"\n")
        file.write(json.dumps(epoch_line(4)).encode())  # whole, but not ended: torn
    run = Run.load(tmp_path)
    assert [record.epoch for record in run.epochs] == [1, 2, 3]
    assert (run.epochs[1].val_accuracy, run.epochs[1].segment) == (0.7, 2)
    assert run.bad_lines == 6
    assert run.is_torn


@pytest.mark.fault(22, "more than 1 % of the lines are damaged and epochs are missing: no figures from the rest")
def test_figures_from_the_rest_of_a_damaged_curve_are_refused(tmp_path):
    directory = make_run(tmp_path, accuracies=[0.5] * 150)
    lines = directory.epochs.read_bytes().splitlines(keepends=True)
    directory.epochs.write_bytes(b"".join([*lines[:70], b"garbage\n", *lines[71:]]))
    Run.load(tmp_path).check_epochs()  # one of 150
    directory.epochs.write_bytes(b"".join([*lines[:70], b"garbage\n", b"{}\n", *lines[72:]]))
    with pytest.raises(RunDirectoryError, match=r"epochs.jsonl: 2 of 150 lines cannot be read, and epochs are missing"):
        Run.load(tmp_path).check_epochs()
    directory.epochs.write_bytes(b"".join([b"garbage\n"] * 5 + lines))
    Run.load(tmp_path).check_epochs()  # none is missing: damage that a resume has repaired


def test_an_endless_line_is_skipped_once(tmp_path, monkeypatch):
    monkeypatch.setattr(growing, "MAX_LINE_BYTES", 600)
    directory = make_run(tmp_path)
    with directory.epochs.open("ab") as file:
        file.write(
            b" " * 1200 + json.dumps(epoch_line(9)).encode() + b"\n" + json.dumps(epoch_line(4)).encode() + b"\n"
        )
    run = Run.load(tmp_path)
    assert [record.epoch for record in run.epochs] == [1, 2, 3, 4]
    assert run.bad_lines == 1


def test_lines_of_a_newer_format_are_refused_not_skipped(tmp_path):
    directory = make_run(tmp_path)
    with Lines(directory.epochs, sync=True) as lines:
        lines.write(epoch_line(4) | {"format": 2})
    with pytest.raises(RunDirectoryError, match=r"epochs\.jsonl: written in format 2 by a newer turnaround"):
        _ = Run.load(tmp_path).epochs


def test_not_a_number_of_a_careless_writer_is_none(tmp_path):
    directory = make_run(tmp_path)
    line = json.dumps(epoch_line(4) | {"val_loss": float("nan"), "noise_scale": float("-inf")})
    assert "NaN" in line
    with directory.epochs.open("a") as file:
        file.write(line + "\n")
    record = Run.load(tmp_path).epochs[-1]
    assert math.isnan(record.val_loss)
    assert record.noise_scale is None


def test_spans_are_read_by_step_and_a_repeated_step_counts_once(tmp_path):
    directory = make_run(tmp_path)
    with Lines(directory.spans(1), sync=False) as lines:
        for step, wait_s in ((1, 0.1), (2, 0.2), (3, 0.3), (2, 0.9)):
            span = Span(step=step, epoch=1, wait_s=wait_s, copy_s=0, compute_s=0, reduce_s=0, update_s=0)
            lines.write(to_json(span))
    run = Run.load(tmp_path)
    assert run.ranks == [1]
    assert [(span.step, span.wait_s) for span in run.spans(1)] == [(1, 0.1), (2, 0.9), (3, 0.3)]


def test_telemetry_is_read_by_host_with_its_notes(tmp_path):
    directory = make_run(tmp_path)
    with Lines(directory.telemetry("node1"), sync=False) as lines:
        lines.write({"note": "GPU 0: lost"})
        lines.write(to_json(TelemetrySample(time_s=1.0, at="2026-03-01T09:00:00+00:00")))
    run = Run.load(tmp_path)
    assert [sample.time_s for sample in run.telemetry()["node1"]] == [1.0]
    assert run.telemetry_notes() == {"node1": ["GPU 0: lost"]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "damaged: not JSON"),
        (b"\xff", "damaged: not JSON"),
        (b"[" * 9000, "damaged: not JSON"),
        (b"9" * 9000, "damaged: not JSON"),
        (b"[1]", "damaged: not a JSON object"),
        (b'{"state": "asleep"}', "state: expected one of queued"),
        (b'{"format": 7, "state": "running"}', "newer turnaround"),
        (b'{"format": "x", "state": "running"}', "format: expected a version number"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, content, words):
    directory = make_run(tmp_path)
    directory.status.write_bytes(content)
    with pytest.raises(RunDirectoryError, match=rf"status\.json.*{words}"):
        _ = Run.load(tmp_path).status


def test_what_is_not_a_plain_file_is_refused_without_waiting(tmp_path):
    directory = make_run(tmp_path)
    directory.status.unlink()
    os.mkfifo(directory.status)
    with pytest.raises(RunDirectoryError, match=r"status\.json is not a plain file"):
        _ = Run.load(tmp_path).status
    directory.machine.unlink()
    directory.machine.mkdir()
    with pytest.raises(RunDirectoryError, match=r"machine\.json is not a plain file"):
        _ = Run.load(tmp_path).machine
    directory.evaluation.symlink_to("/etc/hostname")
    with pytest.raises(RunDirectoryError, match=r"evaluation\.json is a symbolic link"):
        _ = Run.load(tmp_path).evaluation
    directory.epochs.unlink()
    directory.epochs.symlink_to(tmp_path / "nowhere")
    with pytest.raises(RunDirectoryError, match=r"epochs\.jsonl is a symbolic link"):
        _ = Run.load(tmp_path).epochs


def test_a_file_that_is_too_large_is_refused(tmp_path, monkeypatch):
    directory = make_run(tmp_path)
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 10)
    with pytest.raises(RunDirectoryError, match=r"recipe\.json is larger than"):
        _ = Run(directory).recipe


PARTS = [
    "recipe",
    "machine",
    "status",
    "epochs",
    "bad_lines",
    "evaluation",
    "imported",
    "best",
    "final",
    "is_rehearsal",
]
QUESTIONS = [attrgetter(name) for name in PARTS]
QUESTIONS += [
    methodcaller(name) for name in ("turnaround_parts", "first_step_parts", "spans", "telemetry", "telemetry_notes")
]


def read_everything(path: Path) -> None:
    """Any error but ours passes through and fails the test."""
    messages = []
    for question in QUESTIONS:
        try:
            question(Run.load(path))
        except TurnaroundError as error:
            messages.append(str(error))
    assert all(str(path) in message for message in messages)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
field_names = [
    *(
        "format",
        "epoch",
        "state",
        "time_s",
        "classes",
        "per_class",
        "confusion",
        "gpus",
        "note",
        "step",
        "at",
    ),
    *("workers", "processes", "submitted_at", "started_at", "val_accuracy", "source", "source_format", "missing"),
]
json_objects = st.dictionaries(st.sampled_from(field_names), json_values, max_size=6)
contents = st.binary(max_size=200) | st.lists(json_objects, max_size=3).map(
    lambda objects: "".join(json.dumps(item) + "\n" for item in objects).encode()
)
NAMES = [
    "recipe.json",
    "machine.json",
    "status.json",
    "epochs.jsonl",
    "evaluation.json",
    "imported.json",
    "spans-0.jsonl",
    "telemetry-h.jsonl",
]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(by_name=st.dictionaries(st.sampled_from(NAMES), contents, min_size=1))
def test_whatever_is_in_the_files_only_our_errors_come_out(tmp_path, by_name):
    for name in NAMES:
        (tmp_path / name).write_bytes(by_name.get(name, b"{}"))
    read_everything(tmp_path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(NAMES[:4]),
    position=st.integers(0, 10_000),
    value=st.integers(0, 255),
    cut=st.booleans(),
)
def test_a_flipped_byte_or_a_cut_file_gives_values_or_our_error(tmp_path, name, position, value, cut):
    directory = tmp_path / "run"
    if not directory.exists():
        make_run(directory)
    original = (directory / name).read_bytes()
    position %= len(original)
    changed = original[:position] if cut else original[:position] + bytes([value]) + original[position + 1 :]
    (directory / name).write_bytes(changed)
    read_everything(directory)
    (directory / name).write_bytes(original)


def test_find_runs_finds_itself_one_level_and_nested_in_natural_order(tmp_path):
    for name in ("x", "run-10", "run-2", "study/w4/repeat-1", "study/w4/repeat-1/inside", ".hidden/run"):
        directory = tmp_path / "runs" / name
        directory.mkdir(parents=True, exist_ok=True)
        write_json(directory / "recipe.json", {})
    (tmp_path / "runs" / "loop").symlink_to(tmp_path / "runs")
    make_run(tmp_path / "elsewhere")
    (tmp_path / "runs" / "z-link").symlink_to(tmp_path / "elsewhere")
    found = [path.relative_to(tmp_path / "runs").as_posix() for path in find_runs(tmp_path / "runs")]
    assert found == ["run-2", "run-10", "study/w4/repeat-1", "x", "z-link"]
    assert find_runs(tmp_path / "elsewhere") == [tmp_path / "elsewhere"]


def test_find_runs_in_an_empty_folder_and_in_none(tmp_path):
    assert find_runs(tmp_path) == []
    with pytest.raises(RunDirectoryError, match="no such directory"):
        find_runs(tmp_path / "gone")


def test_load_of_what_is_no_run_says_so(tmp_path):
    with pytest.raises(RunDirectoryError, match=r"is not a run directory: no recipe\.json"):
        Run.load(tmp_path)


def test_the_room_needs_no_torch():
    room = Path(layout.__file__).parent
    modules = [path.stem for path in room.glob("*.py") if path.stem != "__init__"]
    code = "import sys; " + "; ".join(f"import turnaround.record.{name}" for name in modules)
    code += "; print([name for name in ('torch', 'numpy', 'pynvml') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
