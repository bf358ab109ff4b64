"""Samples come in time, and nothing that fails in there reaches the training."""

import errno
import itertools
import os
import threading
import time
from types import SimpleNamespace

import psutil
import pytest

from turnaround.record import telemetry as telemetry_module
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import Run
from turnaround.record.telemetry import Telemetry
from turnaround.record.writer import write_json

INTERVAL_S = 0.1


def fail(*_arguments):
    raise RuntimeError("Not Supported")


def fake_nvml(**changes):
    functions = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
        "nvmlDeviceGetName": lambda handle: "Tesla T4",
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=16 * 2**30, used=3 * 2**30),
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=50 + handle),
        "nvmlDeviceGetPowerUsage": lambda handle: 68_200,
    }
    return SimpleNamespace(**(functions | changes))


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    directory = RunDirectory.create(tmp_path / "run")
    write_json(directory.recipe, {})
    return directory


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A busy machine is not a hung driver."""
    monkeypatch.setattr(telemetry_module, "STOP_TIMEOUT_S", 60.0)


def record(directory, until_samples=0, **options):
    path = directory.telemetry("here")
    with Telemetry(path, INTERVAL_S, **options) as telemetry:
        latest_s = time.monotonic() + 60
        while until_samples and (not path.exists() or path.read_text().count('"time_s"') < until_samples):
            assert time.monotonic() < latest_s
            time.sleep(0.01)
    assert not [thread for thread in threading.enumerate() if thread.name == "telemetry"]
    run = Run.load(directory.path)
    return telemetry, run.telemetry().get("here", []), run.telemetry_notes().get("here", [])


def test_samples_come_at_the_interval_with_the_real_probes(directory):
    _, samples, notes = record(directory, 12)
    assert notes == []
    # Each of them in an interval of its own, and none before its first was over; the last comes with the end.
    slots = [int(sample.time_s / INTERVAL_S + 0.1) for sample in samples[:-1]]
    assert slots[0] >= 1
    assert slots == sorted(set(slots))
    assert 1 in [later - slot for slot, later in itertools.pairwise(slots)]  # and none is left out, if there is time
    assert samples[-1].time_s >= samples[-2].time_s
    for sample in samples:
        assert 0 <= sample.cpu_percent <= 100
        assert 0 < sample.process_rss_gib < sample.memory_used_gib + 1
        assert sample.at.endswith("+00:00")


def test_even_the_shortest_run_has_a_last_sample_and_ends_at_once(directory):
    start_s = time.monotonic()
    with Telemetry(directory.telemetry("here"), 30.0):
        pass
    assert time.monotonic() - start_s < 25
    assert len(Run.load(directory.path).telemetry()["here"]) == 1


def test_gpus_are_sampled(directory):
    _, samples, notes = record(directory, nvml=fake_nvml())
    first, second = samples[-1].gpus
    assert (first.index, first.name, first.utilisation_percent) == (0, "Tesla T4", 50.0)
    assert (second.memory_used_gib, second.power_w) == (3.0, 68.2)
    assert notes == []


def test_a_gpu_that_only_another_process_is_shown_is_read_too(directory, monkeypatch):
    """As where a launcher sets CUDA_VISIBLE_DEVICES for each process: NVML sees them all."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    counters = {0: 1_000_000, 1: 7_000_000}
    nvml = fake_nvml(nvmlDeviceGetTotalEnergyConsumption=counters.__getitem__)
    with Telemetry(directory.telemetry("here"), INTERVAL_S, nvml=nvml) as telemetry:
        assert telemetry._is_begun.wait(60)
        assert telemetry.tell_used({"GPU-0": 1, "GPU-1": 1}) == []
        before_j = telemetry.used_energy_j()
        counters[0] += 50_000
        counters[1] += 3_000
        assert telemetry.used_energy_j() - before_j == 53.0
    assert [gpu.index for gpu in Run.load(directory.path).telemetry()["here"][-1].gpus] == [0, 1]


def test_energy_is_that_of_the_gpus_that_the_run_uses_each_once(directory):
    counters = {0: 1_000_000, 1: 7_000_000}
    nvml = fake_nvml(
        nvmlDeviceGetTotalEnergyConsumption=counters.__getitem__,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: ["ours", "ours", "theirs"],
    )
    path = directory.telemetry("here")
    with Telemetry(path, INTERVAL_S, nvml=nvml) as telemetry:
        while not path.exists() or '"time_s"' not in path.read_text():
            time.sleep(0.01)
        assert telemetry.used_energy_j() is None  # nobody has said yet which GPUs are used
        telemetry.tell_used({"GPU-1": 2})  # two processes on one GPU
        counters[0] += 50_000
        counters[1] += 3_000
        assert telemetry.used_energy_j() == 3.0
        assert telemetry.tell_used({"GPU-1": 2, "GPU-of-nobody": 1}) == ["GPU-of-nobody"]
        assert telemetry.used_energy_j() == 3.0  # of those that it reads
        assert telemetry.tell_used({"GPU-1": 2}) == []
    left, used = Run.load(directory.path).telemetry()["here"][-1].gpus
    assert (left.energy_j, left.energy_source, left.run_processes) == (50.0, "counter", 0)
    assert (used.energy_j, used.run_processes, used.compute_processes) == (3.0, 2, 3)


def test_without_a_counter_energy_is_integrated_and_without_power_not_known(directory):
    _, samples, _ = record(directory, 2, nvml=fake_nvml())
    assert samples[-1].gpus[0].energy_source == "watts"
    assert samples[-1].gpus[0].energy_j > 0
    _, samples, notes = record(directory, nvml=fake_nvml(nvmlDeviceGetPowerUsage=fail))
    assert (samples[-1].gpus[0].energy_j, notes) == (None, [])


def test_only_the_visible_gpus_are_sampled(directory, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    _, samples, _ = record(directory, nvml=fake_nvml())
    assert [gpu.index for gpu in samples[-1].gpus] == [1]


def test_what_a_gpu_does_not_support_is_null(directory):
    nvml = fake_nvml(nvmlDeviceGetPowerUsage=fail)
    _, samples, notes = record(directory, nvml=nvml)
    assert samples[-1].gpus[0].power_w is None
    assert samples[-1].gpus[0].utilisation_percent == 50.0
    assert notes == []


def test_columns_of_older_files_are_passed_over(directory):
    gpu = '{"index":0,"name":"Tesla T4","utilisation_percent":96.0,"power_w":68.2,"temperature_c":61.0}'
    directory.telemetry("here").write_text(f'{{"format":1,"time_s":1.0,"at":"then","gpus":[{gpu}]}}\n')
    assert [sample.gpus[0].power_w for sample in Run(directory).telemetry()["here"]] == [68.2]


def test_a_lost_gpu_is_noted_once(directory):
    nvml = fake_nvml(nvmlDeviceGetUtilizationRates=fail, nvmlDeviceGetMemoryInfo=fail)
    _, samples, notes = record(directory, 2, nvml=nvml)
    assert len(samples) >= 2
    assert notes == ["GPU 0: the driver tells nothing about it", "GPU 1: the driver tells nothing about it"]


def test_a_driver_that_cannot_list_its_gpus_is_noted(directory):
    _, samples, notes = record(directory, nvml=fake_nvml(nvmlDeviceGetCount=fail))
    assert samples[-1].gpus == []
    assert notes == ["list of GPUs: RuntimeError: Not Supported"]


def test_a_failing_probe_is_noted_once_and_the_others_go_on(directory, monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", fail)
    monkeypatch.setattr(psutil, "Process", fail)
    _, samples, notes = record(directory, 2)
    assert len(samples) >= 2
    assert samples[-1].memory_used_gib is samples[-1].process_rss_gib is None
    assert samples[-1].cpu_percent is not None
    assert [note.split(":")[0] for note in notes] == ["this process", "memory", "memory of this process"]


def test_a_full_disk_or_a_missing_folder_does_no_harm(directory, tmp_path, monkeypatch):
    def full(*_arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with Telemetry(directory.telemetry("here"), INTERVAL_S) as telemetry:
            pass
    assert "quota is full" in str(telemetry.failure)
    with Telemetry(tmp_path / "gone" / "telemetry-here.jsonl", INTERVAL_S) as telemetry:
        pass
    assert "folder is not there" in str(telemetry.failure)


def test_a_resumed_run_goes_on_in_the_same_file(directory):
    record(directory)
    with directory.telemetry("here").open("ab") as file:
        file.write(b'{"torn')
    _, samples, _ = record(directory)
    assert len(samples) == 2


def test_an_error_in_the_training_passes_through(directory):
    with pytest.raises(ZeroDivisionError), Telemetry(directory.telemetry("here"), INTERVAL_S):
        raise ZeroDivisionError
