"""Which process holds up the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest

from turnaround.analysis.balance import balance
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import Run
from turnaround.record.schema import EpochRecord, Span, to_json
from turnaround.record.writer import Lines, write_json


def run_with(
    path: Path, compute_s: dict[int, float], steps: int = 8, hosted: Mapping[int, Sequence[int]] = MappingProxyType({})
) -> Run:
    directory = RunDirectory.create(path)
    write_json(directory.recipe, {"name": "x"})
    write_json(directory.machine, {"ranks": [{"workers": list(hosted.get(rank, [rank]))} for rank in compute_s]})
    for rank, seconds in compute_s.items():
        with Lines(directory.spans(rank), sync=False) as lines:
            for step in range(1, steps + 1):
                own = 100.0 if step == 1 else seconds  # the first sampled step is a cold one
                span = Span(step=step, epoch=1, wait_s=0, copy_s=0, compute_s=own, reduce_s=0.5, update_s=0)
                lines.write(to_json(span))
    return Run.load(path)


@pytest.mark.fault(13, "one process is slower than the others: named, with the ratio to the median")
def test_the_slow_process_is_named_with_its_ratio(tmp_path: Path) -> None:
    found = balance(run_with(tmp_path / "run", {0: 0.10, 1: 0.29, 2: 0.10, 3: 0.11}))
    assert found is not None
    assert found.slowest_rank == 1
    assert found.ratio == pytest.approx(0.29 / 0.105)
    assert found.has_straggler


def test_even_processes_have_no_straggler(tmp_path: Path) -> None:
    found = balance(run_with(tmp_path / "run", {0: 0.10, 1: 0.11}))
    assert found is not None
    assert not found.has_straggler


def test_twice_the_workers_may_take_twice_the_time(tmp_path: Path) -> None:
    found = balance(run_with(tmp_path / "run", {0: 0.10, 1: 0.20}, hosted={0: [0], 1: [1, 2]}))
    assert found is not None
    assert not found.has_straggler


def test_with_shares_by_speed_all_should_end_at_the_same_time(tmp_path: Path) -> None:
    """Three times slower for a worker, and a third of the workers: nobody waits. With equal shares it is named."""
    run = run_with(tmp_path / "run", {0: 0.30, 1: 0.31}, hosted={0: [0, 1, 2], 1: [3]})
    found = balance(run)
    assert found is not None
    assert found.has_straggler
    write_json(run.directory.machine, {**run.machine, "share": "3,1"})
    found = balance(Run.load(run.path))
    assert found is not None
    assert not found.has_straggler
    assert found.compute_s == {0: 0.30, 1: 0.31}


def test_steps_before_the_workers_were_shared_out_anew_do_not_count(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", {0: 0.1, 1: 0.3})
    for epoch, shares in ((1, None), (2, [3, 1])):
        line = EpochRecord(
            epoch=epoch,
            train_loss=1.0,
            train_accuracy=0.5,
            val_loss=1.0,
            val_accuracy=0.5,
            epoch_time_s=1.0,
            images_per_s=1.0,
            learning_rate=0.1,
            shares=shares,
        )
        with Lines(run.directory.epochs, sync=False) as lines:
            lines.write(to_json(line))
        # All spans are of the first epoch: with the shares of the second nothing was measured yet.
        assert (balance(Run.load(run.path)) is None) == (epoch == 2)


def test_one_process_or_few_spans_say_nothing(tmp_path: Path) -> None:
    assert balance(run_with(tmp_path / "one", {0: 0.1})) is None
    assert balance(run_with(tmp_path / "few", {0: 0.1, 1: 0.2}, steps=2)) is None


@pytest.mark.parametrize("ranks", [None, 7, [None, None], [{}, {}], [{"workers": []}, {"workers": [1]}]])
def test_a_record_that_does_not_say_who_hosts_what(ranks: object, tmp_path: Path) -> None:
    run_with(tmp_path / "run", {0: 0.1, 1: 0.3})
    write_json(RunDirectory(tmp_path / "run").machine, {"ranks": ranks})
    assert balance(Run.load(tmp_path / "run")) is None
