"""What the live page costs: the server's share of a core with 50 runs and one open page, and 10,000 connections.

    python bench/watch.py [--runs 50] [--growing 10] [--for 30] [--connections 10000]

The runs are written by this program, through the record's own writer: 100 epochs, spans of two processes, ten minutes
of telemetry of two GPUs. Those that grow get a pulse and a telemetry line every second, and an epoch every five.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import math
import os
import re
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil

from turnaround.record.heartbeat import Heartbeat, HeartbeatFile
from turnaround.record.layout import RunDirectory
from turnaround.record.lock import RunLock
from turnaround.record.schema import EpochRecord, GpuSample, Span, Status, TelemetrySample, to_json, utc_now
from turnaround.record.writer import Lines, write_json, write_lines

EPOCHS = 100
HOST = socket.gethostname()


def epoch(number: int, workers: int) -> EpochRecord:
    accuracy = 0.8 * (1 - math.exp(-number / (4 + workers)))
    return EpochRecord(
        epoch=number,
        train_loss=1.2 - accuracy,
        train_accuracy=accuracy,
        val_loss=1.25 - accuracy,
        val_accuracy=accuracy - 0.01,
        epoch_time_s=20 / workers,
        images_per_s=500.0 * workers,
        learning_rate=0.05,
        steps=312 // workers,
        images=10_000,
        evaluation_time_s=0.5,
    )


def sample(second: int) -> TelemetrySample:
    gpus = [GpuSample(index=i, name="Tesla T4", utilisation_percent=90.0, memory_used_gib=4.0) for i in range(2)]
    return TelemetrySample(time_s=float(second), at=utc_now(), cpu_percent=40.0, memory_used_gib=8.0, gpus=gpus)


def build(path: Path, *, workers: int, seed: int, epochs_done: int) -> RunDirectory:
    """One run directory; one that has not all its epochs is running."""
    directory = RunDirectory.create(path)
    training = {"epochs": EPOCHS, "batch_per_worker": 32, "learning_rate": 0.05, "seed": seed}
    images = {"fingerprint": "f" * 64, "num_train": 10_000, "num_validation": 2500, "split": "folders"}
    data = {"source": "photos", "size_px": 64}
    recipe = {"name": path.name, "data": data, "model": {"name": "small"}, "training": training, "images": images}
    write_json(directory.recipe, {**recipe, "workers": {"count": workers}})
    ranks = [{"host": HOST, "device": f"cuda:{rank}", "workers": [rank]} for rank in range(workers)]
    gpus = [{"name": "Tesla T4", "index": rank} for rank in range(workers)]
    write_json(
        directory.machine, {"workers": workers, "processes": workers, "device": "cuda", "gpus": gpus, "ranks": ranks}
    )
    is_done = epochs_done == EPOCHS
    status = Status(state="finished" if is_done else "running", started_at=utc_now(), epochs_done=epochs_done)
    write_json(directory.status, to_json(replace(status, time_s={"program": 20.0 * epochs_done / workers})))
    write_lines(directory.epochs, (to_json(epoch(number, workers)) for number in range(1, epochs_done + 1)))
    for rank in range(min(workers, 2)):
        parts = {"wait_s": 0.001, "copy_s": 0.002, "compute_s": 0.05, "reduce_s": 0.004, "update_s": 0.002}
        write_lines(directory.spans(rank), (to_json(Span(step=n, epoch=1, **parts)) for n in range(1, 400)))
    write_lines(directory.telemetry(HOST), (to_json(sample(second)) for second in range(600)))
    return directory


@contextlib.contextmanager
def growing(directories: list[RunDirectory], *, workers: int) -> Iterator[None]:
    """As real trainings grow, until the end of the block."""
    ended = threading.Event()

    def write(stack: contextlib.ExitStack) -> None:
        pulses = [Heartbeat() for _ in directories]
        epochs, telemetry = [], []
        for directory, heartbeat in zip(directories, pulses, strict=True):
            stack.enter_context(HeartbeatFile(directory, rank=0, heartbeat=heartbeat, program_s=time.monotonic))
            epochs.append(stack.enter_context(Lines(directory.epochs, sync=True)))
            telemetry.append(stack.enter_context(Lines(directory.telemetry(HOST), sync=False, max_lines=1)))
        second = 0
        while not ended.wait(1.0):
            second += 1
            for heartbeat, lines, samples in zip(pulses, epochs, telemetry, strict=True):
                heartbeat.beat("computes", 312 * 10 // workers + 60 * second)
                samples.write(to_json(sample(600 + second)))
                if second % 5 == 0:
                    lines.write(to_json(epoch(10 + second // 5, workers)))

    with contextlib.ExitStack() as stack:
        for directory in directories:
            stack.enter_context(RunLock(directory.lock))
        thread = threading.Thread(target=write, args=[stack])
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


@contextlib.contextmanager
def watched(folder: Path, state: Path) -> Iterator[tuple[psutil.Process, int, str]]:
    """The command; its process, port and token."""
    environment = {**os.environ, "XDG_STATE_HOME": str(state)}
    command = [sys.executable, "-m", "turnaround", "watch", str(folder), "--port", "0"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            found = re.search(r":(\d+)/\?token=(\S+)", process.stderr.readline())
            assert found is not None
            yield psutil.Process(process.pid), int(found[1]), found[2]
        finally:
            process.terminate()


class Page(threading.Thread):
    """One open page: takes what is pushed."""

    def __init__(self, port: int, token: str) -> None:
        super().__init__(daemon=True)
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.headers = {"Authorization": f"Bearer {token}"}
        self.num_bytes = self.num_events = 0

    def run(self) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError, AttributeError):
            self.connection.request("GET", "/events", headers=self.headers)
            answer = self.connection.getresponse()
            while line := answer.readline():
                self.num_bytes += len(line)
                self.num_events += line.startswith(b"event: block")


def share_of_a_core(process: psutil.Process, for_s: float) -> float:
    def used_s() -> float:
        times = process.cpu_times()
        return times.user + times.system

    begun_s, before_s = time.monotonic(), used_s()
    time.sleep(for_s)
    return (used_s() - before_s) / (time.monotonic() - begun_s)


def knock(port: int, count: int) -> dict[str, int]:
    """So many connections, held at once as far as this process may; none says a word."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 1000) if hard > 0 else count + 1000, hard))
    most = max(100, min(count, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 500))
    held: list[socket.socket] = []
    outcome = {"connected": 0, "refused": 0}
    for _ in range(count):
        if len(held) >= most:
            held.pop(0).close()
        try:
            held.append(socket.create_connection(("127.0.0.1", port), timeout=5))
            outcome["connected"] += 1
        except OSError:
            outcome["refused"] += 1
    outcome["held_at_once"] = len(held)
    for one in held:
        one.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return outcome


def answers_again(port: int, token: str) -> float:
    """Seconds until the page is answered."""
    begun_s = time.monotonic()
    while time.monotonic() - begun_s < 60:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            connection.request("GET", "/", headers={"Authorization": f"Bearer {token}"})
            if connection.getresponse().status == 200:
                return time.monotonic() - begun_s
        except OSError:
            time.sleep(0.1)
        finally:
            connection.close()
    return math.inf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--growing", type=int, default=10)
    parser.add_argument("--for", type=float, default=30.0, dest="for_s")
    parser.add_argument("--connections", type=int, default=10_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "runs"
        done = [10 if n < asked.growing else EPOCHS for n in range(asked.runs)]
        directories = [
            build(folder / f"{1 + n % 4}w-{n}", workers=1 + n % 4, seed=n, epochs_done=epochs_done)
            for n, epochs_done in enumerate(done)
        ]
        with (
            growing(directories[: asked.growing], workers=2),
            watched(folder, Path(temporary)) as (process, port, token),
        ):
            first_s = answers_again(port, token)
            page = Page(port, token)
            page.start()
            starting = share_of_a_core(process, 15)
            bytes_before, events_before = page.num_bytes, page.num_events
            steady = share_of_a_core(process, asked.for_s)
            pushed, events = page.num_bytes - bytes_before, page.num_events - events_before
            rss_before = process.memory_info().rss
            knocked = knock(port, asked.connections)
            again_s = answers_again(port, token)
            figures = {
                "runs": asked.runs,
                "growing": asked.growing,
                "first_page_s": round(first_s, 2),
                "share_of_a_core_first_15_s": round(starting, 4),
                f"share_of_a_core_over_{asked.for_s:.0f}_s": round(steady, 4),
                "pushed_kib_per_s": round(pushed / asked.for_s / 1024, 1),
                "blocks_per_s": round(events / asked.for_s, 1),
                "connections": knocked,
                "memory_mib_before_and_after": [rss_before >> 20, process.memory_info().rss >> 20],
                "is_alive": process.is_running() and process.status() != psutil.STATUS_ZOMBIE,
                "page_answers_again_after_s": round(again_s, 2),
                "open_page_lives": page.is_alive(),
            }
            print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
