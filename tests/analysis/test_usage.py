"""How busy GPUs and processors were, from telemetry."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.build import built
from turnaround.analysis.usage import usages
from turnaround.errors import RunDirectoryError
from turnaround.record.reader import Run
from turnaround.record.schema import GpuSample, TelemetrySample, to_json
from turnaround.record.writer import write_lines


def recorded(path: Path, samples: list[TelemetrySample], host: str = "node1") -> Run:
    run = built(path, accuracy=[0.5])
    write_lines(run.directory.telemetry(host), (to_json(sample) for sample in samples))
    return run


def sample(second: int, *gpus: GpuSample, at: str | None = None) -> TelemetrySample:
    instant = at or f"2026-03-01T09:{second // 60:02d}:{second % 60:02d}+00:00"
    return TelemetrySample(time_s=float(second), at=instant, cpu_percent=30.0, memory_used_gib=4.0, gpus=list(gpus))


def gpu(index: int, busy: float | None, power_w: float | None = None) -> GpuSample:
    return GpuSample(index=index, name="T4", utilisation_percent=busy, memory_used_gib=2.0, power_w=power_w)


def test_each_gpu_has_its_columns(tmp_path: Path) -> None:
    run = recorded(tmp_path / "r", [sample(s, gpu(0, 80.0 + s, 60.0), gpu(1, 40.0)) for s in range(3)])
    first, second = usages(run)
    assert (first.name, first.is_gpu, second.name) == ("GPU 0", True, "GPU 1")
    assert first.time_s == (0.0, 1.0, 2.0)
    assert first.busy_percent == (80.0, 81.0, 82.0)
    assert (first.knows("power_w"), second.knows("power_w")) == (True, False)
    assert (first.mean_busy_percent, first.max_memory_gib) == (81.0, 2.0)


def test_means_of_what_nobody_told_are_unknown(tmp_path: Path) -> None:
    run = recorded(tmp_path / "r", [sample(s, gpu(0, None)) for s in range(3)])
    assert [(one.mean_busy_percent, one.max_memory_gib) for one in usages(run)] == [(None, 2.0)]


def test_many_samples_become_means(tmp_path: Path) -> None:
    (only,) = usages(recorded(tmp_path / "r", [sample(s, gpu(0, 100.0 * (s % 2))) for s in range(1000)]), most=100)
    assert len(only.busy_percent) == 100
    assert set(only.busy_percent) == {50.0}
    assert only.time_s[0] == pytest.approx(4.5)


def test_a_gpu_that_is_missing_for_a_while_is_unknown_then(tmp_path: Path) -> None:
    run = recorded(tmp_path / "r", [sample(0, gpu(0, 50.0), gpu(1, 60.0)), sample(1, gpu(0, 50.0))])
    assert usages(run)[1].busy_percent == (60.0, None)


def test_without_gpus_it_is_the_host(tmp_path: Path) -> None:
    (host,) = usages(recorded(tmp_path / "r", [sample(s) for s in range(3)]))
    assert (host.name, host.is_gpu, host.busy_percent, host.memory_gib) == ("node1", False, (30.0,) * 3, (4.0,) * 3)
    assert not host.knows("power_w")


def test_the_clock_runs_on_through_a_resume(tmp_path: Path) -> None:
    resumed = TelemetrySample(time_s=0.0, at="2026-03-01T10:00:00+00:00", gpus=[gpu(0, 10.0)])
    (only,) = usages(recorded(tmp_path / "r", [sample(0, gpu(0, 10.0)), resumed]))
    assert only.time_s == (0.0, 3600.0)


def test_instants_that_cannot_be_read_leave_the_samples_seconds(tmp_path: Path) -> None:
    (only,) = usages(recorded(tmp_path / "r", [sample(s, gpu(0, 1.0), at="yesterday") for s in (0, 5)]))
    assert only.time_s == (0.0, 5.0)


def test_hosts_are_named_where_there_are_several(tmp_path: Path) -> None:
    run = recorded(tmp_path / "r", [sample(0, gpu(0, 1.0))])
    write_lines(run.directory.telemetry("node2"), [to_json(sample(0, gpu(0, 1.0)))])
    assert [usage.name for usage in usages(run)] == ["GPU 0 on node1", "GPU 0 on node2"]


def test_no_telemetry_is_no_usage(tmp_path: Path) -> None:
    assert usages(built(tmp_path / "r", accuracy=[0.5])) == ()


def test_numbers_that_are_none_are_unknown(tmp_path: Path) -> None:
    (only,) = usages(recorded(tmp_path / "r", [sample(0, gpu(0, float("nan"))), sample(1, gpu(0, 20.0))]))
    assert only.busy_percent == (None, 20.0)


def test_telemetry_of_a_newer_format_is_left_out(tmp_path: Path) -> None:
    run = built(tmp_path / "r", accuracy=[0.5])
    write_lines(run.directory.telemetry("node1"), [{**to_json(sample(0, gpu(0, 1.0))), "format": 999}])
    with pytest.raises(RunDirectoryError):
        run.telemetry()
    assert usages(run) == ()
