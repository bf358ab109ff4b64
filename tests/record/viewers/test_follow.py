"""Following a run that grows, with viewers that work and viewers that do not."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from turnaround.errors import InputError, MissingPartError
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import Run
from turnaround.record.schema import EpochRecord
from turnaround.record.viewers import follow
from turnaround.record.viewers.follow import chosen, followed, scalars_of, settings_of
from turnaround.record.writer import truncate_epochs
from turnaround.recorder import Recorder


class Heard:
    """A viewer that keeps what it is told, and may be broken."""

    def __init__(self, breaks_at: str = "") -> None:
        self.breaks_at = breaks_at
        self.known: set[int] = set()
        self.calls: list[str] = []

    def _hear(self, what: str) -> None:
        self.calls.append(what)
        if what == self.breaks_at:
            raise ConnectionError("nobody\nthere")

    def begin(self, run: Run) -> set[int]:
        self._hear(f"begin {run.recipe['name']}")
        return self.known

    def epoch(self, record: EpochRecord) -> None:
        self._hear(f"epoch {record.epoch}")

    def end(self, run: Run) -> None:
        self._hear(f"end {run.status.state}")


@pytest.fixture
def viewers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Heard]:
    made = {"tensorboard": Heard(), "mlflow": Heard()}
    monkeypatch.setattr(follow, "VIEWERS", {name: partial(made.get, name) for name in made})
    monkeypatch.setattr(follow, "LOOK_EVERY_S", 0.02)
    return made


def train(path: Path, *, epochs: int = 3) -> None:
    time.sleep(0.05)
    with Recorder(path) as rec:
        for epoch in range(epochs):
            rec.epoch(val_accuracy=0.1 * epoch)
            time.sleep(0.05)


ALL = ["begin run", "epoch 1", "epoch 2", "epoch 3", "end finished"]


def test_every_viewer_hears_everything_once(tmp_path: Path, viewers: dict[str, Heard]) -> None:
    said: list[str] = []
    with followed(tmp_path / "run", ["tensorboard", "mlflow"], tell=said.append) as begin:
        begin()
        train(tmp_path / "run")
    assert said == []
    assert [viewer.calls for viewer in viewers.values()] == [ALL, ALL]


@pytest.mark.parametrize("breaks_at", ["begin run", "epoch 2", "end finished"])
def test_one_that_breaks_is_left_out_and_said_once(tmp_path: Path, viewers: dict[str, Heard], breaks_at: str) -> None:
    viewers["mlflow"].breaks_at = breaks_at
    said: list[str] = []
    with followed(tmp_path / "run", ["tensorboard", "mlflow"], tell=said.append) as begin:
        begin()
        train(tmp_path / "run")
    assert said == ["mlflow is left out, the training goes on: ConnectionError: nobody"]
    assert viewers["mlflow"].calls == ALL[: ALL.index(breaks_at) + 1]
    assert viewers["tensorboard"].calls == ALL


def test_a_run_that_never_begins_and_one_that_fails(tmp_path: Path, viewers: dict[str, Heard]) -> None:
    with followed(tmp_path / "none", ["mlflow"], tell=pytest.fail):
        pass
    assert viewers["mlflow"].calls == []

    def fails() -> None:
        with followed(tmp_path / "run", ["mlflow"], tell=pytest.fail) as begin:
            begin()
            train(tmp_path / "run", epochs=1 // 0)

    with pytest.raises(ZeroDivisionError):
        fails()
    assert viewers["mlflow"].calls == []


def test_of_a_run_that_is_not_ours_nobody_hears(tmp_path: Path, viewers: dict[str, Heard]) -> None:
    train(tmp_path / "run")
    with followed(tmp_path / "run", ["mlflow"], tell=pytest.fail):
        time.sleep(0.1)  # the command is refused meanwhile
    assert viewers["mlflow"].calls == []


def test_a_server_that_hangs_is_waited_for_only_so_long(
    tmp_path: Path, viewers: dict[str, Heard], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "MAX_END_S", 0.1)
    answers = threading.Event()
    monkeypatch.setattr(Heard, "end", lambda self, run: answers.wait(60))
    said: list[str] = []
    began_s = time.monotonic()
    with followed(tmp_path / "run", ["mlflow"], tell=said.append) as begin:
        begin()
        train(tmp_path / "run", epochs=1)
    assert time.monotonic() - began_s < 30
    answers.set()
    assert said == ["mlflow did not take the last epochs within 0 s."]


def test_a_viewer_of_a_resumed_run_hears_what_it_missed_and_what_is_done_again(
    tmp_path: Path, viewers: dict[str, Heard]
) -> None:
    train(tmp_path / "run")
    viewers["tensorboard"].known = {1, 3}
    follower = follow.ViewerFeed(RunDirectory(tmp_path / "run"), list(viewers), tell=pytest.fail)
    follower.viewers |= viewers
    follower.is_ours.set()
    follower.look()
    epochs = tmp_path / "run" / "epochs.jsonl"
    third = epochs.read_text().splitlines()[2].replace('"segment":1', '"segment":2').partition(',"crc"')[0] + "}"
    truncate_epochs(epochs, 2)
    follower.look()
    with epochs.open("a") as file:
        file.write(third + "\n")
    follower.look()
    assert viewers["tensorboard"].calls == ["begin run", "epoch 2", "epoch 3"]
    assert viewers["mlflow"].calls == ["begin run", "epoch 1", "epoch 2", "epoch 3", "epoch 3"]


# --- the option


def test_which_viewers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "find_spec", lambda name: name)
    assert chosen(()) == ()
    assert chosen(["tensorboard,mlflow", "mlflow"]) == ("tensorboard", "mlflow")
    with pytest.raises(InputError, match=r"Unknown viewer for --log 'tensorbord'\. Did you mean 'tensorboard'\?"):
        chosen(["tensorbord"])
    with pytest.raises(InputError, match=r"--log names no viewer\. Valid: tensorboard, mlflow, wandb, trackio"):
        chosen([","])


def test_one_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "find_spec", lambda name: None)
    with pytest.raises(MissingPartError, match=r"not installed: pip install 'turnaround\[mlflow\]'"):
        chosen(["mlflow"])


def test_numbers_and_settings(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run", model="toy", classes=["a", "b"], epochs=2) as rec:
        rec.epoch(train_loss=float("nan"), val_accuracy=0.5, learning_rate=0.1)
    run = Run.load(tmp_path / "run")
    assert {"val_accuracy", "learning_rate"} <= set(scalars_of(run.epochs[0]))
    assert "train_loss" not in scalars_of(run.epochs[0])
    settings = settings_of(run.recipe)
    assert (settings["model.name"], settings["name"], settings["training.epochs"]) == ("toy", "run", "2")
    assert "images.classes" not in settings


# --- TensorBoard's own reader, where it is installed


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="no tensorboard here")
def test_what_tensorboard_reads(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with followed(tmp_path / "run", ["tensorboard"], tell=pytest.fail) as begin:
        begin()
        train(tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "logs" / "tensorboard"))
    events.Reload()
    assert [(e.step, round(e.value, 6)) for e in events.Scalars("accuracy/validation")] == [
        (1, 0.0),
        (2, 0.1),
        (3, 0.2),
    ]


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="no tensorboard here")
def test_tensorboard_knows_what_it_has(tmp_path: Path) -> None:
    from turnaround.record.viewers.tensorboard import TensorBoard

    with followed(tmp_path / "run", ["tensorboard"], tell=pytest.fail) as begin:
        begin()
        train(tmp_path / "run")
    run = Run.load(tmp_path / "run")
    again = TensorBoard()
    assert again.begin(run) == {1, 2, 3}
    again.end(run)


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="no tensorboard here")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--on", "slurm", "--log", "tensorboard"],
            "--log tensorboard follows a run of this machine",
        ),
        (["--log", "comet"], "Unknown viewer for --log 'comet'. Valid: tensorboard, mlflow, wandb, trackio."),
    ],
)
def test_the_command_line_refuses(tmp_path: Path, arguments: list[str], message: str) -> None:
    command = [sys.executable, "-m", "turnaround", "train", "fruitbowl", "--out", str(tmp_path / "run"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "run").exists()
