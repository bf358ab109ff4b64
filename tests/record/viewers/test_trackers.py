"""A run in W&B, kept offline, and in trackio: the real packages write, our importers read what they wrote."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from struck import waits_for
from turnaround.errors import InputError
from turnaround.record.importers.read import read_runs
from turnaround.record.importers.values import ImportOptions
from turnaround.record.reader import Run
from turnaround.record.viewers import trackers
from turnaround.record.viewers.follow import followed
from turnaround.recorder import Recorder


def record(path: Path) -> None:
    with Recorder(path, epochs=3, model="toy", batch_per_worker=8) as rec:
        for epoch in range(3):
            rec.epoch(train_loss=1.0 - 0.25 * epoch, val_accuracy=0.25 * epoch, learning_rate=0.1)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("TRACKIO_PROJECT", "fruit")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def num_epochs_in(source: Path) -> int:
    try:
        return sum(len(run.curve) for run in read_runs(source, options=ImportOptions()).runs)
    except InputError:
        return 0


@pytest.mark.frameworks
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("viewer", ["wandb", "trackio"])
def test_what_was_sent_can_be_imported_again(
    viewer: str, place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trackers, "MAX_START_S", 90.0)  # a busy machine
    if viewer == "trackio":  # it reads its folder when it is imported
        for name in [name for name in sys.modules if name.split(".")[0] == "trackio"]:
            monkeypatch.delitem(sys.modules, name)
    with followed(place / "mine", [viewer], tell=pytest.fail) as begin:
        record(place / "mine")
        begin()
    source = place / "trackio" / "fruit.db" if viewer == "trackio" else next(place.glob("wandb/offline-run-*"))
    # A service of W&B's own writes the file: once it was still empty when `finish` had returned.
    waits_for(lambda: num_epochs_in(source) == 3, seconds=30)
    (run,) = read_runs(source, options=ImportOptions()).runs
    assert run.name == "mine"
    sent = [(e.epoch, e.train_loss, e.val_accuracy, e.learning_rate) for e in run.curve]
    assert sent == [(1, 1.0, 0.0, 0.1), (2, 0.75, 0.25, 0.1), (3, 0.5, 0.5, 0.1)]
    assert capfd.readouterr().out == ""  # stdout belongs to the result
    known = (trackers.WandB() if viewer == "wandb" else trackers.Trackio())._note.load(Run.load(place / "mine"))
    assert known == {1, 2, 3}
    if viewer == "wandb":  # the command line of this process is nobody's business
        assert sys.argv[0].encode() not in next(source.glob("run-*.wandb")).read_bytes()


def test_wandb_without_a_key_does_not_ask_at_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with pytest.raises(InputError, match=r"W&B has no key here\. Set WANDB_API_KEY, or WANDB_MODE=offline"):
        trackers.WandB()
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password 0123\n")
    (tmp_path / "netrc").chmod(0o600)
    assert trackers._has_key()
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.lab.example")
    assert not trackers._has_key()
