"""Real event files, written by TensorBoard's own writer."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from turnaround.errors import InputError, MissingPartError
from turnaround.record.importers.read import read_runs
from turnaround.record.importers.values import ImportOptions, Reading
from turnaround.record.metric_names import metric_of

pytest.importorskip("tensorboard")


def write_scalars(
    folder: Path,
    tags: dict[str, Sequence[float]],
    *,
    steps: Sequence[int] | None = None,
    as_tensors: bool = False,
    seconds_apart: float = 10.0,
) -> None:
    """An event file in the folder. TensorFlow 2 writes scalars as tensors, others as simple values."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
    from tensorboard.util.tensor_util import make_tensor_proto

    plugin = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"))
    writer = EventFileWriter(str(folder))
    for tag, values in tags.items():
        for number, value in enumerate(values):
            content: dict[str, Any] = {"simple_value": value}
            if as_tensors:
                content = {"tensor": make_tensor_proto(value), "metadata": plugin}
            step = number if steps is None else steps[number]
            at_s = 1_700_000_000 + seconds_apart * number
            writer.add_event(
                Event(wall_time=at_s, step=step, summary=Summary(value=[Summary.Value(tag=tag, **content)]))
            )
    writer.close()


def read(path: Path, *, is_percent: bool = False, **given: Any) -> Reading:
    return read_runs(path, options=ImportOptions(**given), is_percent=is_percent)


def test_the_folders_that_keras_writes(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    write_scalars(folder / "train", {"epoch_accuracy": [0.5, 0.75], "epoch_loss": [2.0, 1.0]}, as_tensors=True)
    validation = {
        "epoch_accuracy": [0.4, 0.6],
        "epoch_loss": [2.5, 1.5],
        "evaluation_accuracy_vs_iterations": [0.1, 0.2],
    }
    write_scalars(folder / "validation", validation, as_tensors=True)
    reading = read(folder, workers=2, gpu="T4")
    (run,) = reading.runs
    assert (run.name, run.format, run.source, run.workers, run.gpu) == ("logs", "tensorboard", "logs", 2, "T4")
    assert (run.epochs, run.train_accuracy, run.val_accuracy) == (2, 0.75, 0.6)
    first, second = run.curve
    assert (first.epoch, first.train_loss, first.val_loss) == (1, 2.0, 2.5)
    assert math.isnan(first.epoch_time_s)
    assert second.epoch_time_s == 10.0
    assert (reading.left_out, reading.notes) == ((), ())


def test_tags_of_others_in_one_folder(tmp_path: Path) -> None:
    tags = {
        "Accuracy/val": [0.1, 0.2, 0.3],
        "Accuracy/train": [0.2, 0.4, 0.6],
        "Loss/train": [3.0, 2.0, 1.0],
        "lr": [1.0],
    }
    write_scalars(tmp_path / "mine", tags, steps=[1, 2, 3])
    (run,) = read(tmp_path / "mine").runs
    assert [e.val_accuracy for e in run.curve] == [0.1, 0.2, 0.3]  # and not 0.10000000149
    assert [e.train_loss for e in run.curve] == [3.0, 2.0, 1.0]


@pytest.mark.parametrize(
    ("tag", "folder", "metric"),
    [
        ("val_accuracy", "", "val_accuracy"),
        ("accuracy", "", "train_accuracy"),
        ("epoch_accuracy", "validation", "val_accuracy"),
        ("epoch_sparse_categorical_accuracy", "train", "train_accuracy"),
        ("Loss/test", "train", "val_loss"),
        ("valid-acc", "", "val_accuracy"),
        ("val/acc@1", "", "val_accuracy"),
        ("val/acc@5", "", None),
        ("top5_accuracy", "validation", None),
        ("batch_loss", "", None),
        ("train_loss_step", "", None),
        ("evaluation_loss_vs_iterations", "validation", None),
        ("epoch_learning_rate", "train", None),
    ],
)
def test_a_series_is_recognised_by_its_words(tag: str, folder: str, metric: str | None) -> None:
    assert metric_of(tag, folder) == metric


def test_several_runs_below_one_folder(tmp_path: Path) -> None:
    for name, accuracy in (("a/train", 0.5), ("a/validation", 0.4), ("b", 0.3)):
        write_scalars(tmp_path / "all" / name, {"epoch_accuracy": [accuracy]})
    runs = read(tmp_path / "all").runs
    assert [(run.name, run.val_accuracy, run.train_accuracy) for run in runs] == [("a", 0.4, 0.5), ("b", None, 0.3)]
    with pytest.raises(InputError, match=r"--name is for one run; .* has 2"):
        read(tmp_path / "all", name="x")


def test_steps_that_count_updates_are_put_in_order(tmp_path: Path) -> None:
    write_scalars(tmp_path / "run", {"val_acc": [0.4, 0.5, 0.6]}, steps=[99, 199, 299])
    write_scalars(tmp_path / "run", {"train_loss": [float(n) for n in range(6)]}, steps=[49, 99, 149, 199, 249, 299])
    reading = read(tmp_path / "run")
    assert [(e.epoch, e.train_loss) for e in reading.runs[0].curve] == [(1, 1.0), (2, 3.0), (3, 5.0)]
    assert "run: the steps of 'val_acc' are no epochs" in reading.notes[1]


def test_of_several_series_one_is_taken_and_said(tmp_path: Path) -> None:
    write_scalars(tmp_path / "run", {"val_accuracy": [0.5], "val_balanced_accuracy": [0.4]})
    reading = read(tmp_path / "run", workers=1)
    assert reading.runs[0].val_accuracy == 0.5
    assert reading.notes == (
        "run: of several series for val_accuracy, 'val_accuracy' was taken, not 'val_balanced_accuracy'.",
    )


def test_values_that_are_no_accuracies_are_counted(tmp_path: Path) -> None:
    write_scalars(tmp_path / "run", {"val_accuracy": [0.5, -1.0, 0.6], "val_loss": [1.0, math.nan, 1.0]})
    reading = read(tmp_path / "run", workers=1)
    assert [e.val_accuracy for e in reading.runs[0].curve] == [0.5, 0.6]
    assert "1 values of 'val_accuracy' are no accuracies" in reading.notes[0]


def test_percent(tmp_path: Path) -> None:
    write_scalars(tmp_path / "run", {"val_accuracy": [50.0, 62.5]})
    with pytest.raises(InputError, match="val_accuracy looks like percent; give --percent"):
        read(tmp_path / "run")
    assert read(tmp_path / "run", is_percent=True).runs[0].val_accuracy == 0.625


def test_a_single_event_file(tmp_path: Path) -> None:
    write_scalars(tmp_path / "run", {"val_accuracy": [0.5]})
    (file,) = (tmp_path / "run").iterdir()
    (run,) = read(file).runs
    assert (run.name, run.source, run.val_accuracy) == ("run", file.name, 0.5)
    with pytest.raises(InputError, match=r"x\.csv is an event file, .* Rename it"):
        read(file.rename(tmp_path / "x.csv"))


def test_without_accuracy_or_loss_the_tags_are_listed(tmp_path: Path) -> None:
    write_scalars(tmp_path / "run", {"weights": [1.0], "temperature": [2.0]})
    with pytest.raises(InputError, match="no accuracy and no loss among its scalars: 'temperature', 'weights'"):
        read(tmp_path / "run")


def test_a_torn_file_gives_what_is_whole_and_a_damaged_one_nothing(tmp_path: Path) -> None:
    write_scalars(tmp_path / "run", {"val_accuracy": [0.5, 0.6, 0.7]})
    (file,) = (tmp_path / "run").iterdir()
    file.write_bytes(file.read_bytes()[:-10])
    assert read(tmp_path / "run").runs[0].val_accuracy == 0.6
    file.write_bytes(b"rubbish" * 100)
    with pytest.raises(InputError, match="no scalars in it"):
        read(tmp_path / "run")


def test_without_tensorboard_the_command_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_scalars(tmp_path / "run", {"val_accuracy": [0.5]})
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_accumulator", None)
    with pytest.raises(MissingPartError, match=r"pip install 'turnaround\[tensorboard\]'"):
        read(tmp_path / "run")
