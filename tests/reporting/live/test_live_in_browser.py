"""The live page in a real Chromium, while a real training runs, is killed, and the server comes and goes."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from analysis.build import Plan, build, rising
from forking import ForkingParent
from http_client import free_port
from reporting.page.browsing import PATIENCE_MS, PHONE_PX, check_access, violations
from turnaround.record.layout import RunDirectory
from turnaround.record.schema import ClassResult, Evaluation, to_json
from turnaround.record.writer import write_json

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror=alert(1)>"
SLOW_MS = 120_000


@contextlib.contextmanager
def started(*arguments: str, python: str, state: Path, stderr: int | IO[str]) -> Iterator[subprocess.Popen[str]]:
    """A command of ours in a session of its own; whatever it has started ends with it."""
    environment = {**os.environ, "XDG_STATE_HOME": str(state), "OMP_NUM_THREADS": "1"}
    command = [python, "-m", "turnaround", *arguments]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=stderr, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def watching(runs: Path, port: int, state: Path, *, python: str) -> Iterator[str]:
    """Yields the printed address."""
    arguments = ("watch", str(runs), "--port", str(port))
    with started(*arguments, python=python, state=state, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        yield process.stderr.readline().split()[-1]


class Opened:
    """A page, the errors on its console, and whom it asked."""

    def __init__(self, browser: Any, *, width: int = 1280) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900})
        self.context.set_default_timeout(PATIENCE_MS)
        self.page: Page = self.context.new_page()
        self.said: list[str] = []
        self.hosts: set[str] = set()
        self.page.on("console", lambda message: self.said.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: self.said.append(f"dialog: {dialog.message}"))
        self.page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))

    def number(self, selector: str) -> int:
        found = re.search(r"\d+", self.page.locator(selector).first.inner_text())
        assert found is not None
        return int(found[0])

    def wait(self, selector: str, text: str = "") -> None:
        try:
            self.page.locator(selector, has_text=text).first.wait_for(timeout=SLOW_MS)
        except Exception as error:
            shown = self.page.locator(".now-run, .counts-now, .lost").all_inner_texts()
            raise AssertionError(
                f"{selector!r} with {text!r} did not come; shown: {shown}, said: {self.said}"
            ) from error

    def wait_beyond(self, selector: str, number: int) -> None:
        rises = "([selector, number]) => parseInt(document.querySelector(selector)?.textContent) > number"
        self.page.wait_for_function(rises, arg=[selector, number], timeout=SLOW_MS)

    def shot(self, name: str) -> None:
        """Kept where TURNAROUND_SCREENSHOTS says, for people to look at."""
        if folder := os.environ.get("TURNAROUND_SCREENSHOTS"):
            self.page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def build_hostile(path: Path) -> None:
    """A run whose names are markup: its class, its cause."""
    made = build(path.with_name(f".{path.name}"), Plan(accuracy=rising(epochs=5), state="failed", cause=HOSTILE))
    classes = [ClassResult(name=name, num_images=4, accuracy=0.5) for name in (HOSTILE, "b")]
    names, confusion = [one.name for one in classes], [[2, 2], [1, 3]]
    counts = {"epoch": 5, "num_images": 8, "top1": 0.6, "top5": None, "loss": 0.5}
    found = Evaluation(**counts, classes=names, per_class=classes, confusion=confusion)
    write_json(RunDirectory(made).evaluation, to_json(found))
    made.rename(path)


EPOCHS = ".now-run.running .figures b"


def test_a_training_is_watched_from_its_beginning_to_its_violent_end(
    browser: Any, fruit_folder: Path, tmp_path: Path, forking_parent: ForkingParent, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, port, python = tmp_path / "runs", free_port(), forking_parent.python
    runs.mkdir()
    monkeypatch.setenv("TURNAROUND_FAULT", "kind=slow,ms=50")  # an epoch of six steps takes a third of a second
    settings = ["data.size_px=32", "training.epochs=8000", "training.checkpoint_every_s=1000"]
    training = ["train", str(fruit_folder), "--out", str(runs / "first"), "--processes", "1", "--device", "cpu"]
    training += [part for setting in settings for part in ("--set", setting)]
    opened = Opened(browser)
    with (
        (tmp_path / "training.log").open("w") as log,  # a pipe that nobody reads would hold it up
        contextlib.ExitStack() as servers,
        started(*training, python=python, state=tmp_path, stderr=log) as trained,
    ):
        address = servers.enter_context(watching(runs, port, tmp_path, python=python))
        opened.page.goto(address)
        assert opened.page.url == f"http://127.0.0.1:{port}/"  # the token has left the address
        opened.wait(".now-run.running h3", "first")
        opened.wait(EPOCHS)
        opened.wait_beyond(EPOCHS, opened.number(EPOCHS) + 1)  # numbers rise
        opened.wait(".now-run.running .figures", "images/s")
        opened.wait(".now-run.running .figures", "left")
        assert 0 < float(opened.page.locator(".now-run progress").get_attribute("value") or 0) < 1

        opened.page.reload()
        opened.wait_beyond(EPOCHS, 1)

        build_hostile(runs / "second")  # a second run appears
        opened.wait(".now-run.failed h3", "second")
        opened.wait("[role=status]", "second: failed")
        assert opened.page.locator(".now-run.failed .cause").inner_text() == HOSTILE
        opened.wait("[data-block$='/figure/confusion']")  # a class of that name is a label
        named = opened.page.locator("[data-block$='/figure/confusion'] .plot").get_attribute("aria-label") or ""
        assert HOSTILE in named
        assert opened.page.locator("img[src=x]").count() == 0
        opened.wait("figure.plotted .drawn")
        opened.shot("live-running")
        assert opened.said == []

        servers.close()  # the server is gone, and comes back at the same address
        opened.wait(".lost", "Connection lost, trying again.")
        before = opened.number(EPOCHS)
        again = servers.enter_context(watching(runs, port, tmp_path, python=python))
        assert again == address
        opened.wait_beyond(EPOCHS, before)
        assert opened.page.locator(".lost").inner_text() == ""
        opened.said = [
            line for line in opened.said if "ERR_" not in line
        ]  # the browser's own words on lost connections

        os.killpg(trained.pid, signal.SIGKILL)  # nothing says goodbye
        opened.wait(".now-run.interrupted h3", "first")
        opened.wait(".now-run.interrupted .cause", "Killed without a word")
        opened.wait("[role=status]", "first: interrupted")
        assert opened.page.locator(".now-run.running").count() == 0
        assert violations(opened.page) == []
        opened.shot("live-killed")
        assert opened.said == []
    assert opened.hosts == {f"127.0.0.1:{port}"}
    opened.context.close()


def test_everybody_can_read_it_on_a_phone_and_a_desktop(
    browser: Any, tmp_path: Path, forking_parent: ForkingParent
) -> None:
    runs = tmp_path / "runs"
    for number in range(3):
        build(runs / f"finished-{number}", Plan(accuracy=rising(epochs=5), workers=1 + number))
    build(runs / ("a-name-that-is-much-too-long-for-a-phone-" * 3), Plan(accuracy=rising(epochs=5), state="failed"))
    build(runs / "running", Plan(accuracy=rising(epochs=5), state="running", cause=None))
    opened = Opened(browser, width=PHONE_PX)
    with watching(runs, free_port(), tmp_path, python=forking_parent.python) as address:
        opened.page.goto(address)
        opened.wait(".done li", "finished-2")
        opened.wait(".now-run.interrupted h3", "running")  # nobody holds it
        opened.wait("figure.plotted .drawn")
        check_access(opened.page, widths=(PHONE_PX, 1280), name="live")
        assert opened.said == []
    opened.context.close()


def test_without_its_token_the_page_stays_closed(browser: Any, tmp_path: Path, forking_parent: ForkingParent) -> None:
    opened = Opened(browser)
    with watching(tmp_path, free_port(), tmp_path / "state", python=forking_parent.python) as address:
        bare = address.partition("?")[0]
        opened.page.goto(bare)
        assert "The token is missing or wrong" in opened.page.locator("body").inner_text()
        opened.page.goto(f"{bare}?token=wrong")
        assert "The token is missing or wrong" in opened.page.locator("body").inner_text()
        check_access(opened.page, name="refused")
        opened.page.goto(address)
        opened.wait(".counts-now", "No run yet in")
        check_access(opened.page, name="live-empty")
        assert opened.page.evaluate("document.cookie") == ""  # no script reads it
    opened.context.close()
