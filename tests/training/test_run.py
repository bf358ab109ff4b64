"""Whole trainings in real processes: what they record, and that a kill, damage or divergence loses nothing.

Every training takes seconds to start, so the tests share a few of them, and most resumes are forked.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
import torch

from forking import ForkingLauncher
from running import largest_difference, request, traced, train, weights
from turnaround.errors import DivergedError, ProcessFailedError, RunDirectoryError
from turnaround.launch import lifecycle
from turnaround.record.reader import Run
from turnaround.record.schema import DISJOINT_TIME_PARTS
from turnaround.training import checkpoint

EPOCHS, STEPS = 3, 6
SETTINGS = (
    "data.size_px=32",
    "workers.count=2",
    "training.batch_per_worker=16",
    f"training.epochs={EPOCHS}",
    "training.optimizer=sgd",
    "training.learning_rate=0.005",
    "training.checkpoint_every_s=0",
    "augment.rotation_degrees=10",
    "augment.flip=true",
)
TIMES = ("epoch_time_s", "images_per_s", "evaluation_time_s", "segment")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """In every process, however it is started: sums by several threads round otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def whole(fruit_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two workers in one process, undisturbed."""
    return train(fruit_folder, tmp_path_factory.mktemp("whole") / "run", *SETTINGS)


@pytest.fixture(scope="module")
def killed(fruit_folder: Path, tmp_path_factory: pytest.TempPathFactory, forking: ForkingLauncher) -> Path:
    """The same, killed between the line of epoch 2 and its checkpoint."""
    out = tmp_path_factory.mktemp("killed") / "run"
    with pytest.MonkeyPatch.context() as patch:
        traced(patch, kill_after_epoch="2")
        with pytest.raises(ProcessFailedError, match="died without a word") as error:
            train(fruit_folder, out, *SETTINGS, launcher=forking)
    assert f"turnaround resume {out}" in str(error.value)
    return out


def copied(run: Path, out: Path) -> Path:
    return Path(shutil.copytree(run, out))


def lines(run: Run) -> list[dict[str, object]]:
    """The epochs without what differs from start to start."""
    return [{k: v for k, v in dataclasses.asdict(e).items() if k not in TIMES} for e in run.epochs]


def identical(one: Run, other: Run, epoch: int | None = None) -> bool:
    a, b = weights(one, epoch), weights(other, epoch)
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_a_finished_run_has_every_epoch_and_a_final_evaluation(whole: Run) -> None:
    assert whole.status.state == "finished"
    assert whole.status.cause is None
    assert whole.status.epochs_done == EPOCHS
    assert [e.epoch for e in whole.epochs] == [1, 2, 3]
    for epoch in whole.epochs:
        assert (epoch.steps, epoch.images, epoch.segment) == (STEPS, 192, 1)
        assert epoch.images_per_s == pytest.approx(192 / epoch.epoch_time_s)
        assert 0 <= epoch.val_accuracy <= epoch.val_top5_accuracy <= 1
        assert epoch.train_eval_loss > 0
    assert whole.evaluation is not None
    assert whole.evaluation.top1 == whole.final
    assert whole.evaluation.loss == pytest.approx(whole.epochs[-1].val_loss, rel=1e-6)
    assert [sum(row) for row in whole.evaluation.confusion] == [8] * 6  # a fifth of forty in each class
    assert sorted(p.name for p in whole.directory.checkpoint.iterdir()) == ["epoch-00002", "epoch-00003"]


def test_it_learns(whole: Run) -> None:
    assert whole.epochs[-1].train_loss < whole.epochs[0].train_loss


def test_the_parts_of_the_time_add_up_to_the_program(whole: Run) -> None:
    found = whole.status.time_s
    assert set(found) >= set(DISJOINT_TIME_PARTS) - {"lost"}
    assert found["training"] == pytest.approx(found["training_cold"] + found["training_steady"])
    assert found["pause"] == pytest.approx(found["evaluation"] + found["checkpoint"])
    assert all(found[part] > 0 for part in DISJOINT_TIME_PARTS if part not in ("decode", "lost"))
    known = sum(found.get(part, 0.0) for part in DISJOINT_TIME_PARTS)
    assert known <= found["program"] + 0.01
    assert known > 0.9 * found["program"]
    assert sum(e.epoch_time_s for e in whole.epochs) == pytest.approx(found["training"], rel=0.01)
    parts = whole.turnaround_parts()
    assert sum(parts.values()) == pytest.approx(found["program"] + parts["queue"], rel=0.01)


def test_its_instants_are_in_order(whole: Run) -> None:
    status = whole.status
    instants = [status.submitted_at, status.started_at, status.first_step_at, status.ended_at]
    assert all(instants)
    times = [datetime.fromisoformat(i) for i in instants if i]
    assert times == sorted(times)
    assert (times[-1] - times[0]).total_seconds() == pytest.approx(status.time_s["program"], abs=3)


def test_spans_and_telemetry_have_content(whole: Run) -> None:
    assert whole.ranks == [0]
    (span,) = whole.spans(0)  # the eleventh of eighteen steps
    assert (span.step, span.epoch) == (11, 2)
    assert span.compute_s > 0
    assert span.update_s > 0
    assert span.reduce_s == 0  # one process has nobody to wait for
    assert span.wait_s + span.copy_s + span.compute_s + span.update_s < whole.epochs[1].epoch_time_s
    (samples,) = whole.telemetry().values()
    assert samples
    assert all(s.process_rss_gib and s.process_rss_gib > 0.05 for s in samples)
    assert all(s.cpu_percent is not None and s.memory_used_gib for s in samples)


def test_the_machine_says_what_was_chosen_and_why_and_what_it_costs(whole: Run) -> None:
    machine = whole.machine
    assert (machine["workers"], machine["processes"]) == (2, 1)
    assert whole.is_rehearsal
    assert {"device", "precision", "pixels", "memory_format", "passes", "scaling"} <= set(machine["choices"])
    for choice in machine["choices"].values():
        assert choice["value"] not in (None, "")
        assert len(choice["reason"]) > 5
    assert machine["choices"]["device"]["value"] == "cpu"
    assert machine["choices"]["precision"]["value"] == "fp32"
    assert machine["cost"]["parameters"] == 308_310
    assert machine["cost"]["gradient_bytes"] == 4 * 308_310
    assert machine["cost"]["forward_flops_per_image"] > 1e6
    assert machine["passed_over_checkpoints"] == []


def test_the_recipe_is_resolved_and_knows_its_images(whole: Run) -> None:
    assert whole.recipe["training"]["learning_rate"] == 0.005
    assert whole.recipe["images"]["num_train"] == 192
    assert whole.recipe["images"]["num_validation"] == 48
    assert len(whole.recipe["images"]["fingerprint"]) == 64


def test_a_killed_run_says_so_and_keeps_what_was_saved(killed: Path) -> None:
    run = Run.load(killed)
    assert run.status.state == "failed"
    assert "died without a word" in (run.status.cause or "")
    assert run.status.epochs_done == 1
    assert [e.epoch for e in run.epochs] == [1, 2]
    assert checkpoint.newest_valid(run.directory.checkpoint) == (killed / "checkpoint" / "epoch-00001", [])


@pytest.mark.fault(36, "resume of a finished run: at once, and nothing changes")
def test_after_a_kill_it_ends_as_if_nothing_had_happened(
    killed: Path, whole: Run, tmp_path: Path, forking: ForkingLauncher
) -> None:
    resumed = lifecycle.resume(request(copied(killed, tmp_path / "run"), launcher=forking))
    assert resumed.status.state == "finished"
    assert resumed.status.segments == 2
    assert identical(resumed, whole)  # bit for bit
    assert identical(resumed, whole, epoch=2)
    assert lines(resumed) == lines(whole)
    assert [e.segment for e in resumed.epochs] == [1, 2, 2]
    assert len((tmp_path / "run" / "epochs.jsonl").read_text().splitlines()) == EPOCHS  # none twice
    assert resumed.evaluation == whole.evaluation
    first = Run.load(killed).status
    assert resumed.status.first_step_at == first.first_step_at
    assert resumed.status.submitted_at == first.submitted_at
    assert resumed.status.time_s["start_up"] > first.time_s["start_up"]
    assert resumed.status.time_s["lost"] > 0  # epoch 2 was trained twice
    assert resumed.status.time_s["program"] > first.time_s["program"] + resumed.status.time_s["training"] / 3
    again = lifecycle.resume(request(tmp_path / "run"))  # nothing left to do: at once, and nothing changes
    assert again.status == resumed.status


def test_it_may_go_on_with_another_number_of_processes(
    killed: Path, whole: Run, tmp_path: Path, forking: ForkingLauncher
) -> None:
    resumed = lifecycle.resume(request(copied(killed, tmp_path / "run"), processes=2, launcher=forking))
    assert resumed.status.state == "finished"
    assert resumed.machine["processes"] == 2
    assert largest_difference(weights(resumed), weights(whole)) < 1e-5
    assert [e.val_accuracy for e in resumed.epochs] == [e.val_accuracy for e in whole.epochs]
    assert resumed.ranks == [0, 1]
    assert all(resumed.spans(rank) for rank in (0, 1))


def test_a_damaged_checkpoint_is_passed_over(whole: Run, tmp_path: Path, forking: ForkingLauncher) -> None:
    out = copied(whole.path, tmp_path / "run")
    status = json.loads((out / "status.json").read_text())
    (out / "status.json").write_text(json.dumps({**status, "state": "interrupted"}))
    file = out / "checkpoint" / "epoch-00003" / "weights.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    resumed = lifecycle.resume(request(out, launcher=forking))
    assert identical(resumed, whole)
    assert lines(resumed) == lines(whole)
    assert [e.segment for e in resumed.epochs] == [1, 1, 2]
    (passed_over,) = resumed.machine["passed_over_checkpoints"]
    assert "epoch-00003 is damaged" in passed_over
    assert checkpoint.newest_valid(out / "checkpoint") == (out / "checkpoint" / "epoch-00003", [])


def test_a_run_that_diverges_says_so_and_keeps_the_last_good_state(
    killed: Path, tmp_path: Path, forking: ForkingLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = copied(killed, tmp_path / "run")
    monkeypatch.setenv(
        "TURNAROUND_FAULT", f"kind=nan,step={STEPS + 2},segment=2"
    )  # epoch 1 was trained well; now it goes wrong
    good = checkpoint.newest_valid(out / "checkpoint")
    with pytest.raises(DivergedError, match="no longer a number in epoch 2") as error:
        lifecycle.resume(request(out, launcher=forking))
    assert "lower training.learning_rate" in str(error.value)
    run = Run.load(out)
    assert run.status.state == "diverged"
    assert run.status.cause == str(error.value)
    assert run.status.ended_at is not None
    assert [e.epoch for e in run.epochs] == [1]
    assert checkpoint.newest_valid(out / "checkpoint") == good == (out / "checkpoint" / "epoch-00001", [])
    assert all(torch.isfinite(v).all() for v in weights(run).values() if v.is_floating_point())


def test_without_a_usable_checkpoint_it_does_not_start_over(
    whole: Run, tmp_path: Path, forking: ForkingLauncher
) -> None:
    out = copied(whole.path, tmp_path / "run")
    status = json.loads((out / "status.json").read_text())
    (out / "status.json").write_text(json.dumps({**status, "state": "interrupted"}))
    for file in (out / "checkpoint").rglob("weights.safetensors"):
        file.write_bytes(b"damaged")
    with pytest.raises(RunDirectoryError, match=r"can be used: epoch-00003 is damaged .* start a new run"):
        lifecycle.resume(request(out, launcher=forking))
    assert Run.load(out).status.state == "failed"
    assert lines(Run.load(out)) == lines(whole)  # the curve that was recorded is still there
