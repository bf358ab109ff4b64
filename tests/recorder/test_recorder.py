"""A recorder beside somebody else's loop: what it writes, and that it is never in the way."""

from __future__ import annotations

import json
import os
import pickle
import signal
import threading
import time
import warnings
from pathlib import Path

import pytest

import turnaround
from recorder.scripts import LOOP, run, start
from turnaround.analysis.summary import summarise
from turnaround.analysis.workloads import survey
from turnaround.errors import InputError
from turnaround.findings import find_all
from turnaround.launch.lifecycle import Request, resume
from turnaround.record.layout import RunDirectory
from turnaround.record.lock import is_held
from turnaround.record.reader import Run
from turnaround.recorder import Recorder, RecorderWarning, background_writer


def train(rec: Recorder, *, epochs: int = 3, steps: int = 20) -> None:
    """A loop that learns, waits and evaluates."""
    for epoch in range(epochs):
        for _ in rec.steps(range(steps)):
            with rec.span("update"):
                time.sleep(0.0005)
        with rec.span("evaluation"):
            time.sleep(0.01)
        rec.epoch(
            train_loss=1.0 / (epoch + 1),
            train_accuracy=0.4 + 0.1 * epoch,
            val_loss=1.0,
            val_accuracy=0.5 + 0.1 * epoch,
            learning_rate=0.1,
        )


def test_a_loop_becomes_a_run(tmp_path: Path) -> None:
    with turnaround.Recorder(
        tmp_path / "runs" / "lab",
        workers=1,
        batch_per_worker=8,
        num_train=160,
        num_validation=50,
        model="toy",
        job="fruit",
    ) as rec:
        train(rec)
        assert rec.is_recording
    run = Run.load(tmp_path / "runs" / "lab")
    assert run.status.state == "finished"
    assert [(e.epoch, e.val_accuracy, e.steps, e.images) for e in run.epochs] == [
        (1, 0.5, 20, 160),
        (2, 0.6, 20, 160),
        (3, 0.7, 20, 160),
    ]
    for epoch in run.epochs:
        assert 0.01 <= epoch.epoch_time_s < 5
        assert epoch.images_per_s == pytest.approx(160 / epoch.epoch_time_s)
        assert epoch.evaluation_time_s is not None
        assert 0.01 <= epoch.evaluation_time_s < 5
    spans = run.spans(0)
    assert len(spans) >= 10
    assert all(span.update_s >= 0.0005 for span in spans)
    assert all(samples for samples in run.telemetry().values())
    parts = run.turnaround_parts()
    assert set(parts) >= {"start_up", "training_cold", "training_steady", "evaluation"}
    assert not (tmp_path / "runs" / "lab" / "run.lock").exists()


def test_what_reads_runs_reads_this_one(tmp_path: Path) -> None:
    for workers in (1, 2):
        with Recorder(tmp_path / f"w{workers}", workers=workers, batch_per_worker=8, num_train=160, model="toy") as rec:
            train(rec, epochs=5)
    found = survey([tmp_path])
    assert found.left_out == ()
    (job,) = found.workloads
    assert [configuration.workers for configuration in job.configurations] == [1, 2]
    assert not any(configuration.is_rehearsal for configuration in job.configurations)
    assert job.configurations[0].bottleneck is not None
    find_all(found)
    summary = summarise(Run.load(tmp_path / "w2"))
    assert (summary.processes, summary.global_batch, summary.images_per_epoch) == (2, 16, 160)


def test_what_nobody_has_run_is_forecast_from_it(tmp_path: Path) -> None:
    for workers in (1, 2):
        with Recorder(tmp_path / f"w{workers}", workers=workers, batch_per_worker=8, num_train=160, model="toy") as rec:
            for epoch in range(12):
                rec.epoch(val_accuracy=1 - 0.5 ** (epoch + 1), epoch_time_s=8.0 / workers, evaluation_time_s=0.1)
    forecast = turnaround.predict([tmp_path], workers=4)
    assert forecast.epoch_time_s is not None
    assert forecast.epoch_time_s.value == pytest.approx(2.0, rel=0.25)
    assert forecast.epoch_time_s.low < 2.0 < forecast.epoch_time_s.high


def test_fewer_processes_than_workers_is_a_rehearsal(tmp_path: Path) -> None:
    with Recorder(tmp_path / "r", workers=4, processes=1, batch_per_worker=8) as rec:
        rec.epoch(val_accuracy=0.5)
    assert Run.load(tmp_path / "r").is_rehearsal


def test_facts_and_what_else_is_given(tmp_path: Path) -> None:
    with Recorder(
        tmp_path / "r", classes=["a", "b"], optimizer="adam", gpu="Tesla V100", augment=True, team="blue"
    ) as rec:  # type: ignore[call-arg]
        rec.epoch(loss=1.5, val_acc=0.25, lr=0.01, f1=0.3)  # type: ignore[call-arg]
    run = Run.load(tmp_path / "r")
    assert run.recipe["images"]["classes"] == ["a", "b"]
    assert run.recipe["training"]["optimizer"] == "adam"
    assert run.recipe["extra"] == {"team": "blue"}
    assert summarise(run).gpu == "V100"
    (epoch,) = run.epochs
    assert (epoch.train_loss, epoch.val_accuracy, epoch.learning_rate) == (1.5, 0.25, 0.01)
    assert json.loads((tmp_path / "r" / "epochs.jsonl").read_text())["extra"] == {"f1": 0.3}


# --- never in the way


def test_an_error_in_the_body_is_the_cause_and_goes_on(tmp_path: Path) -> None:
    rec = Recorder(tmp_path / "r")
    rec.epoch(val_accuracy=0.5)
    with pytest.raises(ZeroDivisionError), rec:
        1 / 0  # noqa: B018
    status = Run.load(tmp_path / "r").status
    assert (status.state, status.cause, status.epochs_done) == ("failed", "ZeroDivisionError: division by zero", 1)


def test_only_its_own_program_can_go_on_with_it(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Recorder(tmp_path / "r"):
        1 / 0  # noqa: B018
    with pytest.raises(InputError, match="is the record of another program, which alone can go on"):
        resume(Request(out=tmp_path / "r", show=lambda *_: None))


@pytest.mark.parametrize(
    ("error", "state"),
    [(KeyboardInterrupt(), "interrupted"), (SystemExit(0), "finished"), (SystemExit("no images"), "failed")],
)
def test_how_a_program_may_end(tmp_path: Path, error: BaseException, state: str) -> None:
    rec = Recorder(tmp_path / "r")
    rec.epoch(val_accuracy=0.5)
    with pytest.raises(type(error)), rec:
        raise error
    assert Run.load(tmp_path / "r").status.state == state


def test_a_loss_that_is_no_number(tmp_path: Path) -> None:
    with Recorder(tmp_path / "r") as rec:
        rec.epoch(train_loss=float("nan"), val_accuracy=0.1)
    assert Run.load(tmp_path / "r").status.state == "diverged"


def test_a_directory_that_is_taken(tmp_path: Path) -> None:
    with Recorder(tmp_path / "r") as rec:
        rec.epoch(val_accuracy=0.5)
    before = (tmp_path / "r" / "epochs.jsonl").read_bytes()
    again = Recorder(tmp_path / "r")
    with pytest.warns(RecorderWarning, match=r"r is taken: this run is recorded in .*r-2\."):
        again.start()
    again.epoch(val_accuracy=0.6)
    again.close()
    assert (tmp_path / "r" / "epochs.jsonl").read_bytes() == before
    assert Run.load(tmp_path / "r-2").final == 0.6
    assert Run.load(tmp_path / "r-2").recipe["name"] == "r-2"


def test_a_directory_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "model.h5").write_text("mine")
    with pytest.warns(RecorderWarning, match="taken"), Recorder(tmp_path / "r") as rec:
        rec.epoch(val_accuracy=0.5)
    assert [path.name for path in (tmp_path / "r").iterdir()] == ["model.h5"]


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    message = "Cannot create .* The training goes on without a record"
    with pytest.warns(RecorderWarning, match=message) as said, Recorder(tmp_path / "file" / "r") as rec:
        train(rec, epochs=2)
    assert len(said) == 1
    assert rec.path is None
    assert "--out" not in str(said[0].message)


def test_calls_after_the_end_and_missing_calls(tmp_path: Path) -> None:
    with (
        pytest.warns(RecorderWarning, match="never called, so the record has no curve"),
        Recorder(tmp_path / "r") as rec,
    ):
        pass
    with pytest.warns(RecorderWarning, match="called after its end") as said:
        train(rec, epochs=2)
    assert len(said) == 1
    rec.close()
    assert Run.load(tmp_path / "r").epochs == []


def test_without_with_it_begins_by_itself(tmp_path: Path) -> None:
    rec = Recorder(tmp_path / "r")
    rec.step()
    rec.epoch(val_accuracy=0.5)
    rec.close()
    assert Run.load(tmp_path / "r").epochs[0].steps == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"workers": "four"}, "workers='four' is no whole number from 1"),
        ({"workers": 0}, "workers='0' is no whole number"),
        ({"batch_per_worker": 2.5}, "batch_per_worker='2.5'"),
        ({"num_train": -1}, "num_train='-1' cannot be used"),
        ({"workers": 2, "processes": 3}, "3 processes cannot host 2 workers"),
        ({"synchronize": 3}, "synchronize='3' cannot be used"),
        ({"augment": 3}, "augment='3' cannot be used"),
    ],
)
def test_facts_that_cannot_be(tmp_path: Path, given: dict[str, object], message: str) -> None:
    with pytest.warns(RecorderWarning, match=message), Recorder(tmp_path / "r", **given) as rec:  # type: ignore[arg-type]
        rec.epoch(val_accuracy=0.5)
    assert Run.load(tmp_path / "r").final == 0.5


def test_parts_and_measures_that_cannot_be(tmp_path: Path) -> None:
    with Recorder(tmp_path / "r") as rec:
        with (
            pytest.warns(RecorderWarning, match="Unknown part of a step 'wiat'. Did you mean 'wait'"),
            rec.span("wiat"),
        ):
            pass
        with pytest.warns(RecorderWarning, match="train_loss='high' is no number and is left out"):
            rec.epoch(train_loss="high", val_accuracy=0.5)
        with pytest.warns(RecorderWarning, match="val_accuracy=60 is taken for percent"):
            rec.epoch(val_accuracy=60)
        rec.epoch(val_accuracy=0.9)
    accuracies = [epoch.val_accuracy for epoch in Run.load(tmp_path / "r").epochs]
    assert accuracies == pytest.approx([0.5, 0.6, 0.009])


def test_warnings_that_are_errors_do_not_stop_a_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Recorder(tmp_path / "r", workers="x") as rec:  # type: ignore[arg-type]
            rec.epoch(val_accuracy=0.5)
    assert "turnaround.Recorder: workers='x'" in capsys.readouterr().err
    assert Run.load(tmp_path / "r").final == 0.5


def test_a_device_that_cannot_be_waited_for(tmp_path: Path) -> None:
    def broken() -> None:
        raise RuntimeError("device lost")

    message = r"RuntimeError: device lost\. The training goes on"
    with pytest.warns(RecorderWarning, match=message) as said, Recorder(tmp_path / "r", synchronize=broken) as rec:
        train(rec)
    assert len(said) == 1
    deadline_s = time.monotonic() + 60  # nobody waits for a record that was given up
    while Run.load(tmp_path / "r").status.state == "running" and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert Run.load(tmp_path / "r").status.state == "interrupted"


def test_a_study_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNAROUND_RUN_DIR", str(tmp_path / "study" / "2w"))
    with Recorder(tmp_path / "mine") as rec:
        rec.epoch(val_accuracy=0.5)
    assert Run.load(tmp_path / "study" / "2w").final == 0.5
    assert not (tmp_path / "mine").exists()


# --- in processes of their own


def test_it_needs_neither_torch_nor_numpy(tmp_path: Path) -> None:
    code = LOOP.format(step="pass") + "print(sorted({'torch', 'numpy', 'typer', 'rich'} & set(sys.modules)))"
    assert run(code, tmp_path) == (0, "trained\n[]\n", "")


def test_a_full_disk(tmp_path: Path) -> None:
    """The operating system refuses every byte beyond the limit, as a full disk does."""
    limit = "import os, resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); time.sleep(0.02)\n"
    limit += "            while not os.path.exists('run/machine.json'): time.sleep(0.01)\n"  # the disk fills later
    limit += "            resource.setrlimit(resource.RLIMIT_FSIZE, (1200, 1200)) if batch == 0 else None"
    status, printed, complained = run(LOOP.format(step=limit), tmp_path)
    assert (status, printed) == (0, "trained\n")
    assert complained.count("RecorderWarning") == 1
    assert "The training goes on without a record." in complained
    record = Run.load(tmp_path / "run")
    assert record.status.state == "interrupted"
    assert "the training went on: Cannot append" in str(record.status.cause)
    assert len(record.epochs) < 3
    assert not record.is_torn


def test_a_killed_program_leaves_a_record_that_can_be_read(tmp_path: Path) -> None:
    process = start(LOOP.format(step="time.sleep(600 if (epoch, batch) == (1, 5) else 0.01)"), tmp_path)
    epochs, deadline_s = tmp_path / "run" / "epochs.jsonl", time.monotonic() + 60
    while not (epochs.exists() and epochs.read_text().endswith("\n")):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=120)
    record = Run.load(tmp_path / "run")
    assert record.status.state == "running"
    assert len(record.epochs) >= 1
    assert not is_held(RunDirectory(tmp_path / "run").lock)


def test_a_forked_process_leaves_the_record_alone(tmp_path: Path) -> None:
    fork = "import os; child = os.fork() if batch == 5 else -1\n"
    fork += "            if child == 0: rec.epoch(val_accuracy=0.0); rec.step(); rec.close(); sys.exit(0)\n"
    fork += "            if child > 0: os.waitpid(child, 0)"
    assert run(LOOP.format(step=fork), tmp_path) == (0, "trained\n", "")
    record = Run.load(tmp_path / "run")
    assert record.status.state == "finished"
    assert [(e.val_accuracy, e.steps) for e in record.epochs] == [(0.5, 10), (0.6, 10), (0.7, 10)]


def test_one_that_is_made_here_and_used_there(tmp_path: Path) -> None:
    """As spawned trainings do: it is taken along, and begins in the process that trains."""
    rec = pickle.loads(pickle.dumps(Recorder(tmp_path / "run", model="toy")))
    rec._pid = -1  # of the process that made it
    rec.epoch(val_accuracy=0.5)
    rec.close()
    assert Run.load(tmp_path / "run").final == 0.5


UNCLOSED = """
import turnaround
rec = turnaround.Recorder("run", epochs=2)
rec.epoch(val_accuracy=0.5)
{rest}
"""


@pytest.mark.parametrize(
    ("rest", "status", "state", "cause"),
    [
        ("rec.epoch(val_accuracy=0.6)", 0, "finished", None),
        ("raise RuntimeError('lost a GPU')", 1, "failed", "RuntimeError: lost a GPU"),
        ("pass", 0, "interrupted", "The program ended after 1 of 2 epochs."),
    ],
)
def test_a_program_that_never_closes(tmp_path: Path, rest: str, status: int, state: str, cause: str | None) -> None:
    assert run(UNCLOSED.format(rest=rest), tmp_path)[0] == status
    found = Run.load(tmp_path / "run").status
    assert (found.state, found.cause) == (state, cause)


RANKS = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "LOCAL_WORLD_SIZE": "2"}


def test_two_processes_write_one_run(tmp_path: Path) -> None:
    """Each only what it must. The second comes first, and finds the directory that is not there yet."""
    # Whoever is quicker waits in its first epoch until it has seen the other: a busy machine may start one much later.
    seen = "time.sleep(0.02)\n            while not __import__('os').path.exists('run/{}'): time.sleep(0.01)"
    # rank-1.json is the second's own note: it has found the directory.
    code = LOOP.format(step=seen.format("logs/rank-1.json"))
    second = start(code, tmp_path, RANK="1", LOCAL_RANK="1", **RANKS)
    time.sleep(0.3)
    first = start(code, tmp_path, RANK="0", LOCAL_RANK="0", **RANKS)
    # Process 0 goes first: where both end at once, the other one must have found the directory before.
    for process in (first, second):
        printed, complained = process.communicate(timeout=180)
        assert (process.returncode, printed, complained) == (0, "trained\n", "")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    record = Run.load(tmp_path / "run")
    assert record.ranks == [0, 1]
    assert len(record.spans(1)) >= 5
    assert [rank["workers"] for rank in record.machine["ranks"]] == [[0], [1]]
    assert (record.machine["workers"], record.machine["processes"], len(record.epochs)) == (2, 2, 3)
    assert len(list((tmp_path / "run").glob("telemetry-*"))) == 1
    assert record.epochs[0].images == 160  # as many as the steps saw: num_train is 80


def test_a_training_that_is_over_before_the_second_process_has_looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_writer, "MIN_OPEN_S", 60.0)
    first, second = (Recorder(tmp_path / "run", rank=rank, size=2) for rank in (0, 1))
    first.epoch(val_accuracy=0.5)
    end = threading.Thread(target=first.close)
    end.start()
    end.join(timeout=0.5)  # nobody has looked, so it waits
    second.epoch()
    second.close()
    end.join(timeout=60)
    record = Run.load(tmp_path / "run")
    assert (record.ranks, record.status.state) == ([0, 1], "finished")
    assert [rank["workers"] for rank in record.machine["ranks"]] == [[0], [1]]


def test_a_second_process_alone_writes_nothing(tmp_path: Path) -> None:
    code = LOOP.format(step="pass")
    assert run(code, tmp_path, RANK="1", **RANKS) == (0, "trained\n", "")
    assert list(tmp_path.iterdir()) == []


def test_launchers_that_contradict_each_other(tmp_path: Path) -> None:
    status, printed, complained = run(
        LOOP.format(step="pass"), tmp_path, RANK="1", HOROVOD_RANK="0", HOROVOD_SIZE="2", **RANKS
    )
    assert (status, printed) == (0, "trained\n")
    assert "Two launchers contradict each other" in complained
    assert "Or give rank= and size= to the recorder." in complained
    assert list(tmp_path.iterdir()) == []


def test_rank_and_size_that_are_given(tmp_path: Path) -> None:
    with Recorder(tmp_path / "r", rank=0, size=4, batch_per_worker=8) as rec:
        rec.epoch(val_accuracy=0.5)
    assert Run.load(tmp_path / "r").machine["workers"] == 4
    with Recorder(tmp_path / "other", rank=3, size=4) as rec:
        rec.epoch(val_accuracy=0.5)
        assert rec.path is None
    assert not (tmp_path / "other").exists()
    assert os.listdir(tmp_path) == ["r"]
