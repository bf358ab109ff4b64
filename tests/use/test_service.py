"""The running server, asked as browsers, programs and strangers ask."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from http_client import Reply, ask
from turnaround.use import service as service_module
from turnaround.use.predictor import Guess, Predictor
from turnaround.use.service import RULES, Limits, Service
from turnaround.use.uploads import RefusedUploadError, UploadLimits, UploadMemory
from turnaround.web import sockets as server_module
from turnaround.web.guard import HEADERS, Access
from use_helpers import serving, validation_images

BOUNDARY = "xYzZy"


@pytest.fixture(scope="module")
def predictor(trained_run: Path) -> Predictor:
    return Predictor.load(trained_run, device="cpu")


@pytest.fixture(scope="module")
def port(predictor: Predictor) -> Iterator[int]:
    limits = Limits(upload=UploadLimits(max_bytes=200_000))
    with serving(predictor, limits=limits) as port:
        yield port


@pytest.fixture(scope="module")
def pictures(trained_run: Path) -> list[bytes]:
    return [file.read_bytes() for file in validation_images(trained_run)[0]]


def form(*parts: tuple[str, bytes]) -> bytes:
    """A multipart form; a part whose name ends in ! is no file."""
    lines = []
    for name, content in parts:
        file = "" if name.endswith("!") else '; filename="../../etc/passwd"'
        lines.append(f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode())
        lines.append(content + b"\r\n")
    return b"".join(lines) + f"--{BOUNDARY}--\r\n".encode()


def classify(port: int, body: bytes, path: str = "/classify", **headers: str) -> Reply:
    return ask(port, path, "POST", body, **headers)


def names(guesses: tuple[Guess, ...]) -> list[str]:
    return [guess.name for guess in guesses]


def test_the_body_and_a_form_give_what_classify_gives(port: int, predictor: Predictor, pictures: list[bytes]) -> None:
    wanted = predictor.classify([pictures[0]])[0]
    kind = {"Content_Type": f"multipart/form-data; boundary={BOUNDARY}"}
    for reply in (
        classify(port, pictures[0]),
        classify(port, form(("note!", b"hello"), ("file", pictures[0])), **kind),
    ):
        assert reply.status == 200
        classes = reply.json["classes"]
        assert [one["name"] for one in classes] == names(wanted)
        assert classes[0]["probability"] == pytest.approx(wanted[0].probability, abs=1e-5)
    assert len(classify(port, pictures[0], "/classify?top=2").json["classes"]) == 2
    assert len(classify(port, pictures[0], "/classify?top=999").json["classes"]) == 6


def test_many_at_once_each_get_their_own_answer(port: int, predictor: Predictor, pictures: list[bytes]) -> None:
    wanted = [names(guesses)[0] for guesses in predictor.classify(pictures, top=1)]
    with ThreadPoolExecutor(12) as pool:
        replies = list(pool.map(lambda data: classify(port, data), pictures))
    assert [reply.status for reply in replies] == [200] * len(pictures)
    assert [reply.json["classes"][0]["name"] for reply in replies] == wanted


def huge() -> bytes:
    carrier = BytesIO()
    Image.new("1", (9000, 9000)).save(carrier, "PNG")
    return carrier.getvalue()


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        (b"", 400, "There is no picture in this request."),
        (b"<!DOCTYPE html>", 422, "not an image (starts with '<!DOCTYPE')"),
        (b"\xff\xd8\xff\xe0 broken", 422, "Truncated File Read"),
        (huge, 422, "too large (9000 x 9000 px, more than the limit of 50 Mpx)"),
        (b"x" * 300_000, 413, "larger than 0.2 MB"),
    ],
    ids=["empty", "html", "broken", "pixels", "bytes"],
)
def test_what_cannot_be_classified_is_told_and_the_server_lives_on(
    port: int, body: bytes | Callable[[], bytes], status: int, sentence: str, pictures: list[bytes]
) -> None:
    reply = classify(port, body() if callable(body) else body)
    assert (reply.status, sentence in reply.json["error"]) == (status, True), reply
    assert classify(port, pictures[0]).status == 200


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"nonsense", f"multipart/form-data; boundary={BOUNDARY}"),
        (b"nonsense", "multipart/form-data"),
        (form(("a", b"1"), ("b", b"2")), f"multipart/form-data; boundary={BOUNDARY}"),
        (form(("a!", b"1")), f"multipart/form-data; boundary={BOUNDARY}"),
        (form(*((f"{n}!", b"1") for n in range(9))), f"multipart/form-data; boundary={BOUNDARY}"),
    ],
    ids=["no form", "no boundary", "two files", "no file", "many fields"],
)
def test_forms_that_hold_no_picture(port: int, body: bytes, kind: str) -> None:
    reply = classify(port, body, Content_Type=kind)
    assert reply.status == 400
    assert "form cannot be read" in reply.json["error"] or "no picture" in reply.json["error"]


@pytest.mark.parametrize("top", ["0", "-1", "x", "1e3", "99999999", ""])
def test_top_is_checked(port: int, top: str, pictures: list[bytes]) -> None:
    reply = classify(port, pictures[0], f"/classify?top={top}")
    assert (reply.status, reply.json["error"].startswith("top must be a whole number")) == (400, True)


def test_a_body_without_a_length_is_counted(port: int, pictures: list[bytes]) -> None:
    assert ask(port, "/classify", "POST", iter([pictures[0][:50], pictures[0][50:]])).status == 200
    reply = ask(port, "/classify", "POST", (b"x" * 50_000 for _ in range(200)))
    assert (reply.status, "larger than 0.2 MB" in reply.json["error"]) == (413, True)  # the answer, not a reset


def test_a_head_that_comes_in_one_piece_is_counted_too(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(f"GET / HTTP/1.1\r\nHost: localhost:{port}\r\nX-Long: {'x' * 30_000}\r\n\r\n".encode())
        assert client.recv(4000).split()[1] in (b"431", b"400")  # ours, or the parser's where it came in pieces
    assert ask(port, "/", X_Long="x" * 9_000).status == 200
    for num_characters, status in ((9_000, 200), (30_000, 431), (70_000, 431)):  # the request line counts too
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.sendall(f"GET /about?{'x' * num_characters} HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n".encode())
            assert int(client.recv(4000).split()[1]) in (status, 400 if status == 431 else status)


# --- strangers


@pytest.mark.parametrize("path", ["/", "/serve.js", "/serve.css", "/about", "/nowhere", "/classify"])
def test_the_host_is_checked_on_every_route(port: int, path: str) -> None:
    for host in ("evil.com", "127.0.0.1.evil.com", f"evil.com:{port}", ""):
        reply = ask(port, path, Host=host)
        assert reply.status in (400, 403), (path, host)


def test_a_request_without_host(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert b" 403 " in client.recv(1000)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_only_what_is_allowed_is_answered(port: int, method: str) -> None:
    for path in ("/", "/about", "/nowhere"):
        reply = ask(port, path, method)
        assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")
    if method != "POST":
        reply = ask(port, "/classify", method)
        assert (reply.status, reply.headers["allow"]) == (405, "POST")


def test_head_has_headers_and_no_body(port: int) -> None:
    reply = ask(port, "/", "HEAD")
    assert (reply.status, reply.body, int(reply.headers["content-length"]) > 500) == (200, b"", True)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.com"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
    ids=str,
)
def test_another_site_may_not_send_pictures(port: int, headers: dict[str, str], pictures: list[bytes]) -> None:
    reply = classify(port, pictures[0], **headers)
    assert (reply.status, reply.json["error"]) == (403, "Another web site may not send pictures here.")
    own = {"Origin": f"http://127.0.0.1:{port}", "Sec_Fetch_Site": "same-origin"}
    assert classify(port, pictures[0], **own).status == 200


def test_every_answer_carries_the_security_headers(port: int) -> None:
    for reply in (ask(port, "/"), ask(port, "/nowhere"), ask(port, "/", Host="evil.com"), ask(port, "/", "DELETE")):
        assert {name: reply.headers.get(name) for name in HEADERS} == HEADERS
        assert reply.headers["content-security-policy"] == RULES.policy
        assert not [name for name in reply.headers if name.startswith("access-control")]
        assert "server" not in reply.headers
    assert "default-src 'none'" in RULES.policy
    assert "unsafe" not in RULES.policy


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/../etc/passwd",
            "/%2e%2e/%2e%2e/etc/passwd",
            "/serve.js/../../trained.py",
            "/..%5c..%5cetc",
            "/serve.js%00.css",
        ),
        *("//etc/passwd", "/assets/serve.js", "/serve.html", "/%252e%252e%252fetc", "/;/serve.js", "/serve.js/"),
    ],
)
def test_no_path_leads_to_a_file(port: int, path: str) -> None:
    assert ask(port, path).status in (400, 404)
    assert ask(port, "/" + "x" * 5000).status == 414


def test_a_token_where_the_server_is_open(predictor: Predictor, pictures: list[bytes]) -> None:
    with serving(predictor, Access(names=frozenset(["lab-7"]), token="s3cret")) as port:
        assert ask(port, "/", Host="lab-7").status == 200  # the page itself says nothing
        assert ask(port, "/about").status == 401
        assert classify(port, pictures[0]).json["error"].startswith("The token is missing or wrong")
        assert classify(port, pictures[0], Authorization="Bearer s3cret").status == 200
        assert ask(port, "/about", Authorization="Bearer s3cret").json["run"] == "fruit"


# --- slow and many


def test_a_picture_that_comes_too_slowly(predictor: Predictor, pictures: list[bytes]) -> None:
    with serving(predictor, limits=Limits(upload=UploadLimits(timeout_s=1.0))) as port:
        head = f"POST /classify HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Length: 5000\r\n\r\n"
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.sendall(f"{head}abc".encode())
            said = client.recv(4000)
            assert b" 408 " in said
            assert b"did not arrive within 1 s" in said + client.recv(4000)
        assert ask(port, "/about").status == 200  # it goes on; a picture of ours could come too slowly as well


def test_pictures_that_come_slowly_leave_the_others_their_answers(predictor: Predictor, pictures: list[bytes]) -> None:
    with serving(predictor, limits=Limits(most_at_once=2)) as port, contextlib.ExitStack() as open_sockets:
        head = f"POST /classify HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Length: 5000\r\n\r\nabc".encode()
        slow = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(6)]
        for client in slow:
            open_sockets.enter_context(client)
            client.sendall(head)
        assert classify(port, pictures[0]).status == 200
        assert b" 408 " in slow[0].recv(4000)  # after the grace: three bytes in five seconds are no upload


def costly_picture() -> bytes:
    """A second of computing, in 2.4 MB of empty comments."""
    content = BytesIO()
    Image.new("RGB", (16, 16), (9, 90, 200)).save(content, "JPEG")
    return content.getvalue()[:2] + b"\xff\xfe\x00\x02" * 600_000 + content.getvalue()[2:]


@pytest.mark.fault(41, "costly pictures posted to `serve`: a good small one is answered beside them, not behind them")
def test_costly_pictures_have_a_lane_of_their_own(
    predictor: Predictor, pictures: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    services, made = [], Service.__init__
    monkeypatch.setattr(Service, "__init__", lambda self, *given: (services.append(self), made(self, *given))[1])
    costly = costly_picture()
    with serving(predictor) as port, ThreadPoolExecutor(17) as pool:
        assert classify(port, pictures[0]).status == 200
        waiting = [pool.submit(classify, port, costly) for _ in range(14)]
        end_s = time.monotonic() + 60
        while services[0].num_costly < 10:
            assert time.monotonic() < end_s
            time.sleep(0.01)
        assert classify(port, pictures[0]).status == 200
        assert sum(one.done() for one in waiting) < 10  # it waited for none of them, let alone for all
        assert {one.result().status for one in waiting} == {200}
        services[0].num_costly = 16  # half of the places are taken: the others are kept for what is quick
        assert classify(port, costly).status == 503
        assert classify(port, pictures[0]).status == 200
        services[0].num_costly = 0


def test_all_uploads_together_have_a_limit_of_memory() -> None:
    memory = UploadMemory(100)
    with memory.share() as one, memory.share() as other:
        one(60)
        other(40)
        with pytest.raises(RefusedUploadError, match="Too many pictures at once"):
            other(1)
    assert memory.num_bytes == 0


def test_connections_that_say_nothing_are_closed(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "REQUEST_HEAD_TIMEOUT_S", 2.0)
    with serving(predictor) as port, socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        with contextlib.suppress(ConnectionError):
            for _ in range(3):  # a head that comes byte by byte has the same time
                client.sendall(b"G")
                time.sleep(0.02)
            assert client.recv(10) == b""
        with socket.create_connection(("127.0.0.1", port), timeout=60) as other:
            other.sendall(f"GET /about HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n".encode())
            assert b" 200 " in other.recv(4000)
            with contextlib.suppress(ConnectionResetError):  # kept alive for a while, then closed too
                while other.recv(4000):
                    pass


def test_more_connections_than_allowed_are_turned_away(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 5)
    with serving(predictor) as port:
        idle = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(5)]
        with pytest.raises(OSError):  # noqa: PT011  (closed, reset or a broken pipe: the kernel decides)
            ask(port, "/about")
        for client in idle:
            client.close()
        end_s = time.monotonic() + 60
        while time.monotonic() < end_s:
            try:
                assert ask(port, "/about").status == 200
                return
            except OSError:
                time.sleep(0.05)
        pytest.fail("it did not come back")


class Stuck:
    """A network that does not answer until it is let go."""

    def __init__(self, predictor: Predictor) -> None:
        self.trained, self.goes = predictor.trained, threading.Event()

    def guesses(self, squares: list[object], *, top: int) -> list[tuple[Guess, ...]]:
        self.goes.wait(120)
        raise RuntimeError("out of memory")


def test_a_network_that_hangs_or_fails_and_too_many_that_wait(
    predictor: Predictor, pictures: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, services = Stuck(predictor), []
    made = Service.__init__
    monkeypatch.setattr(Service, "__init__", lambda self, *given: (services.append(self), made(self, *given))[1])
    limits = Limits(most_at_once=2, answer_timeout_s=15.0)
    with serving(stuck, limits=limits) as port, ThreadPoolExecutor(2) as pool:  # type: ignore[arg-type]
        waiting = [pool.submit(classify, port, pictures[0]) for _ in range(2)]
        end_s = time.monotonic() + 60
        while services[0].num_at_once < 2:
            assert time.monotonic() < end_s
            time.sleep(0.01)
        reply = classify(port, pictures[0])
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        assert [one.result().status for one in waiting] == [504, 504]
        stuck.goes.set()
        reply = classify(port, pictures[0])
        assert (reply.status, reply.json["error"]) == (500, "The network failed on this picture (RuntimeError).")


def slow_picture(num_comments: int) -> bytes:
    """A small picture behind millions of empty comments: each million takes about 2 s of computing."""
    content = BytesIO()
    Image.new("RGB", (16, 16)).save(content, "JPEG")
    data = content.getvalue()
    return data[:2] + b"\xff\xfe\x00\x02" * num_comments + data[2:]


@pytest.mark.fault(41, "a picture that takes for ever, posted to `serve`: refused, while the others get their answers")
def test_a_picture_that_takes_too_long_is_refused_and_the_others_are_answered(
    predictor: Predictor, pictures: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "DECODE_CPU_LIMIT_S", 1)
    with serving(predictor, limits=Limits(answer_timeout_s=150)) as port, ThreadPoolExecutor(6) as threads:
        slow = [threads.submit(classify, port, slow_picture(4_000_000)) for _ in range(2)]
        quick = [threads.submit(classify, port, pictures[0]) for _ in range(4)]
        assert [reply.result().status for reply in quick] == [200] * 4
        assert [reply.result().status for reply in slow] == [422] * 2
        assert "takes more than 1 s of computing" in slow[0].result().error


def test_the_server_ends_while_a_picture_is_being_decoded(predictor: Predictor) -> None:
    with ThreadPoolExecutor(2) as threads:
        with serving(predictor) as port:
            for _ in range(2):  # they are cut off, or told that the server ends
                threads.submit(classify, port, slow_picture(6_000_000))
            time.sleep(2.0)
            start_s = time.monotonic()
        assert time.monotonic() - start_s < 15  # uvicorn itself waits 5 s for open requests


def test_about(port: int, predictor: Predictor) -> None:
    told = ask(port, "/about").json
    assert told["classes"] == list(predictor.trained.classes)
    assert (told["run"], told["model"], told["epoch"], told["size_px"]) == ("fruit", "small", 3, 32)
    assert told["val_accuracy"] == predictor.trained.run.evaluation.top1
