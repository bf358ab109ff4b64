"""The live server as pages, programs and strangers meet it: a real socket, real run directories."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.build import Plan, build, rising
from live_helpers import QUICK, TOKEN, Stream, ask, wait_for, watching
from turnaround.record.layout import RunDirectory
from turnaround.record.lock import RunLock
from turnaround.record.schema import EpochRecord, Status, to_json
from turnaround.record.writer import Lines, write_json
from turnaround.reporting.live.hub import Hub, pack
from turnaround.reporting.live.server import Cooldown, Pacing
from turnaround.reporting.page.blocks import Block
from turnaround.web import sockets
from turnaround.web.guard import HEADERS

HOSTILE = "<img src=x onerror=alert(1)>"


def epoch(number: int, accuracy: float) -> dict[str, Any]:
    loss = 1 - accuracy
    values = {"train_loss": loss, "train_accuracy": accuracy, "val_loss": loss, "val_accuracy": accuracy}
    return to_json(EpochRecord(epoch=number, **values, epoch_time_s=1.0, images_per_s=100.0, learning_rate=0.1))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watched") / "runs"
    build(folder / "a", Plan(accuracy=rising(epochs=8)))
    build(folder / "b", Plan(accuracy=rising(epochs=8), state="failed", cause="the GPU <b>fell</b> out"))
    return folder


@pytest.fixture(scope="module")
def port(runs: Path) -> Iterator[int]:
    with watching(runs) as (port, _):
        yield port


@contextlib.contextmanager
def streaming(port: int, path: str = "/events", **headers: str) -> Iterator[Stream]:
    stream = Stream(port, path, **headers)
    try:
        yield stream
    finally:
        stream.close()


# --- the page and what is pushed


def test_the_page_has_everything_and_its_own_policy(port: int) -> None:
    reply = ask(port)
    assert reply.status == 200
    text = reply.body.decode()
    for part in ('data-block="answer"', 'data-block="live"', 'data-block="footer"', "data-heard=", "figure"):
        assert part in text
    assert "the GPU &lt;b&gt;fell&lt;/b&gt; out" in text
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    scripts = next(part for part in policy.split("; ") if part.startswith("script-src"))
    assert "unsafe" not in scripts
    assert "self" not in scripts


def test_a_reader_gets_all_blocks_once_and_then_what_changes(tmp_path: Path) -> None:
    path = build(tmp_path / "runs" / "a", Plan(accuracy=rising(epochs=3), state="running", training={"epochs": 10}))
    directory = RunDirectory(path)
    with RunLock(directory.lock), watching(tmp_path / "runs") as (port, service), streaming(port) as stream:
        wait_for(lambda: "answer" in stream.order and stream.is_whole)
        assert stream.order[0] == "live"  # what runs comes before the answer
        assert "<b>3</b> of 10 epochs" in stream.html()
        wait_for(lambda: stream.num_heartbeats)
        settled = stream.num_blocks
        wait_for(lambda: stream.num_heartbeats >= 3)
        assert stream.num_blocks == settled  # nothing changed: nothing was sent
        with Lines(directory.epochs, sync=True) as lines:
            lines.write(epoch(4, 0.4))
        wait_for(lambda: "<b>4</b> of 10 epochs" in stream.html())
        wait_for(lambda: service.hub.id == stream.heard)
        changed = stream.num_blocks - settled
        assert 0 < changed < len(stream.order)
        build(tmp_path / "runs" / "z", Plan(accuracy=rising(epochs=3)))
        wait_for(lambda: "1 finished" in stream.html())
        wait_for(lambda: "2 runs" in stream.blocks["answer"]["html"])


def test_a_reader_that_comes_back_gets_what_it_missed(tmp_path: Path) -> None:
    build(tmp_path / "runs" / "a", Plan(accuracy=rising(epochs=3)))
    with watching(tmp_path / "runs") as (port, service):
        wait_for(lambda: ask(port).status == 200 and len(service.hub.blocks) > 3)
        heard = service.hub.id
        with streaming(port, "/events", Last_Event_ID=heard) as stream:
            wait_for(lambda: stream.num_heartbeats >= 2)
            assert (stream.num_blocks, stream.num_orders) == (0, 0)
        build(tmp_path / "runs" / "b", Plan(accuracy=rising(epochs=3), state="failed", cause="x"))
        with streaming(port, f"/events?since={heard}") as stream:
            wait_for(lambda: "1 failed" in stream.html() and stream.order)
            assert stream.num_blocks >= 1
        with streaming(port, "/events", Last_Event_ID="0000.7") as stream:  # of another start
            wait_for(lambda: stream.is_whole)


def test_the_page_itself_says_what_it_already_shows(port: int) -> None:
    text = ask(port).body.decode()
    heard = text.partition('data-heard="')[2].partition('"')[0]
    digests = text.partition('data-digests="')[2].partition('"')[0].replace("&#34;", '"')
    with streaming(port, f"/events?since={heard}") as stream:
        wait_for(lambda: stream.num_heartbeats >= 2)
        assert stream.num_blocks == 0
    with streaming(port) as stream:
        wait_for(lambda: stream.order)
        assert {name: block["digest"] for name, block in stream.blocks.items()} == json.loads(digests)


def test_a_killed_run_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnaround.record.follow.GONE_AFTER_S", 0.2)
    directory = RunDirectory(build(tmp_path / "runs" / "a", Plan(accuracy=rising(epochs=3))))
    write_json(directory.status, to_json(Status(state="running")))
    with watching(tmp_path / "runs") as (port, _):
        with RunLock(directory.lock), streaming(port) as stream:
            wait_for(lambda: "1 running" in stream.html())
        with streaming(port) as stream:
            wait_for(lambda: "1 interrupted" in stream.html() and "Killed without a word" in stream.html("live/run"))


def test_a_folder_without_runs_waits_for_the_first(tmp_path: Path) -> None:
    with watching(tmp_path) as (port, _), streaming(port) as stream:
        wait_for(lambda: "No run yet in" in stream.html())
        assert ask(port).status == 200
        build(tmp_path / "first", Plan(accuracy=rising(epochs=3)))
        wait_for(lambda: "1 finished" in stream.html())


def test_names_of_others_are_text(tmp_path: Path) -> None:
    path = build(
        tmp_path / "runs" / HOSTILE.replace("/", ""),
        Plan(accuracy=rising(epochs=3), state="failed", cause=HOSTILE, per_class={HOSTILE: 3, "b": 4}),
    )
    recipe = RunDirectory(path).recipe
    recipe.write_text(recipe.read_text().replace('"photos"', json.dumps(f"</script>{HOSTILE}")))
    with watching(tmp_path / "runs") as (port, _), streaming(port) as stream:
        wait_for(lambda: "1 failed" in stream.html() and "answer" in stream.order)
        page = ask(port).body.decode()
        for text in (page, stream.html("")):
            assert "<img src=x" not in text
            assert "</script><img" not in text
        assert "&lt;img src=x onerror=alert(1)&gt;" in stream.html()


def test_a_record_that_breaks_the_analysis_is_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No such record is known: the analysis is made to stumble over one run."""
    from turnaround.reporting.live import page_builder

    def stumbling(view: Any) -> Any:
        if any(run.name == "bad" for job in view.survey.workloads for run, _ in job.members):
            raise ZeroDivisionError("division by zero")
        return real(view)

    real = page_builder.page_blocks
    monkeypatch.setattr(page_builder, "page_blocks", stumbling)
    build(tmp_path / "runs" / "good", Plan(accuracy=rising(epochs=3)))
    build(tmp_path / "runs" / "bad", Plan(accuracy=rising(epochs=3)))
    with watching(tmp_path / "runs") as (port, _), streaming(port) as stream:
        wait_for(lambda: "left-out" in stream.blocks)
        told = "It holds what no run has (ZeroDivisionError: division by zero)."
        assert told in stream.blocks["left-out"]["html"]
        assert "1 run" in stream.blocks["answer"]["html"]


def test_a_huge_record_does_not_hold_the_server_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnaround.record.folder.FIRST_BYTES", 2**20)
    monkeypatch.setattr("turnaround.record.folder.BYTES_A_LOOK", 2**20)
    path = build(tmp_path / "runs" / "a", Plan(accuracy=rising(epochs=3)))
    with (path / "telemetry-h.jsonl").open("wb") as file:
        file.truncate(5 * 2**30)  # 5 GB of nothing
    (path / "spans-0.jsonl").write_bytes(b"x" * (8 * 2**20))
    with watching(tmp_path / "runs") as (port, _), streaming(port) as stream:
        wait_for(lambda: "1 finished" in stream.html() and "answer" in stream.order)
        assert ask(port).status == 200


# --- who is answered


@pytest.mark.parametrize("path", ["/", "/events", "/nowhere", "/../../etc/passwd"])
@pytest.mark.parametrize("token", [None, "wrong", TOKEN[:-1], TOKEN + "x", "", "sécret"])
def test_without_the_token_there_is_nothing(port: int, path: str, token: str | None) -> None:
    reply = ask(port, path, token=None if token is None else token.encode().decode("latin-1"))
    assert reply.status == 401
    assert reply.error == "The token is missing or wrong. Open the address that `turnaround watch` has printed."
    assert ask(port, f"/?token={'' if token is None else 'x' + TOKEN}", token=None).status == 401


def test_the_first_visit_turns_the_token_into_a_cookie(port: int) -> None:
    reply = ask(port, f"/?token={TOKEN}", token=None)
    assert (reply.status, reply.headers["location"], reply.body) == (303, "/", b"")
    cookie = reply.headers["set-cookie"]
    assert cookie == f"turnaround-watch={TOKEN}; HttpOnly; Path=/; SameSite=strict"
    given = cookie.partition(";")[0]
    assert ask(port, "/", token=None, Cookie=given).status == 200
    assert ask(port, "/", token=None, Cookie=f"{given}x").status == 401
    assert ask(port, "/", token=None, Cookie=f"other={TOKEN}").status == 401
    assert ask(port, f"/?token={TOKEN}&token=x", token=None).status == 401
    assert ask(port, f"/events?token={TOKEN}", token=None).status == 401  # only the page takes it


@pytest.mark.parametrize(
    "host", ["evil.com", "127.0.0.1.evil.com", "evil.com:80", "192.168.1.7", "", "localhost@evil.com", "[::2]"]
)
def test_another_host_is_not_answered(port: int, host: str) -> None:
    for path in ("/", "/events", "/nowhere", f"/?token={TOKEN}"):
        reply = ask(port, path, Host=host)
        assert reply.status == 403
        assert reply.error.startswith("This Host is not answered.")


def test_a_request_without_a_host_is_not_answered(port: int) -> None:
    for head in ("GET / HTTP/1.0\r\n\r\n", f"GET / HTTP/1.1\r\nHost: localhost:{port}\r\nHost: evil.com\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.sendall(head.encode())
            assert client.recv(4000).split(b" ")[1] in (b"400", b"403")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.com"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe"},
    ],
)
def test_another_site_reads_nothing(port: int, headers: dict[str, str]) -> None:
    for path in ("/", "/events"):
        reply = ask(port, path, **headers)
        assert (reply.status, reply.error) == (403, "Another web site may not read this.")


def test_a_link_that_a_person_follows_opens_the_page(port: int) -> None:
    followed = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert ask(port, f"/?token={TOKEN}", token=None, **followed).status == 303
    own = {"Origin": f"http://127.0.0.1:{port}", "Sec_Fetch_Site": "same-origin"}
    assert ask(port, "/", **own).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW", "get"])
def test_only_get_and_head(port: int, method: str) -> None:
    for path in ("/", "/events", "/nowhere"):
        reply = ask(port, path, method)
        assert (reply.status, reply.headers.get("allow")) == (405, "GET, HEAD")
        assert not [name for name in reply.headers if name.startswith("access-control")]


def test_head_has_no_body(port: int) -> None:
    for path in ("/", "/events"):
        reply = ask(port, path, "HEAD")
        assert (reply.status, reply.body) == (200, b"")


def test_every_answer_carries_the_security_headers(port: int) -> None:
    replies = [ask(port, "/"), ask(port, "/nowhere"), ask(port, "/", token=None), ask(port, "/", Host="evil.com")]
    replies += [ask(port, "/", "DELETE"), ask(port, "/events", "HEAD"), ask(port, f"/?token={TOKEN}")]
    for reply in replies:
        assert {name: reply.headers.get(name) for name in HEADERS} == HEADERS
        assert "default-src 'none'" in reply.headers["content-security-policy"]
        assert "server" not in reply.headers


TRICKS = [
    *("/../secret", "/..", "//", "//etc/passwd", "/./", "/a/../../secret", "/events/../../secret", "/events/"),
    *("/%2e%2e/secret", "/%2E%2E%2Fsecret", "/..%2fsecret", "/%252e%252e%252fsecret", "/%25252e%25252e/secret"),
    *("/..\\secret", "/..%5csecret", "/%5c..%5csecret", "/C:/secret", "/C:%5csecret", "/file:///etc/passwd"),
    *("/secret%00.jpg", "/%00", "/%2%0952e%2%0952e/secret", "/..;/secret", "/;/../secret", "/secret#x", "/%23"),
    *("/recipe.json", "/a/recipe.json", "/runs/a/epochs.jsonl", "/a/checkpoint", "/events/a/epochs.jsonl", "/~root"),
    *("/%c0%ae%c0%ae/secret", "/%u002e%u002e/secret", "/.%0d./secret", "/a%0d%0aX-Evil:%201", "/?path=../secret"),
    *("/events?since=../../secret", "/events?since=%00", f"/{'x' * 150}", f"/{'../' * 60}etc/passwd"),
]


@pytest.mark.parametrize("path", TRICKS)
def test_no_path_leads_anywhere(port: int, runs: Path, path: str) -> None:
    (runs.parent / "secret").write_text("TOP-SECRET")
    if path.startswith("/events?"):
        with streaming(port, path) as stream:
            wait_for(lambda: stream.order)
            assert "TOP-SECRET" not in stream.html("")
        return
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {TOKEN}\r\n"
        client.sendall(f"{head}Connection: close\r\n\r\n".encode("latin-1"))
        said = b""
        while piece := client.recv(65536):
            said += piece
    status = int(said.split(b" ")[1])
    assert status in ((200,) if path.startswith("/?") else (400, 404, 414))
    assert b"TOP-SECRET" not in said
    assert b"root:x:0" not in said
    assert b"X-Evil" not in said


# --- many, slow, silent


def test_more_pages_than_allowed_are_told_so(tmp_path: Path) -> None:
    with watching(tmp_path, replace(QUICK, most_streams=2)) as (port, service), contextlib.ExitStack() as stack:
        first = stack.enter_context(streaming(port))
        stack.enter_context(streaming(port))
        wait_for(lambda: service.num_streams == 2)
        reply = ask(port, "/events")
        assert (reply.status, reply.headers["retry-after"]) == (503, "10")
        assert reply.error == "Too many pages are open on this server. Close one, or try again later."
        assert ask(port).status == 200
        first.close()
        wait_for(lambda: service.num_streams == 1)
        stack.enter_context(streaming(port))
        wait_for(lambda: service.num_streams == 2)


def test_a_reader_that_takes_nothing_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "STALLED_S", 0.5)
    build(tmp_path / "runs" / "a", Plan(accuracy=rising(epochs=3)))
    with watching(tmp_path / "runs", replace(QUICK, heartbeat_s=30)) as (port, service):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.connect(("127.0.0.1", port))
        head = f"GET /events HTTP/1.1\r\nHost: localhost:{port}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        client.sendall(head.encode())
        wait_for(lambda: service.num_streams == 1)
        payload, numbers = "x" * 2**20, itertools.count()

        def more() -> Any:  # each turn another, until there is more than all buffers on the way hold
            return _rendered(pack(Block(id="big", html=f"{next(numbers)}{payload}")))

        service.builder.now = more  # type: ignore[method-assign]
        wait_for(lambda: service.num_streams == 0)
        client.close()


def _rendered(block: Any) -> Any:
    from turnaround.reporting.live.page_builder import Rendered

    return Rendered(blocks=(block,), cpu_s=0.0)


def test_many_connections_are_bounded_and_an_open_page_lives_on(tmp_path: Path) -> None:
    with watching(tmp_path) as (port, service), streaming(port) as stream:
        wait_for(lambda: stream.order)
        held = []
        for _ in range(600):
            with contextlib.suppress(OSError):
                held.append(socket.create_connection(("127.0.0.1", port), timeout=5))
        beats = stream.num_heartbeats
        wait_for(lambda: stream.num_heartbeats > beats + 1)
        assert service.num_streams == 1
        for client in held:
            client.close()

        def answers() -> bool:
            try:
                return ask(port).status == 200
            except OSError:
                return False

        wait_for(answers)


def test_a_server_that_ends_ends_its_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {**sockets.settings(), "timeout_graceful_shutdown": 25}  # so that being cut cannot be taken for it
    monkeypatch.setattr("turnaround.reporting.live.server.settings", lambda: settings)
    with watching(tmp_path) as (port, _):
        stream = Stream(port)
        wait_for(lambda: stream.order)
        begun_s = time.monotonic()
    stream.join(timeout=30)
    assert not stream.is_alive()
    assert time.monotonic() - begun_s < 20  # not only when connections are cut


def test_a_page_finds_a_server_that_was_started_anew(tmp_path: Path) -> None:
    build(tmp_path / "runs" / "a", Plan(accuracy=rising(epochs=3)))
    with watching(tmp_path / "runs") as (port, service):
        wait_for(lambda: len(service.hub.blocks) > 3)
        heard = service.hub.id
    with watching(tmp_path / "runs", port=port), streaming(port, "/events", Last_Event_ID=heard) as stream:
        wait_for(lambda: "answer" in stream.order and stream.is_whole)


def test_pacing_rests_many_times_what_a_turn_took() -> None:
    pacing = Pacing()
    assert pacing.page_rest >= 12
    rest = Cooldown(1.0, 16.0)
    assert [rest.after(cpu_s) for cpu_s in (5.0, 0.01, 2.0, 2.0, 3.0, 0.01)] == [1.0, 1.0, 1.0, 32.0, 32.0, 1.0]
    assert 1 / (1 + pacing.now_rest) + 1 / (1 + pacing.page_rest) < 0.1  # of a core, whatever the turns cost


# --- the hub alone


def test_the_hub_tells_each_change_once() -> None:
    hub = Hub()
    one, two = pack(Block(id="a", html="1")), pack(Block(id="b", html="1"))
    hub.publish(page=[one, two])
    heard = hub.id
    hub.publish(page=[one, two])
    assert (hub.id, hub.since(heard)) == (heard, [])
    hub.publish(now=[pack(Block(id="live", html="x"))])
    events = hub.since(heard)
    assert [json.loads(e.partition("data: ")[2])["id"] for e in events[:-1]] == ["live"]
    assert events[-1].startswith(f"event: order\nid: {hub.id}\n")
    assert json.loads(events[-1].partition("data: ")[2]) == ["a", "live", "b"]
    hub.publish(now=[])
    assert len(hub.since(heard)) == 1  # only the order: live came and went
    assert len(hub.since(None)) == len(hub.since("x.1")) == len(hub.since(f"{hub.mark}.999")) == 3
    assert all("\n" not in e.partition("data: ")[2].rstrip("\n") for e in hub.since(None))
