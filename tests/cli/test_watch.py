"""`turnaround watch` as a user sees it: what it prints, where it is reached, how it ends."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from analysis.build import Plan, build, rising
from forking import ForkingParent
from http_client import free_port
from live_helpers import Stream, ask, wait_for
from turnaround.reporting.live.address import PageAddress, tunnel


@contextlib.contextmanager
def watched(
    folder: Path, *arguments: str, state: Path, lines: int = 2, python: str = sys.executable, **environment: str
) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """The command, and the lines that it has printed once it listens."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("SSH_")}
    with subprocess.Popen(
        [python, "-m", "turnaround", "watch", str(folder), *arguments],
        env={**plain, "XDG_STATE_HOME": str(state), **environment},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            assert process.stderr is not None
            yield process, [process.stderr.readline().rstrip() for _ in range(lines)]
        finally:
            process.kill()


def place_in(line: str) -> tuple[int, str]:
    found = re.search(r":(\d+)/\?token=(\S+)", line)
    assert found is not None, line
    return int(found[1]), found[2]


def answers(port: int, token: str) -> bool:
    try:
        return ask(port, "/", token=token).status == 200
    except OSError:
        return False


def test_it_prints_its_address_answers_and_ends_with_control_c(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    build(runs / "a", Plan(accuracy=rising(epochs=3)))
    with watched(runs, "--port", "0", state=tmp_path) as (process, lines):
        port, token = place_in(lines[0])
        assert lines == [
            f"{runs} is shown at http://127.0.0.1:{port}/?token={token}",
            "Only this machine reaches it, and only with this address. Ctrl-C ends it.",
        ]
        wait_for(lambda: answers(port, token))
        assert ask(port, "/", token="wrong").status == 401
        assert ask(port, "/", token=token, Host="evil.com").status == 403
        stream = Stream(port, "/events", Authorization=f"Bearer {token}")
        wait_for(lambda: "1 finished" in stream.html())
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=120) == ("", "")
        assert process.returncode == 0
        stream.close()


def test_started_again_it_has_the_same_address(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    port = free_port()
    with watched(tmp_path / "runs", "--port", str(port), state=tmp_path) as (_, lines):
        token = place_in(lines[0])[1]
    with watched(tmp_path / "runs", "--port", str(port), state=tmp_path) as (_, lines):
        assert place_in(lines[0]) == (port, token)
    (tmp_path / "other").mkdir()
    with watched(tmp_path / "other", "--port", "0", state=tmp_path) as (_, lines):
        assert place_in(lines[0])[1] != token
    # Without a place of the user's own the token lives as long as the server, and that is said.
    with watched(tmp_path / "runs", "--port", "0", state=Path("/dev/null"), lines=3) as (_, lines):
        assert place_in(lines[0])[1] != token
        assert lines[1].startswith("The address changes with every start:")


def test_a_folder_without_runs_waits(tmp_path: Path, forking_parent: ForkingParent) -> None:
    with watched(tmp_path, "--port", "0", state=tmp_path / "state", python=forking_parent.python) as (_, lines):
        port, token = place_in(lines[0])
        wait_for(lambda: answers(port, token))
        assert f"No run yet in {tmp_path}" in ask(port, "/", token=token).body.decode()


def test_through_ssh_it_says_how_to_get_there(tmp_path: Path, forking_parent: ForkingParent) -> None:
    ssh = {"SSH_CONNECTION": "10.0.0.1 5000 10.0.0.2 22"}
    with watched(tmp_path, "--port", "0", state=tmp_path / "state", lines=3, python=forking_parent.python, **ssh) as (
        _,
        lines,
    ):
        port, _ = place_in(lines[0])
        told = rf"From your own machine first: ssh -L {port}:127\.0\.0\.1:{port} \S+@{socket.gethostname()}"
        assert re.fullmatch(told, lines[2])


def test_opened_to_the_network_it_warns(tmp_path: Path, forking_parent: ForkingParent) -> None:
    with watched(
        tmp_path, "--port", "0", "--host", "0.0.0.0", state=tmp_path / "state", python=forking_parent.python
    ) as (_, lines):
        port, token = place_in(lines[0])
        assert f"http://{socket.gethostname()}:{port}/" in lines[0]
        assert lines[1].startswith("Open to the network: whoever has this address may read what the runs have recorded")
        wait_for(lambda: answers(port, token))
        assert ask(port, "/", token=None).status == 401
        assert ask(port, "/", token=token, Host="10.1.2.3").status == 200
        assert ask(port, "/", token=token, Host="evil.com").status == 403


class Through(http.client.HTTPConnection):
    """HTTP through a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=120)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self.path))


def test_on_a_socket_of_ones_own(tmp_path: Path, forking_parent: ForkingParent) -> None:
    path = tmp_path / "s"
    with watched(tmp_path, "--socket", str(path), state=tmp_path / "state", lines=3, python=forking_parent.python) as (
        process,
        lines,
    ):
        _, token = place_in(lines[0])
        assert f"ssh -L 8765:{path} " in lines[2]

        def status() -> int:
            connection = Through(path)
            with contextlib.closing(connection):
                connection.request("GET", "/", headers={"Authorization": f"Bearer {token}"})
                return connection.getresponse().status

        wait_for(lambda: status() == 200)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 0
    assert not path.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "nowhere cannot be watched: No such file or directory. Give a run, or a folder of runs."),
        ([".", "--host", "no.such.host.invalid"], "--host no.such.host.invalid: there is no such address"),
        ([".", "--socket", "no/such/folder/s"], "--socket no/such/folder/s: cannot listen there"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(
    tmp_path: Path, arguments: list[str], said: str, forking_parent: ForkingParent
) -> None:
    done = subprocess.run(
        [forking_parent.python, "-m", "turnaround", "watch", *arguments, "--port", "0"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {said}")
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_names_another(tmp_path: Path, forking_parent: ForkingParent) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [forking_parent.python, "-m", "turnaround", "watch", str(tmp_path), "--port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 2
    assert re.search(rf"Port {port} is taken by another program\..* --port \d+ is free\.", done.stderr)


def test_places() -> None:
    here = PageAddress(directory=Path("runs"), host="::1", port=80, token="x", is_kept=True)
    assert here.url == "http://[::1]:80/?token=x"
    assert (here.is_opened, here.access.is_opened, here.access.token) == (False, False, "x")
    there = PageAddress(directory=Path("runs"), host="lab-7", port=80, token="x", is_kept=True)
    assert there.access.allows_host("LAB-7:80")
    assert there.access.allows_host("10.0.0.1")
    assert not there.access.allows_host("evil.com")
    assert "token" not in repr(there)
    assert tunnel(1, "127.0.0.1:1").startswith("ssh -L 1:127.0.0.1:1 ")
