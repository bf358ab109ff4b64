"""Every verb on everything hostile (tests/hostile.py): no hang, no traceback, nothing outside touched, no raw escape.

The verbs are those of the command line itself: one that is new fails here until it has a row. `make test-hostile` runs
it; `make test` leaves it out but for that row, since its thousand calls take minutes of computing.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from forking import ForkingParent
from hostile import ESCAPE, LOGS, RECIPES, RUNS, hostile_images, studies
from http_client import ask
from turnaround import cli, recipes
from turnaround.errors import TurnaroundError
from turnaround.launch.prepare import prepare_images
from turnaround.record.layout import RunDirectory, StudyDirectory
from turnaround.reporting.live.page_builder import PageBuilder
from turnaround.reporting.live.view import LiveView
from turnaround.use.predictor import Predictor
from turnaround.use.service import Limits, Service
from use_helpers import serving, validation_images
from user import User

MINE = b'{"a": "file of mine", "epoch": 99}\n{"epoch": 100}\nhalf a line'
MAX_S = 60
"""For one call, by the clock of a busy machine: what waits for a pipe, or reads a device, waits for ever."""
RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

OF_RUNS: dict[str, list[list[str]]] = {
    "report": [
        ["report", "RUN"],
        ["report", "RUN", "--json"],
        ["report", "RUN", "GOOD"],
        ["report", "RUN", "GOOD", "--out", "PAGE"],
    ],
    "predict": [["predict", "RUN", "--workers", "1,4"], ["predict", "RUN", "--workers", "4", "--json"]],
    "watch": [["watch", "RUN", "--port", "0"]],
    "classify": [["classify", "RUN", "IMAGE", "--device", "cpu"]],
    "evaluate": [["evaluate", "RUN", "IMAGES", "--device", "cpu"]],
    "export": [["export", "RUN", "--to", "safetensors", "--out", "exported.safetensors", "--force"]],
    "serve": [["serve", "RUN", "--port", "0", "--device", "cpu"]],
    "verify": [["verify", "RUN"], ["verify", "RUN", "--json"]],
    "resume": [["resume", "RUN", "--json"]],
}
"""What each verb that reads a run is called with."""
OF_OTHER_THINGS = {
    "check": "images",
    "train": "images, recipes, caches",
    "bench": "recipes",
    "estimate": "images and recipes, by the code of bench; forecasts.jsonl, by that of predict",
    "prices": "a table that the user names: tests/cli/test_prices.py",
    "study": "studies, recipes",
    "import": "logs",
    "doctor": "the folder that it is called in: tests/record/test_git.py",
}
OF_NOTHING = {
    "demo": "draws its own images",
    "models": "prints what is built in",
    "recipes": "prints what is built in",
}


def test_every_verb_has_a_row() -> None:
    names = {command.name or command.callback.__name__ for command in cli.app.registered_commands if command.callback}
    names |= {str(group.name) for group in cli.app.registered_groups}
    assert names == {*OF_RUNS, *OF_OTHER_THINGS, *OF_NOTHING}, "give a new verb its row: what of others does it read?"


@dataclass(frozen=True)
class Victim:
    """Somebody who opens what others made, and has files of their own beside it."""

    user: User
    outside: Path

    def calls(self, *words: str | Path, expects: tuple[int, ...] = (0, 1, 2)) -> str:
        """Call it; return all that it said."""
        with limited():
            done = self.user.call(*map(str, words))
        said = done.stdout + done.stderr
        assert done.returncode in expects, (words, done.returncode, said[-2000:])
        assert "Traceback" not in said, said[-4000:]
        assert not (found := RAW.search(said)), (words, said[max(0, found.start() - 200) : found.end() + 50])
        assert self.outside.read_bytes() == MINE
        assert [path.name for path in self.outside.parent.iterdir()] == [self.outside.name]
        return said


@pytest.fixture
def victim(tmp_path: Path, forking_parent: ForkingParent, monkeypatch: pytest.MonkeyPatch) -> Victim:
    for name in ("home", "mine"):
        (tmp_path / name).mkdir()
    outside = tmp_path / "mine" / "work.jsonl"
    outside.write_bytes(MINE)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(sys.modules["turnaround.cli.watch"], "_serve", looked_at_once)
    monkeypatch.setattr("turnaround.use.server.run_server", asked_once)
    return Victim(User(tmp_path / "home", tmp_path / "cache", forking_parent.python), outside)


@contextmanager
def limited() -> Iterator[None]:
    def give_up(*_: object) -> None:
        raise AssertionError(f"it took over {MAX_S} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(MAX_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def looked_at_once(folder: Any, place: Any, listening: Any) -> None:
    """`watch` without its loops: the quick cards and the whole page, once."""
    view = LiveView(folder)
    builder = PageBuilder(folder, view, title=view.title)
    builder.now()
    builder.page(builder.snapshots, builder.notes)


def asked_once(predictor: Predictor, address: Any, listening: Any) -> None:
    """`serve` for two requests."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"not a picture", "more_body": False}

    async def ask() -> None:
        service = Service(predictor, Limits())
        scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": []}
        async with service.alive(None):  # type: ignore[arg-type]
            assert (await service.about(Request(scope))).status_code == 200
            assert (await service.classify(Request(scope, receive))).status_code == 422

    asyncio.run(ask())


# --- runs


@pytest.fixture(scope="module")
def stopped(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run as somebody else hands it over, interrupted after its second epoch."""
    path = Path(shutil.copytree(trained_run, tmp_path_factory.mktemp("theirs") / "run"))
    directory = RunDirectory(path)
    shutil.rmtree(directory.checkpoints()[-1].path)
    status = json.loads(directory.status.read_text())
    directory.status.write_text(json.dumps({**status, "state": "interrupted", "epochs_done": 2}))
    directory.telemetry("theirs").write_text('{"time_s": 1.0, "at": "2026-11-16T10:00:00Z", "cpu": 0.5}\n')
    return path


@pytest.mark.hostile
@pytest.mark.parametrize("kind", RUNS)
def test_a_hostile_run(
    kind: str, stopped: Path, trained_run: Path, fruit_folder: Path, victim: Victim, tmp_path: Path
) -> None:
    directory = RunDirectory(Path(shutil.copytree(stopped, tmp_path / "home" / "run")))
    RUNS[kind](directory, victim.outside)
    picture = validation_images(trained_run)[0][0]
    words = {"RUN": str(directory.path), "GOOD": str(trained_run), "IMAGE": str(picture), "IMAGES": str(fruit_folder)}
    words["PAGE"] = str(page := tmp_path / "home" / "page.html")
    for call in (call for calls in OF_RUNS.values() for call in calls):
        victim.calls(*(words.get(word, word) for word in call))
    if page.exists():
        shown = page.read_text(encoding="utf-8")
        assert ESCAPE not in shown
        assert "<script>alert(1)" not in shown


# --- images, recipes, logs, studies, caches


@pytest.mark.hostile
def test_hostile_images(trained_run: Path, fruit_folder: Path, victim: Victim, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(fruit_folder, tmp_path / "home" / "images"))
    pictures = list(hostile_images(next(path for path in folder.iterdir() if path.is_dir()), victim.outside))
    said = victim.calls("classify", trained_run, *pictures, "--device", "cpu")
    assert said.count("scans") >= 1
    victim.calls("classify", trained_run, *pictures, "--device", "cpu", "--json")
    victim.calls("check", folder)
    victim.calls("evaluate", trained_run, folder, "--device", "cpu")
    for verb in (["bench"], ["estimate"], ["study", "--workers", "1", "--out", tmp_path / "home" / "study"]):
        victim.calls(verb[0], folder, *verb[1:], expects=(1, 2))
    said = victim.calls("train", folder, "--out", tmp_path / "home" / "out", "--device", "cpu", expects=(2,))
    assert "scans.jpg" in said
    assert not (tmp_path / "home" / "out").exists()


@pytest.mark.hostile
def test_hostile_images_posted_to_a_server(trained_run: Path, tmp_path: Path) -> None:
    for name in ("images", "mine"):
        (tmp_path / name).mkdir()
    outside = tmp_path / "mine" / "work.jsonl"
    outside.write_bytes(MINE)
    good = validation_images(trained_run)[0][0].read_bytes()
    with limited(), serving(Predictor.load(trained_run, device="cpu")) as port:
        for path in hostile_images(tmp_path / "images", outside):
            if path.is_symlink() or not path.is_file() or path.stat().st_size > 1 << 25:
                continue
            reply = ask(port, "/classify", "POST", path.read_bytes())
            assert reply.status in ((200,) if path.name == "chunks.png" else (400, 422)), (path, reply)
            assert not RAW.search(reply.body.decode())
        assert ask(port, "/classify", "POST", good).status == 200


@pytest.mark.hostile
@pytest.mark.parametrize("kind", RECIPES)
def test_a_hostile_recipe(kind: str, victim: Victim, tmp_path: Path) -> None:
    path = tmp_path / "home" / "recipe.toml"
    path.write_text(RECIPES[kind])
    for verb in ("train", "bench", "study"):
        victim.calls(verb, path, *(("--workers", "1") if verb == "study" else ()), expects=(2,))
    assert [entry.name for entry in (tmp_path / "home").iterdir()] == ["recipe.toml"]


@pytest.mark.hostile
@pytest.mark.parametrize("name", LOGS)
def test_a_hostile_log(name: str, victim: Victim, tmp_path: Path) -> None:
    path = tmp_path / "home" / name
    path.write_bytes(LOGS[name])
    victim.calls("import", path, "--out", tmp_path / "home" / "imported")
    victim.calls("import", path, "--out", tmp_path / "home" / "imported-2", "--json")
    assert {entry.name for entry in (tmp_path / "home").iterdir()} <= {name, "imported", "imported-2"}


@pytest.mark.hostile
@pytest.mark.parametrize("kind", ["link", "pipe", "device"])
def test_a_log_that_is_no_file(kind: str, victim: Victim, tmp_path: Path) -> None:
    path = tmp_path / "home" / "log.csv"
    os.mkfifo(path) if kind == "pipe" else path.symlink_to(victim.outside if kind == "link" else "/dev/zero")
    victim.calls("import", path, "--out", tmp_path / "home" / "imported", expects=(2,))


PLANNED = {"name": "fruit", "source": "fruit", "settings": [], "planned": {"w1-s0": "1 worker"}, "format": 1}


@pytest.mark.hostile
@pytest.mark.parametrize("kind", studies(PLANNED))
def test_a_hostile_study(kind: str, fruit_folder: Path, stopped: Path, victim: Victim, tmp_path: Path) -> None:
    folder = tmp_path / "home" / "study"
    shutil.copytree(stopped, folder / "w1-s0")
    StudyDirectory(folder).study.write_text(studies(PLANNED)[kind])
    victim.calls("study", fruit_folder, "--workers", "1", "--out", folder, "--dry-run")
    victim.calls("study", fruit_folder, "--workers", "1", "--out", folder, expects=(2,))
    victim.calls("watch", folder, "--port", "0")


@pytest.mark.hostile
@pytest.mark.parametrize("kind", ["link", "pipe", "device"])
@pytest.mark.parametrize("file", ["labels.npy", "images.npy"])
def test_a_hostile_cache(file: str, kind: str, fruit_folder: Path, trained_run: Path, victim: Victim) -> None:
    """A cache that others may write to: what is no file of its own is refused, or made anew."""
    cache = Path(shutil.copytree(os.environ["TURNAROUND_CACHE"], victim.user.cache))
    for path in cache.glob(f"pixels-*/{file}"):
        path.unlink()
        os.mkfifo(path) if kind == "pipe" else path.symlink_to(victim.outside if kind == "link" else "/dev/zero")
    victim.calls("verify", cache, expects=(1,))
    recipe = recipes.find(str(fruit_folder), ["data.size_px=32"]).resolved()
    with limited(), suppress(TurnaroundError):  # as `train`, `bench` and `resume` do it
        assert prepare_images(recipe, cache=cache, show=lambda *_: None).pixels.labels.max() < 6
    assert victim.outside.read_bytes() == MINE


# --- the folder that a verb is called in

SHADOWS = ("json", "numpy", "torch", "multiprocessing", "subprocess", "typing", "timm", "PIL", "safetensors")
SMALL = ("--model", "small", "--size", "32", "--device", "cpu")
IN_TWO = ("--processes", "2", "--workers", "2")


@pytest.fixture
def packed(fruit_folder: Path, tmp_path: Path) -> Path:
    """A data set with code beside the images, under the names of what every program imports."""
    folder = Path(shutil.copytree(fruit_folder, tmp_path / "packed"))
    trap = "import os\nos.close(os.open(os.environ['TRAP'], os.O_CREAT))\nraise SystemExit(99)\n"
    for name in SHADOWS:
        (folder / f"{name}.py").write_text(trap)
    (folder / "turnaround").mkdir()
    for name in ("__init__", "__main__", "worker"):
        (folder / "turnaround" / f"{name}.py").write_text(trap)
    return folder


@pytest.mark.hostile
@pytest.mark.parametrize(
    "words",
    [
        ["train", ".", "--epochs", "1", *SMALL, "--out", "OUT"],
        ["train", ".", "--epochs", "1", *SMALL, "--out", "OUT", *IN_TWO],
        ["resume", "TRAINED", "--device", "cpu"],
        ["resume", "STOPPED", "--device", "cpu"],
        ["doctor"],
        ["check", "."],
        ["bench", ".", *SMALL, "--workers", "2"],
        ["estimate", ".", "--gpu", "t4", *SMALL],
        ["study", ".", "--workers", "1", "--epochs", "1", *SMALL, "--out", "OUT"],
        ["classify", "TRAINED", "IMAGE", "--device", "cpu"],
        ["evaluate", "TRAINED", ".", "--device", "cpu"],
        ["report", "TRAINED"],
        ["verify", "TRAINED"],
        ["export", "TRAINED", "--to", "safetensors", "--out", "OUT"],
    ],
    ids=lambda words: words[0],
)
def test_code_in_the_folder_is_not_run(
    words: list[str], packed: Path, trained_run: Path, stopped: Path, tmp_path: Path
) -> None:
    """`python -m` and `python -c` look for modules in the current folder first."""
    command, trap = tmp_path / "bin" / "turnaround", tmp_path / "trapped"
    command.parent.mkdir()
    command.write_text("from turnaround.__main__ import main\n\nmain()\n")  # as pip writes it: a script, elsewhere
    ours = {"TRAINED": trained_run, "STOPPED": stopped}
    places = {name: shutil.copytree(run, tmp_path / name) for name, run in ours.items() if name in words}
    places |= {"OUT": tmp_path / "out", "IMAGE": validation_images(trained_run)[0][0]}
    done = subprocess.run(
        [sys.executable, str(command), *(str(places.get(word, word)) for word in words)],
        cwd=packed,
        env={**os.environ, "TRAP": str(trap), "TURNAROUND_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert not trap.exists(), done.stderr
    assert done.returncode in ((0, 1) if words[0] == "doctor" else (0,)), done.stderr
