"""The description is complete, is JSON, and cannot fail."""

import json
import os
from types import SimpleNamespace

import pytest

from turnaround.record import machine
from turnaround.record.gpus import describe_gpus, visible_gpus
from turnaround.record.machine import changed_since, describe
from turnaround.record.reader import read_json
from turnaround.record.writer import write_json

SPREAD = {"workers": 4, "processes": 2, "engine": "torch", "launch": "local", "device": "cpu"}


def fake_nvml(**changes):
    """Three GPUs as pynvml shows them; old versions answer in bytes."""
    functions = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 3,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{'abc'[handle]}000-1",
        "nvmlDeviceGetName": lambda handle: b"Tesla T4",
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=16 * 2**30, used=2**30),
        "nvmlSystemGetDriverVersion": lambda: "580.1",
    }
    return SimpleNamespace(**(functions | changes))


def fail(*_arguments):
    raise RuntimeError("not supported")


def test_the_description_is_complete_and_survives_its_file(tmp_path):
    choices = {"precision": {"value": "fp32", "reason": "the CPU has no faster one"}}
    described = describe(**SPREAD, choices=choices)
    for key in ("hostname", "os", "python", "cpu"):
        assert isinstance(described[key], str)
        assert described[key]
    assert described["cores"] == len(os.sched_getaffinity(0))
    assert described["memory_gib"] > 0.1
    assert described["versions"]["numpy"]
    assert set(described["versions"]) == {"turnaround", "torch", "torchvision", "timm", "numpy", "pillow"}
    assert described["choices"] == choices
    assert {key: described[key] for key in SPREAD} == SPREAD
    assert described["command"]
    write_json(tmp_path / "machine.json", described)
    assert read_json(tmp_path / "machine.json") == json.loads(json.dumps(described))


def test_without_a_driver_there_are_no_gpus(monkeypatch):
    assert describe_gpus(fake_nvml(nvmlInit=fail)) == []
    assert describe_gpus(fake_nvml(nvmlDeviceGetCount=fail)) == []


def test_the_real_library_does_no_harm():
    assert isinstance(describe_gpus(), list)


def test_gpus_are_described(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    expected = [{"index": 1, "name": "Tesla T4", "memory_gib": 16.0, "driver": "580.1"}]
    assert describe(**SPREAD, nvml=fake_nvml())["gpus"] == expected
    quiet = fake_nvml(nvmlDeviceGetName=fail, nvmlDeviceGetMemoryInfo=fail, nvmlSystemGetDriverVersion=fail)
    assert describe_gpus(quiet) == [{"index": 1, "name": "unknown GPU", "memory_gib": None, "driver": None}]


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("2,0", [2, 0]),
        (" 1 , 2", [1, 2]),
        ("0,7,1", [0]),
        ("GPU-b000-1", [1]),
        ("GPU-c,GPU-a", [2, 0]),
        ("GPU-", []),
        ("MIG-b000", []),
        ("x", []),
        ("9" * 5000, []),
    ],
)
def test_only_the_visible_gpus_count(monkeypatch, visible, indices):
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [index for index, _ in visible_gpus(fake_nvml())] == indices


def test_without_git_and_without_a_working_directory(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    described = describe(**SPREAD)
    assert described["git"] is described["turnaround_git"] is None


def test_packages_that_are_not_there_have_no_version(monkeypatch):
    monkeypatch.setattr(machine, "PACKAGES", ("numpy", "no-such-package"))
    assert describe(**SPREAD)["versions"]["no-such-package"] is None


@pytest.mark.fault(34, "resumed with another version of turnaround: allowed, and the record says what changed")
@pytest.mark.fault(35, "resumed with another torch, GPU or number of processes: the same")
def test_what_changed_between_two_starts_is_kept(tmp_path):
    first = describe(**SPREAD) | {"gpus": [{"name": "Tesla T4"}], "turnaround_git": {"commit": "aaa", "dirty": False}}
    path = tmp_path / "machine.json"
    assert changed_since(path, first, start=1) == []
    write_json(path, first | {"changed": changed_since(path, first, start=1)})
    second = first | {"processes": 4, "versions": first["versions"] | {"torch": "9.9"}, "gpus": []}
    changed = changed_since(path, second, start=2)
    torch_before = first["versions"]["torch"]
    assert changed == [
        "start 2: processes 2 -> 4",
        "start 2: gpus Tesla T4 -> none",
        f"start 2: versions.torch {torch_before} -> 9.9",
    ]
    write_json(path, second | {"changed": changed})
    third = second | {"turnaround_git": {"commit": "bbb", "dirty": True}}
    assert changed_since(path, third, start=3) == [*changed, "start 3: turnaround_git.commit aaa -> bbb"]


def test_a_damaged_description_of_then_says_nothing(tmp_path):
    path = tmp_path / "machine.json"
    for content in ('{"changed": 7, "versions": 3, "gpus": [4]}', "[]", ""):
        path.write_text(content)
        assert all(isinstance(line, str) for line in changed_since(path, describe(**SPREAD), start=2))
