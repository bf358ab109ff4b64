"""A word when a run ends, fails, or leaves a GPU idle: a command is run, or JSON is posted to an address.

Enters: what the user typed after --notify, and the run directories to look at. Leaves: one message for each event,
never an error: a training does not fail because nobody could be told. An address or a command may hold a secret (a
webhook is one), so neither is ever written: `record/host.py` leaves it out of recorded command lines, and what goes
wrong is told without it. `$NAME` in it is read from the environment.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from turnaround import safe_path
from turnaround.errors import InputError, MissingPartError, RunDirectoryError
from turnaround.record.files import folder_below
from turnaround.record.growing import NUM_LATEST, LinesFile
from turnaround.record.host import NOTIFY_FLAG, REFERENCE
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import Run, find_runs, read_sample
from turnaround.record.schema import TelemetrySample
from turnaround.words import accuracy, counted, duration

VARIABLE, IDLE_VARIABLE = "TURNAROUND_NOTIFY", "TURNAROUND_NOTIFY_IDLE"
"""The same as the flags; a job that nobody waits for gets them this way, since its script is part of the record."""
MAX_COMMAND_S, MAX_POST_S = 30.0, 10.0
LOOK_EVERY_S = 2.0
MAX_TAIL_BYTES = 256 * 1024
"""Read from the end of a telemetry file that was there before: over a minute's lines of a host with 16 GPUs."""
IDLE_PERCENT = 5.0
"""A GPU below this is idle: a display or a monitoring program keeps one at a few percent."""
ENDED_WELL = "finished"


@dataclass(frozen=True, kw_only=True)
class Notice:
    """One event, as it is posted: the keys of the JSON object."""

    event: str
    """finished, failed, diverged, interrupted or gpu_idle."""
    text: str
    """One sentence for a person; chat services show this key."""
    name: str
    directory: str
    cause: str | None = None
    epochs_done: int | None = None
    val_accuracy: float | None = None
    time_s: float | None = None


class Notifier:
    """Where the word goes, and after how long an idle GPU is worth one. Sending never raises."""

    def __init__(self, said: str, *, idle_s: float | None = None) -> None:
        self.idle_s = idle_s
        self._said = said
        target = _expanded(said.strip())
        self._address = target if re.match(r"https?://", target, re.IGNORECASE) else None
        self._words = () if self._address is not None else _command_words(target)
        if self._address is not None and not _is_address(self._address):
            raise InputError(f"{NOTIFY_FLAG} has an address without a host. Give https://HOST/PATH, or a command.")

    def hand_on(self) -> None:
        """Put it into the environment, for a job that is submitted and not waited for."""
        os.environ[VARIABLE] = self._said
        if self.idle_s is not None:
            os.environ[IDLE_VARIABLE] = f"{self.idle_s:g}s"

    def send(self, notice: Notice, tell: Callable[[str], None]) -> None:
        """Send one notice; `tell` hears of a failure, which names neither the address nor the command."""
        # The whole notice, also to a command: it may want more than the variables hold.
        body = json.dumps(asdict(notice)).encode()
        try:
            reason = self._post(body) if self._address is not None else self._run(body, notice)
        except Exception as error:  # whatever it is: the run counts, not the word about it
            reason = type(error).__name__
        if reason is not None:
            tell(f"{NOTIFY_FLAG} could not tell that {notice.name} is {notice.event.replace('_', ' ')}: {reason}.")

    def _post(self, body: bytes) -> str | None:
        headers = {"Content-Type": "application/json", "User-Agent": "turnaround"}
        request = urllib.request.Request(self._address or "", data=body, headers=headers, method="POST")  # noqa: S310
        try:
            # Not redirected: a POST would become a GET at a place that nobody named.
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=MAX_POST_S):
                return None
        except urllib.error.HTTPError as error:
            error.close()
            return f"the address answers {error.code}"
        except TimeoutError:
            return f"no answer within {MAX_POST_S:.0f} s"
        except urllib.error.URLError as error:
            return (
                "it cannot be reached ("
                + (getattr(error.reason, "strerror", None) or type(error.reason).__name__)
                + ")"
            )

    def _run(self, body: bytes, notice: Notice) -> str | None:
        """Run the command with the JSON on stdin, and the most needed of it in variables."""
        variables = {"EVENT": notice.event, "TEXT": notice.text, "DIRECTORY": notice.directory}
        environment = {**safe_path.as_it_was(), **{f"{VARIABLE}_{name}": value for name, value in variables.items()}}
        try:
            done = subprocess.run(
                self._words,
                input=body,
                env=environment,
                capture_output=True,
                timeout=MAX_COMMAND_S,
                check=False,
                start_new_session=True,  # a Ctrl-C that ends the training must not end the word about it
            )
        except subprocess.TimeoutExpired:
            return f"the command took more than {MAX_COMMAND_S:.0f} s"
        except OSError as error:
            return f"the command cannot be run ({error.strerror})"
        return None if done.returncode == 0 else f"the command ended with exit status {done.returncode}"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_arguments: Any) -> None:
        return None


def _expanded(said: str) -> str:
    """Return the text with its $NAMES from the environment; InputError for one that is not set."""

    def value(match: re.Match[str]) -> str:
        name = match[1].strip("{}")
        if name not in os.environ:
            raise InputError(f"{NOTIFY_FLAG} names ${name}, which is not set. Export it first.")
        return os.environ[name]

    text = REFERENCE.sub(value, said)
    if not text.strip():
        raise InputError(f"{NOTIFY_FLAG} is empty. Give a command, or an address: https://...")
    return text.strip()


def _is_address(text: str) -> bool:
    try:
        return bool(urlsplit(text).hostname)
    except ValueError:
        return False


def _command_words(text: str) -> tuple[str, ...]:
    """Return the command as words; InputError where it is none that can be run here."""
    if re.match(r"[a-z][a-z0-9+.-]*:/", text, re.IGNORECASE):
        _refuse_scheme(text)
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise InputError(f"{NOTIFY_FLAG} is no command: {error}. Close its quotes.") from error
    if not words or shutil.which(words[0]) is None:
        first = words[0][:60] if words else ""
        raise MissingPartError(
            f"{NOTIFY_FLAG}: there is no program {first!r} here. Give a command that can be run, or https://..."
        )
    return words


def _refuse_scheme(text: str) -> NoReturn:
    raise InputError(f"{NOTIFY_FLAG} posts to https:// or http://, not to {text.partition(':')[0][:20]}:.")


@contextmanager
def notified(path: Path, notifier: Notifier | None, *, tell: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    """While the body makes the run at `path`, watch its GPUs; at the end, send how it went.

    Nothing is sent before the yielded callable was called: until then the directory may be another's, and ours refused.
    """
    if notifier is None:
        yield lambda: None
        return
    is_ours = threading.Event()
    with idle_watched(lambda: [path] if is_ours.is_set() else [], notifier, tell=tell):
        try:
            yield is_ours.set
        finally:
            notice = notice_of(path) if is_ours.is_set() else None
            if notice is not None:
                notifier.send(notice, tell)


@contextmanager
def study_notified(folder: Path, notifier: Notifier | None, *, tell: Callable[[str], None]) -> Iterator[None]:
    """While the body makes the runs of a study, watch the GPUs of those that train; at the end, send how it went."""
    if notifier is None:
        yield
        return
    event = "interrupted"
    with idle_watched(lambda: [run.path for run in _runs_in(folder, "running")], notifier, tell=tell):
        try:
            yield
            event = ENDED_WELL
        finally:
            ended, done = len(_runs_in(folder)), len(_runs_in(folder, ENDED_WELL))
            event = "failed" if event == ENDED_WELL and done < ended else event
            text = f"{folder.name}: {event}, {done} of {counted(ended, 'run')} finished."
            notifier.send(Notice(event=event, text=text, name=folder.name, directory=str(folder.absolute())), tell)


def _runs_in(folder: Path, *states: str) -> list[Run]:
    """Return the runs of a study in one of these states; all of them where none is named."""
    try:
        runs = [Run(RunDirectory(path)) for path in find_runs(folder)]
        return [run for run in runs if not states or run.status.state in states]
    except (OSError, RunDirectoryError):  # it has none yet, or one has just begun
        return []


def notice_of(path: Path) -> Notice | None:
    """Return how the run at `path` went, by its own record; None while it goes on, as a job that was left alone."""
    try:
        run = Run.load(path)
        status = run.status
    except RunDirectoryError as error:
        return Notice(
            event="failed",
            text=f"{path.name} failed.",
            name=path.name,
            directory=str(path.absolute()),
            cause=str(error),
        )
    try:
        measured = run.epochs[-1].val_accuracy if run.epochs else None
    except RunDirectoryError:
        measured = None
    if status.state in ("queued", "running"):
        return None
    event, time_s = status.state, status.time_s.get("program")
    parts = [f"{path.name}: {event} after {counted(status.epochs_done, 'epoch')}"]
    parts += [f"accuracy {accuracy(measured)}"] if measured is not None and measured == measured else []
    parts += [duration(time_s)] if time_s else []
    return Notice(
        event=event,
        text=", ".join(parts) + (f". {status.cause}" if status.cause else "."),
        name=path.name,
        directory=str(path.absolute()),
        cause=status.cause,
        epochs_done=status.epochs_done,
        val_accuracy=None if measured is None or measured != measured else measured,
        time_s=time_s,
    )


@contextmanager
def idle_watched(runs: Callable[[], list[Path]], notifier: Notifier, *, tell: Callable[[str], None]) -> Iterator[None]:
    """While the body goes on, send a notice for each GPU of the runs that idles for the time that was asked for."""
    if notifier.idle_s is None:
        yield
        return
    ended = threading.Event()

    def look() -> None:
        watch = IdleWatch(notifier.idle_s or 0.0)
        while not ended.wait(LOOK_EVERY_S):
            for path in runs():
                for notice in watch.look(path):
                    notifier.send(notice, tell)

    thread = threading.Thread(target=look, name="idle-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(LOOK_EVERY_S + MAX_COMMAND_S)


class IdleWatch:
    """Knows since when each GPU of some runs has idled, from the ends of their telemetry files."""

    def __init__(self, idle_s: float) -> None:
        self.idle_s = idle_s
        self._files: dict[tuple[Path, str], LinesFile[TelemetrySample | str]] = {}
        self._busy_at_s: dict[tuple[Path, str, int], float] = {}
        self._seen_s: dict[tuple[Path, str], float] = {}
        self._told: set[tuple[Path, str, int]] = set()

    def look(self, path: Path) -> list[Notice]:
        """Read what is new; one notice for each GPU that has idled long enough, the next after it was busy again."""
        found = []
        for host in RunDirectory(path).telemetry_hosts():
            for sample in self._new(path, host, self._latest(path, host)):
                found += self._hear(path, host, sample)
        return found

    def _latest(self, path: Path, host: str) -> list[TelemetrySample]:
        """Return the last samples of a host; what cannot be read is for the report to tell."""
        name = RunDirectory(path).telemetry(host).name
        # Of a run that is resumed the file may hold weeks: only its end tells who idles now.
        file = self._files.setdefault(
            (path, host), LinesFile(name, read_sample, max_records=NUM_LATEST, tail_bytes=MAX_TAIL_BYTES)
        )
        with suppress(OSError), folder_below(path, ()) as folder:  # the folder may have been moved away
            file.look(folder)
        return [line for line in file.latest if isinstance(line, TelemetrySample)]

    def _new(self, path: Path, host: str, samples: list[TelemetrySample]) -> list[TelemetrySample]:
        """Return the samples since the last look; those of a run that was started again count from 0 once more."""
        first = max((n for n in range(1, len(samples)) if samples[n].time_s < samples[n - 1].time_s), default=0)
        samples, seen_s = samples[first:], self._seen_s.get((path, host), -1.0)
        if samples and samples[-1].time_s < seen_s:
            self._busy_at_s = {key: at_s for key, at_s in self._busy_at_s.items() if key[:2] != (path, host)}
            self._told = {key for key in self._told if key[:2] != (path, host)}
            seen_s = -1.0
        return [sample for sample in samples if sample.time_s > seen_s]

    def _hear(self, path: Path, host: str, sample: TelemetrySample) -> list[Notice]:
        self._seen_s[path, host] = sample.time_s
        notices = []
        for gpu in sample.gpus:
            key = (path, host, gpu.index)
            is_busy = gpu.utilisation_percent is None or gpu.utilisation_percent >= IDLE_PERCENT
            if is_busy or gpu.run_processes == 0:  # 0: the run leaves this GPU alone
                self._told.discard(key)
                self._busy_at_s[key] = sample.time_s
            idle_s = sample.time_s - self._busy_at_s.setdefault(key, sample.time_s)
            if idle_s >= self.idle_s and key not in self._told:
                self._told.add(key)
                text = f"{path.name}: GPU {gpu.index} ({gpu.name}) of {host} has idled for {duration(idle_s)}."
                notices.append(
                    Notice(event="gpu_idle", text=text, name=path.name, directory=str(path.absolute()), time_s=idle_s)
                )
        return notices
