"""A process that begins with the command: it trains what was asked for, or nothing is left of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from running import weights
from struck import waits_for
from turnaround.launch import preload
from turnaround.record.reader import Run

SETTINGS = ("--device", "cpu", "--set", "data.size_px=32", "--set", "training.epochs=1", "--set", "model.name=small")


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    preload.end()


def waiting() -> subprocess.Popen[bytes] | None:
    return preload._preloaded


def outside() -> dict[str, str]:
    """The environment of a terminal: without what tests and launchers set."""
    return {k: v for k, v in os.environ.items() if not k.startswith("TURNAROUND_FORK") and k != preload.SWITCH}


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (["report", "runs"], {}),
        ([], {}),
        (["train", "--help"], {}),
        (["train", "fruit", "--processes", "2"], {}),
        (["train", "fruit", "--processes=2"], {}),
        (["train", "fruit", "--on=slurm"], {}),
        (["train", "fruit", "--workers", "4"], {}),  # on processors as many processes as there are cores
        (["train", "fruit"], {"RANK": "0"}),
        (["train", "fruit"], {"TURNAROUND_PRELOAD": "off"}),
        (["train", "fruit"], {"TURNAROUND_FORK_SERVER": "/tmp/server"}),
    ],
)
def test_a_command_that_trains_otherwise_starts_nothing(
    words: list[str], variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preload, "num_gpus", lambda: 0)
    preload.begin(words, {**outside(), **variables})
    assert waiting() is None
    assert preload.adopted("run", {}, {}) is None


def test_one_gpu_hosts_all_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert preload.num_gpus(str(tmp_path)) == 1
    assert preload.num_gpus(str(tmp_path / "none")) == 0
    for gpus, is_one_process in ((1, True), (0, False), (4, False)):
        monkeypatch.setattr(preload, "num_gpus", lambda gpus=gpus: gpus)
        assert preload._asks_for_more(["train", "fruit", "--workers=16"]) is not is_one_process
        assert not preload._asks_for_more(["train", "fruit", "--workers", "16", "--processes", "1"])


def test_the_waiting_process_is_ended_when_nobody_needs_it() -> None:
    preload.begin(["train", "fruit", "--processes", "1"], outside())
    process = waiting()
    assert process is not None
    assert process.poll() is None
    preload.end()
    assert process.poll() is not None
    assert waiting() is None


def test_without_an_order_it_ends_by_itself_and_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    preload.begin(["resume", "run"], outside())
    process = waiting()
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(timeout=120) == 1
    assert capfd.readouterr() == ("", "")


def test_one_that_has_ended_or_sees_other_devices_is_not_taken() -> None:
    preload.begin(["train", "fruit"], outside())
    process = waiting()
    assert process is not None
    assert preload.adopted("run", {}, {"CUDA_VISIBLE_DEVICES": "1"}) is None
    assert process.poll() is not None
    preload.begin(["train", "fruit"], outside())
    process = waiting()
    assert process is not None
    process.kill()
    process.wait()
    assert preload.adopted("run", {}, {}) is None


def command(folder: Path, out: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "turnaround", "train", str(folder), "--out", str(out), *SETTINGS, *words]


def test_the_process_that_began_with_the_command_trains_the_same(fruit_folder: Path, tmp_path: Path) -> None:
    environment = {**outside(), "OMP_NUM_THREADS": "1"}
    ahead, later = tmp_path / "ahead", tmp_path / "later"
    begun = subprocess.Popen(command(fruit_folder, ahead), env=environment, stderr=subprocess.PIPE)

    def children() -> list[list[str]]:
        return [child.cmdline() for child in psutil.Process(begun.pid).children()]

    waits_for(lambda: any("--preload" in words for words in children()))
    waits_for(lambda: (ahead / "logs" / "start.json").exists())
    assert [words[2:4] for words in children() if "turnaround.worker" in words] == [["turnaround.worker", "--preload"]]
    _, errors = begun.communicate(timeout=300)
    assert begun.returncode == 0, errors.decode()
    alone = {**environment, preload.SWITCH: preload.OFF}
    subprocess.run(command(fruit_folder, later), env=alone, check=True, capture_output=True)
    ours, theirs = weights(Run.load(ahead)), weights(Run.load(later))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    parts = json.loads((ahead / "machine.json").read_text())["start_up_s"]
    assert parts["command"] < parts["import"]


def test_bad_input_is_said_once_and_leaves_no_process(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path / "no such folder", tmp_path / "run"),
        env=outside(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.count("no such folder") >= 1
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
    assert [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path / "run") in (p.info["cmdline"] or [])] == []
