"""`turnaround serve` as a user sees it: what it prints, how it ends, and the page in a real browser."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forking import ForkingParent
from http_client import ask
from reporting.page.browsing import PATIENCE_MS, PHONE_PX, check_access
from turnaround.errors import InputError
from turnaround.use.predictor import Predictor
from turnaround.use.server import Address, listen
from turnaround.use.trained import load_trained
from use_helpers import serving, validation_images

if TYPE_CHECKING:
    from playwright.sync_api import Page

DRAWN = """await new Promise((done) => {
    const canvas = Object.assign(document.createElement("canvas"), {width: 40, height: 40});
    canvas.getContext("2d").fillRect(5, 5, 20, 20);
    canvas.toBlob(done);
})"""
HOSTILE = "</script><img src=x onerror=alert(1)>"


@contextlib.contextmanager
def served(
    run: Path, *arguments: str, python: str = sys.executable
) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """The command, and the lines that it has printed once it listens."""
    command = [python, "-m", "turnaround", "serve", str(run), "--port", "0", "--device", "cpu", *arguments]
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            assert process.stderr is not None
            yield process, [process.stderr.readline().rstrip() for _ in range(4)]
        finally:
            process.kill()


def port_in(line: str) -> int:
    return int(re.search(r":(\d+)/", line)[1])


def test_it_prints_its_address_answers_and_ends_with_control_c(trained_run: Path) -> None:
    with served(trained_run) as (process, lines):
        port = port_in(lines[0])
        assert lines[:3] == [
            f"fruit answers at http://127.0.0.1:{port}/",
            f"  curl --data-binary @picture.jpg http://127.0.0.1:{port}/classify",
            "Only this machine reaches it. --host 0.0.0.0 opens it to the network, with a token. Ctrl-C ends it.",
        ]
        assert lines[3] == f"It answers with the {load_trained(trained_run).which}."
        picture = validation_images(trained_run)[0][0].read_bytes()
        assert len(ask(port, "/classify", "POST", picture).json["classes"]) == 5
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=120) == ("", "")
        assert process.returncode == 0


def test_opened_to_the_network_it_wants_a_token(trained_run: Path, forking_parent: ForkingParent) -> None:
    with served(trained_run, "--host", "0.0.0.0", python=forking_parent.python) as (_, lines):
        port, token = port_in(lines[0]), lines[0].partition("#")[2]
        assert len(token) >= 32
        assert lines[0].startswith(f"fruit answers at http://{socket.gethostname()}:")
        assert f'-H "Authorization: Bearer {token}"' in lines[1]
        assert lines[2].startswith(
            "Open to the network: whoever has the token may ask, and pictures travel unencrypted."
        )
        assert ask(port, "/about").status == 401
        assert ask(port, "/about", Authorization=f"Bearer {token}").status == 200
        assert ask(port, "/about", Host="evil.com", Authorization=f"Bearer {token}").status == 403


def test_addresses() -> None:
    assert Address(host="127.0.0.1", port=80).url == "http://127.0.0.1:80/"
    assert Address(host="::1", port=80).url == "http://[::1]:80/"
    assert Address(host="lab-7", port=80, token="x").url == "http://lab-7:80/#x"
    assert "token" not in repr(Address(host="lab-7", port=80, token="x"))


def test_where_it_cannot_listen() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"Port {port} is taken by another program. Choose another: --port 0"):
            listen("127.0.0.1", port)
    with pytest.raises(InputError, match=r"--host no\.such\.host\.invalid: there is no such address"):
        listen("no.such.host.invalid", 0)
    with pytest.raises(InputError, match=r"Cannot listen on 203\.0\.113\.1, port 0: .*\. Choose another\."):
        listen("203.0.113.1", 0)


# --- the page, in Chromium


@pytest.fixture(scope="module")
def predictor(trained_run: Path) -> Predictor:
    return Predictor.load(trained_run, device="cpu")


@contextlib.contextmanager
def opened(browser: Any, address: str, *, width: int = 1280) -> Iterator[Page]:
    """The page, which must load without a word on its console."""
    context = browser.new_context(viewport={"width": width, "height": 800})
    context.set_default_timeout(PATIENCE_MS)
    page: Page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(f"dialog: {dialog.message}"))
    page.goto(address)
    yield page
    assert [line for line in said if "status of 4" not in line] == []
    context.close()


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, PHONE_PX])
def test_a_picture_is_dropped_and_its_class_appears(
    width: int, browser: Any, predictor: Predictor, trained_run: Path, tmp_path: Path
) -> None:
    files, _ = validation_images(trained_run)
    (tmp_path / "broken.jpg").write_bytes(b"<html>")
    wanted = predictor.classify([files[3]], top=5)[0]
    with serving(predictor) as port, opened(browser, f"http://127.0.0.1:{port}/", width=width) as page:
        page.locator("#classes li").first.wait_for(state="attached")
        assert page.locator("h1").inner_text() == "fruit"
        assert page.title() == "fruit · turnaround"
        page.set_input_files("#file", [tmp_path / "broken.jpg", files[3]])
        card = page.locator(".card").first  # the newest is on top
        card.locator(".bars li").nth(4).wait_for()
        assert card.locator(".state").inner_text() == wanted[0].name
        assert card.locator(".label").all_inner_texts() == [guess.name for guess in wanted]
        assert card.locator(".share").first.inner_text() == f"{100 * wanted[0].probability:.1f} %"
        failed = page.locator(".card.failed .state").inner_text()
        assert failed == "This cannot be read as an image: not an image (starts with '<html>')."
        check_access(page, widths=(width,), name="serve")


@pytest.mark.browser
def test_dropping_works_like_choosing(browser: Any, predictor: Predictor) -> None:
    with serving(predictor) as port, opened(browser, f"http://127.0.0.1:{port}/") as page:
        page.evaluate(
            f"""async () => {{
                const data = new DataTransfer();
                data.items.add(new File([{DRAWN}], "drawn.png", {{type: "image/png"}}));
                document.dispatchEvent(new DragEvent("drop", {{dataTransfer: data, bubbles: true, cancelable: true}}));
            }}"""
        )
        page.locator(".bars li").nth(4).wait_for()
        assert page.locator(".card .name").inner_text() == "drawn.png"


@pytest.mark.browser
def test_names_of_classes_are_text_and_never_markup(browser: Any, predictor: Predictor, trained_run: Path) -> None:
    from dataclasses import replace

    hostile = Predictor(replace(predictor.trained, classes=tuple(f"{HOSTILE}{n}" for n in range(6))), device="cpu")
    with serving(hostile) as port, opened(browser, f"http://127.0.0.1:{port}/") as page:
        page.set_input_files("#file", [validation_images(trained_run)[0][0]])
        page.locator(".bars li").nth(4).wait_for()
        assert page.locator(".card .state").inner_text().startswith(HOSTILE)
        assert page.locator("#classes img, .answer img").count() == 0


@pytest.mark.browser
def test_the_token_comes_from_the_address(browser: Any, predictor: Predictor, trained_run: Path) -> None:
    access = Address(host="lab-7", port=1, token="s3cret").access
    with serving(predictor, access) as port:
        with opened(browser, f"http://127.0.0.1:{port}/#s3cret") as page:
            page.set_input_files("#file", [validation_images(trained_run)[0][0]])
            page.locator(".bars li").nth(4).wait_for()
        with opened(browser, f"http://127.0.0.1:{port}/") as page:
            page.get_by_text("This page needs its token").wait_for()


class Elsewhere(BaseHTTPRequestHandler):
    """A web site that forbids its pages nothing."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><link rel=icon href=data:,>")

    def log_message(self, *arguments: object) -> None:
        pass


class Counting(Predictor):
    """Knows how often it was asked."""

    num_asked = 0

    def guesses(self, *arguments: Any, **named: Any) -> Any:
        self.num_asked += 1
        return super().guesses(*arguments, **named)


@pytest.mark.browser
def test_a_page_of_another_site_is_refused(browser: Any, predictor: Predictor) -> None:
    """In the same browser: it can neither send a picture nor read what is here."""
    network = Counting(predictor.trained, device="cpu")
    site = ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    thread = threading.Thread(target=site.serve_forever)
    thread.start()
    try:
        with serving(network) as port:
            page = browser.new_page()
            page.set_default_timeout(PATIENCE_MS)
            page.goto(f"http://127.0.0.1:{site.server_port}/")
            send = (
                f"async (url) => {{ const body = {DRAWN}; return fetch(url, {{method: 'POST', body, mode: 'no-cors'}})"
            )
            send += ".then(() => 'sent', () => 'refused') }"
            assert page.evaluate(send, f"http://127.0.0.1:{port}/classify") == "refused"
            read = "(url) => fetch(url).then(() => 'read', () => 'refused')"
            assert page.evaluate(read, f"http://127.0.0.1:{port}/about") == "refused"
            page.goto(f"http://127.0.0.1:{port}/")
            assert network.num_asked == 0
            assert page.evaluate(send, f"http://127.0.0.1:{port}/classify") == "sent"
            assert network.num_asked == 1
            page.close()
    finally:
        site.shutdown()
        site.server_close()
        thread.join()
