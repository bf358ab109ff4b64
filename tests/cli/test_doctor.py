"""`turnaround doctor` started on several hosts: what it says of the network between them."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from turnaround.cli import doctor as verb
from turnaround.cli.doctor import network_text
from turnaround.errors import InputError, MissingPartError
from turnaround.record.reader import Run
from turnaround.record.writer import write_json

FACTS: dict[str, Any] = {"backend": "gloo", "processes": 4, "hosts": 2, "message_mb": 64, "elapsed_s": 0.128}


def test_the_network_between_hosts_in_words() -> None:
    assert network_text({**FACTS, "gb_per_s": 0.5}) == (
        "4 processes on 2 hosts agree through gloo: 64 MB in 128.0 ms, 0.5 GB/s between hosts. For forecasts: "
        "turnaround predict DIR --network 0.5"
    )
    alone = network_text({**FACTS, "hosts": 1, "gb_per_s": None})
    assert alone.endswith("One host has no network between hosts: start this on two or more to measure it.")


def test_processes_that_do_not_meet_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real probe, with a backend that cannot start: nobody listens under this address."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "no such host", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    module = sys.modules[network_text.__module__]
    monkeypatch.setattr(module, "PROBE_TIMEOUT_S", 0.2)
    with pytest.raises(MissingPartError, match=r"cannot speak to each other \(no answer within 0.2 s\).*GLOO_SOCKET"):
        verb(json_=False)


def test_the_probe_of_two_processes_leaves_no_folder_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.distributed.run makes one in /tmp for its logs, where it is given none, and leaves it there."""
    module, commands = sys.modules[network_text.__module__], []
    monkeypatch.setattr(module, "_answer", lambda command, answer, **_: commands.append((command, answer)) or {})
    module._all_reduce()
    ((command, answer),) = commands
    assert command[command.index("--log-dir") + 1] == str(answer.parent)
    assert not answer.parent.exists()


# --- where the start-up of a run went


def test_the_parts_of_a_start_add_up_to_it(trained_run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    verb(start_up=trained_run, json_=True)
    told = json.loads(capfd.readouterr().out)
    assert list(told["start_up_s"])[:4] == ["command", "import", "device and network code", "wait for images"]
    assert told["total_s"] == pytest.approx(sum(told["start_up_s"].values()))
    # The run's own clock goes on until the first step, and counts decoding apart.
    time_s = Run.load(trained_run).status.time_s
    assert 0 < told["total_s"] <= time_s["start_up"] + time_s["decode"] + 0.1
    verb(start_up=trained_run, json_=False)
    shown = capfd.readouterr().out
    assert all(part in shown for part in told["start_up_s"])
    assert "Loading code took" in shown


def test_a_run_without_them_says_so(trained_run: Path, tmp_path: Path) -> None:
    shutil.copytree(trained_run, tmp_path / "run")
    machine = {**Run.load(trained_run).machine, "start_up_s": {"import": "long", "command": float("nan"), "x": True}}
    write_json(tmp_path / "run" / "machine.json", machine)
    with pytest.raises(InputError, match=r"run does not say where its start-up went: .* Train one"):
        verb(start_up=tmp_path / "run")
