"""A word at the end: real commands, a real server, a real record; secrets, failures and idle GPUs."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from turnaround import safe_path
from turnaround.errors import InputError
from turnaround.record import notify
from turnaround.record.host import without_secrets
from turnaround.record.notify import IdleWatch, Notice, Notifier, notice_of, notified, study_notified
from turnaround.record.schema import GpuSample, TelemetrySample, to_json
from turnaround.record.writer import Lines
from turnaround.recorder import Recorder

SAVES = """
import os, sys
heard = sys.stdin.buffer.read(), os.environ["TURNAROUND_NOTIFY_EVENT"].encode()
open(sys.argv[1], "ab").write(b"\\n".join([*heard, b""]))
"""
NOTICE = Notice(event="finished", text="run: finished.", name="run", directory="/runs/run")


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server of these tests is on this machine: nobody stands in between."""
    monkeypatch.setenv("no_proxy", "*")


def saving(file: Path) -> str:
    """A command that appends what it hears to the file."""
    script = file.with_suffix(".py")
    script.write_text(SAVES)
    return f"{sys.executable} {script} {file}"


def heard(file: Path) -> list[dict[str, Any]]:
    lines = file.read_text().splitlines() if file.exists() else []
    assert lines[1::2] == [json.loads(line)["event"] for line in lines[::2]]
    return [json.loads(line) for line in lines[::2]]


@contextmanager
def server(status: int) -> Iterator[tuple[str, list[bytes]]]:
    """An address with a secret in it that answers with this status, and the bodies that it got."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(status)
            self.send_header("Location", "http://127.0.0.1:9/elsewhere")
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as there:
        thread = threading.Thread(target=there.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{there.server_address[1]}/hooks/SECRET", bodies
        finally:
            there.shutdown()
            thread.join()


def train(path: Path, *, fails: bool = False) -> None:
    with Recorder(path, epochs=2) as rec:
        rec.epoch(train_loss=1.0, val_accuracy=0.5)
        if fails:
            raise ZeroDivisionError("division by zero")
        rec.epoch(train_loss=0.5, val_accuracy=0.75)


def test_a_run_that_ends_and_one_that_fails(tmp_path: Path) -> None:
    notifier = Notifier(saving(tmp_path / "heard"))
    with notified(tmp_path / "good", notifier, tell=pytest.fail) as begin:
        begin()
        train(tmp_path / "good")
    with notified(tmp_path / "bad", notifier, tell=pytest.fail) as begin:
        begin()
        with pytest.raises(ZeroDivisionError):
            train(tmp_path / "bad", fails=True)
    good, bad = heard(tmp_path / "heard")
    assert (good["event"], good["name"], good["epochs_done"], good["val_accuracy"]) == ("finished", "good", 2, 0.75)
    assert good["directory"] == str(tmp_path / "good")
    assert good["text"].startswith("good: finished after 2 epochs, accuracy 75")
    assert (bad["event"], bad["cause"]) == ("failed", "ZeroDivisionError: division by zero")


def test_nothing_is_said_of_a_run_that_was_not_ours_or_goes_on(tmp_path: Path) -> None:
    train(tmp_path / "others")
    with (
        pytest.raises(InputError),
        notified(tmp_path / "others", Notifier(saving(tmp_path / "heard")), tell=pytest.fail),
    ):
        raise InputError("it exists already")
    status = tmp_path / "others" / "status.json"
    content = json.loads(status.read_text())
    status.write_text(
        json.dumps({name: value for name, value in content.items() if name != "crc"} | {"state": "running"})
    )
    assert notice_of(tmp_path / "others") is None
    assert not (tmp_path / "heard").exists()


def test_a_study_is_told_once(tmp_path: Path) -> None:
    notifier = Notifier(saving(tmp_path / "heard"))
    with study_notified(tmp_path / "s", notifier, tell=pytest.fail):
        train(tmp_path / "s" / "a")
        with pytest.raises(ZeroDivisionError):
            train(tmp_path / "s" / "b", fails=True)
    with pytest.raises(KeyboardInterrupt), study_notified(tmp_path / "s", notifier, tell=pytest.fail):
        raise KeyboardInterrupt
    assert [(one["event"], one["text"]) for one in heard(tmp_path / "heard")] == [
        ("failed", "s: failed, 1 of 2 runs finished."),
        ("interrupted", "s: interrupted, 1 of 2 runs finished."),
    ]


def test_an_address_gets_json() -> None:
    with server(200) as (address, bodies):
        Notifier(address).send(NOTICE, pytest.fail)
    assert json.loads(bodies[0]) == {
        "event": "finished",
        "text": "run: finished.",
        "name": "run",
        "directory": "/runs/run",
        **dict.fromkeys(("cause", "epochs_done", "val_accuracy", "time_s")),
    }


@pytest.mark.parametrize(("status", "words"), [(404, "the address answers 404"), (302, "the address answers 302")])
def test_an_address_that_refuses_or_sends_elsewhere(status: int, words: str) -> None:
    said: list[str] = []
    with server(status) as (address, _):
        Notifier(address).send(NOTICE, said.append)
    assert said == [f"--notify could not tell that run is finished: {words}."]


def test_failures_never_hurt_and_never_tell_the_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    Notifier("http://127.0.0.1:9/SECRET").send(NOTICE, said.append)  # nobody listens at the port of "discard"
    Notifier(f"{sys.executable} -c 'raise SystemExit(3)' SECRET").send(NOTICE, said.append)
    monkeypatch.setattr(notify, "MAX_COMMAND_S", 0.2)
    Notifier(f"{sys.executable} -c 'import time; time.sleep(9)' SECRET").send(NOTICE, said.append)
    gone = tmp_path / "program"
    gone.write_text("#!/bin/sh\n")
    gone.chmod(0o700)
    notifier = Notifier(f"{gone} SECRET")
    gone.unlink()
    notifier.send(NOTICE, said.append)
    reasons = ["it cannot be reached (Connection refused)", "the command ended with exit status 3"]
    reasons += ["the command took more than 0 s", "the command cannot be run (No such file or directory)"]
    assert said == [f"--notify could not tell that run is finished: {reason}." for reason in reasons]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("", "--notify is empty"),
        ("$NOT_SET_ANYWHERE", r"--notify names \$NOT_SET_ANYWHERE, which is not set"),
        ("https://", "has an address without a host"),
        ("ftp://host/SECRET", "posts to https:// or http://, not to ftp:"),
        ("echo 'open", "is no command: No closing quotation"),
        ("no-such-program-here --now", "there is no program 'no-such-program-here' here"),
    ],
)
def test_what_cannot_be_meant(given: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        Notifier(given)
    assert "SECRET" not in str(caught.value)


def test_variables_are_read_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEARD", str(tmp_path / "heard"))
    Notifier(saving(tmp_path / "heard").rpartition(" ")[0] + " ${HEARD}").send(NOTICE, pytest.fail)
    assert len(heard(tmp_path / "heard")) == 1


def test_the_command_has_the_users_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in safe_path.settings({}).items():
        monkeypatch.setenv(name, value)
    shows = f"sh -c 'env > {tmp_path / 'environment'}'"
    Notifier(shows).send(NOTICE, pytest.fail)
    assert "SAFE" not in (tmp_path / "environment").read_text()


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["train", "x", "--notify", "https://h/SECRET", "--json"], ["train", "x", "--notify", "...", "--json"]),
        (["train", "--notify=curl SECRET", "x"], ["train", "--notify=...", "x"]),
        (["train", "--notify", "$HOOK", "--notify-idle", "9s"], ["train", "--notify", "$HOOK", "--notify-idle", "9s"]),
        (["train", "--notify=${HOOK}"], ["train", "--notify=${HOOK}"]),
        (["train", "--notify", "--notify"], ["train", "--notify", "..."]),
    ],
)
def test_the_record_keeps_no_secret(words: list[str], kept: list[str]) -> None:
    assert without_secrets(words) == kept


def sample(time_s: float, *percent: float | None, run_processes: int | None = 1) -> TelemetrySample:
    gpus = [
        GpuSample(index=index, name="V100", utilisation_percent=value, run_processes=run_processes)
        for index, value in enumerate(percent)
    ]
    return TelemetrySample(time_s=time_s, at="2026-11-16T12:00:00+00:00", gpus=gpus)


def told(folder: Path, watch: IdleWatch, *samples: TelemetrySample) -> list[str]:
    with Lines(folder / "telemetry-node1.jsonl", sync=False) as lines:
        for one in samples:
            lines.write(to_json(one))
    return [notice.text for notice in watch.look(folder)]


def test_a_gpu_that_idles_is_told_once_until_it_is_busy_again(tmp_path: Path) -> None:
    watch = IdleWatch(60.0)
    assert told(tmp_path, watch, sample(0, 90, 0), sample(59, 90, 3)) == []
    assert told(tmp_path, watch, sample(60, 90, 0)) == [f"{tmp_path.name}: GPU 1 (V100) of node1 has idled for 60 s."]
    assert told(tmp_path, watch, sample(200, 90, 0)) == []
    assert told(tmp_path, watch, sample(201, 90, 80), sample(240, 90, 0)) == []
    assert len(told(tmp_path, watch, sample(262, 90, 0))) == 1
    # Another start of the run counts from 0; a GPU that tells nothing or is not the run's is not idle.
    assert told(tmp_path, watch, sample(1, 0, None), sample(50, 0, None)) == []
    assert told(tmp_path, watch, sample(300, 0, 0, run_processes=0)) == []


def test_an_idle_gpu_is_sent_while_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "LOOK_EVERY_S", 0.02)
    sent = threading.Event()
    notifier = Notifier(saving(tmp_path / "heard"), idle_s=60)
    real = notifier.send
    monkeypatch.setattr(notifier, "send", lambda notice, tell: (real(notice, tell), sent.set()))
    with notified(tmp_path / "run", notifier, tell=pytest.fail) as begin:
        train(tmp_path / "run")
        begin()
        told(tmp_path / "run", IdleWatch(1e9), sample(0, 0), sample(61, 0))
        assert sent.wait(20)
    assert [one["event"] for one in heard(tmp_path / "heard")] == ["gpu_idle", "finished"]


def test_a_damaged_sample_tells_nothing(tmp_path: Path) -> None:
    watch = IdleWatch(60.0)
    assert told(tmp_path, watch, sample(0, 0), sample(59, 0)) == []
    file = tmp_path / "telemetry-node1.jsonl"
    begin = file.stat().st_size
    assert told(tmp_path, IdleWatch(1e9), sample(61, 0)) == []
    content = file.read_bytes()
    file.write_bytes(content[:begin] + content[begin:].replace(b"61", b"99"))  # its checksum is that of 61
    assert watch.look(tmp_path) == []


def test_of_a_long_file_only_the_end_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "MAX_TAIL_BYTES", 1000)
    told(tmp_path, IdleWatch(1e9), *(sample(second, 0) for second in range(200)))
    watch = IdleWatch(60.0)
    assert watch.look(tmp_path) == []  # the last thousand bytes are a few seconds
    assert len(told(tmp_path, watch, sample(258, 0))) == 1


def test_a_folder_that_is_gone_tells_nothing(tmp_path: Path) -> None:
    assert IdleWatch(60.0).look(tmp_path / "gone") == []
