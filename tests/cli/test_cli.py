"""The command line as a user sees it: what a training prints, and how it stops and goes on."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import psutil
import pytest

from forking import ForkingParent, command_that_starts
from struck import processes_of
from turnaround import recipes
from turnaround.analysis.summary import RunSummary, summarise
from turnaround.record import heartbeat
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import Run

QUICK = ("--device", "cpu", "--set", "data.size_px=32")
PATIENCE_S = 300


def command(*arguments: str, python: str = sys.executable) -> list[str]:
    """Of the real Python, or of one that has loaded torch: for what is not about processes that start and end."""
    return [python, "-m", "turnaround", *arguments]


@pytest.fixture(scope="module")
def environment(session_folder: Path) -> dict[str, str]:
    # One thread: two that wait for each other by spinning crawl when anything else runs on the machine.
    own = {"TURNAROUND_CACHE": str(session_folder / "cache"), "COLUMNS": "160", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **own}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory of this module's user."""
    return tmp_path_factory.mktemp("here")


@pytest.fixture(scope="module")
def run(
    environment: dict[str, str], here: Path, forking_parent: ForkingParent
) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*arguments: str, python: str = forking_parent.python) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*arguments, python=python),
            env=environment,
            cwd=here,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    return run


@contextlib.contextmanager
def started(
    *arguments: str, environment: dict[str, str], python: str = sys.executable
) -> Iterator[subprocess.Popen[str]]:
    """A command that runs while the test goes on, whose trainings `python` starts; whatever is left of it goes."""
    with subprocess.Popen(
        [*command_that_starts(python), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell starts background jobs with Ctrl-C ignored, and Python would leave it so.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
            process.kill()


def wait_for(condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def num_epochs(directory: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return (directory / "epochs.jsonl").read_text().count("\n")
    return 0


def step(directory: Path) -> int:
    """The step that process 0 has begun, as it says once a second."""
    return next((seen.step for seen in heartbeat.read(RunDirectory(directory)) if seen.rank == 0), 0)


def is_told_of_images(directory: Path) -> bool:
    """The launcher waits for its processes, which may still load their code: images alone would end without a run."""
    with contextlib.suppress(OSError, ValueError):
        return json.loads(RunDirectory(directory).start_message.read_text())["pixels_dir"] is not None
    return False


def slowed(environment: dict[str, str], fault: str) -> dict[str, str]:
    """A training that takes its time, so that the test comes to it while it runs, however busy the machine is."""
    return {**environment, "TURNAROUND_FAULT": fault}


def status(directory: Path) -> dict[str, object]:
    with contextlib.suppress(FileNotFoundError):
        return json.loads((directory / "status.json").read_text())
    return {}


# --- a training


@pytest.fixture(scope="module")
def plain(run: Callable[..., subprocess.CompletedProcess[str]], fruit_folder: Path) -> subprocess.CompletedProcess[str]:
    """Two epochs of two rehearsed workers, not on a terminal, into the default directory."""
    how = ("--workers", "2", "--processes", "1", "--set", "training.epochs=2")
    return run("train", str(fruit_folder), *QUICK, *how, python=sys.executable)


def test_plain_lines_where_there_is_no_terminal(plain: subprocess.CompletedProcess[str]) -> None:
    assert plain.returncode == 0, plain.stderr
    assert "\x1b" not in plain.stderr + plain.stdout
    lines = plain.stderr.splitlines()
    assert "fruit: 192 training and 48 validation images in 6 classes, 32 px, small" in lines
    assert any(line.startswith("2 workers on 1 process (a rehearsal: ") for line in lines)
    assert any(line.startswith("note: Only 48 validation images") for line in lines)
    epochs = [line for line in lines if line.startswith("epoch ")]
    assert [line.split()[1] for line in epochs] == ["1/2", "2/2"]
    assert all("validation" in line and line.endswith("images/s") for line in epochs)


def test_the_last_table(plain: subprocess.CompletedProcess[str], here: Path) -> None:
    headings = [line.split("  ")[0] for line in plain.stdout.splitlines() if not line.startswith(" ")]
    # After two epochs it may or may not be better than guessing, which would be a problem.
    assert [heading for heading in headings if heading != "problem"] == [
        *("final accuracy", "by class", "best epoch", "weakest class", "epoch time", "turnaround", "scaling"),
        *("noise scale", "record"),
    ]
    assert "of 48 validation images, top-5 " in plain.stdout
    assert "this machine's, for all workers together" in plain.stdout
    assert (here / "runs" / "fruit-2w" / "evaluation.json").is_file()


def test_json_for_programs(
    run: Callable[..., subprocess.CompletedProcess[str]], fruit_folder: Path, tmp_path: Path
) -> None:
    how = ("--set", "training.epochs=1", "--no-cache", "--json", "--out", str(tmp_path / "out"))
    done = run("train", str(fruit_folder), *QUICK, *how)
    assert done.returncode == 0, done.stderr
    assert "images/s" not in done.stderr  # no progress
    result = json.loads(done.stdout)
    assert list(result) == [field.name for field in fields(RunSummary)]
    assert result["directory"] == str(tmp_path / "out")
    assert (result["state"], result["workers"], result["processes"], result["epochs"]) == ("finished", 1, 1, 1)
    assert 0 <= result["final_val_accuracy"] <= 1
    assert result["turnaround_s"] == pytest.approx(sum(result["turnaround_parts_s"].values()))
    assert result["turnaround_parts_s"]["decode"] >= 0  # what was waited for it: start-up may hide all of it
    assert not (tmp_path / "out" / ".pixels").exists()  # --no-cache: decoded for this run alone, and gone after it
    again = run("resume", str(tmp_path / "out"), "--json")
    assert json.loads(again.stdout) == result


def test_a_bar_on_a_terminal(
    environment: dict[str, str], fruit_folder: Path, tmp_path: Path, forking_parent: ForkingParent
) -> None:
    ours, theirs = pty.openpty()
    arguments = ("train", str(fruit_folder), *QUICK, "--set", "training.epochs=3", "--out", str(tmp_path / "out"))
    with subprocess.Popen(
        command(*arguments, python=forking_parent.python),
        env={**environment, "TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # Linux says EIO when the other side has closed
            while part := os.read(ours, 65_536):
                shown += part
    os.close(ours)
    text = shown.decode()
    assert process.returncode == 0, text
    assert "\x1b[" in text
    assert "━" in text  # the bar
    assert "starting" in text
    assert "epoch 3/3  loss" in text
    assert "images/s" in text
    assert "final accuracy" in text


def test_a_dry_run_prints_and_starts_nothing(
    run: Callable[..., subprocess.CompletedProcess[str]], plain: subprocess.CompletedProcess[str], fruit_folder: Path
) -> None:
    how = ("--workers", "2", "--processes", "2", "--dry-run", "--set", "training.epochs=7")
    done = run("train", str(fruit_folder), *QUICK, *how)
    assert (done.returncode, done.stderr) == (0, "")
    values = tomllib.loads(done.stdout)
    assert (values["training"]["epochs"], values["workers"]["count"], values["data"]["size_px"]) == (7, 2, 32)
    assert values["training"]["learning_rate"] == 0.002  # resolved
    assert "runs/fruit-2w-2" in done.stdout  # the next free one
    assert "turnaround.workers.torch_agent --nproc-per-node 2" in done.stdout
    assert "turnaround.worker" in done.stdout
    assert "workers of each process" not in done.stdout
    uneven = run("train", "fruit", "--workers", "16", "--share", "11,5", "--dry-run")  # looks at no data
    assert "# workers of each process: 11, 5" in uneven.stdout
    assert "--nproc-per-node 2" in uneven.stdout


def test_a_preview_of_the_training_images_trains_nothing(
    run: Callable[..., subprocess.CompletedProcess[str]], fruit_folder: Path, tmp_path: Path
) -> None:
    page, words = tmp_path / "page.html", ("train", str(fruit_folder), *QUICK, "--out", str(tmp_path / "run"))
    done = run(*words, "--show-batch", str(page), "--set", "augment.preset=strong")
    assert done.returncode == 0, done.stderr
    assert f"page: {page}" in done.stderr
    assert not (tmp_path / "run").exists()
    text = page.read_text(encoding="utf-8")
    assert text.count("<figure") == 24
    assert "fresh_apple" in text
    done = run(*words, "--show-batch", str(page), "--json", "--set", "augment.preset=light")
    assert json.loads(done.stdout)["augment"]["flip"] is True
    assert json.loads(done.stdout)["images"] == 24
    refused = run(*words, "--show-batch", str(page), "--dry-run")
    assert (refused.returncode, "trains nothing. Leave --dry-run, --on" in refused.stderr) == (2, True)
    refused = run(*words, "--show-batch", str(tmp_path / "no" / "page.html"))
    assert (refused.returncode, "Make it first, or choose another place" in refused.stderr) == (2, True)


# --- the small verbs


def test_version_and_help(run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    assert run("--version").stdout == "turnaround 0.1.0\n"
    shown = run("--help").stdout
    assert all(verb in shown for verb in ("demo", "train", "resume", "recipes", "doctor"))


def test_recipes(run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    listed = run("recipes").stdout
    for name in recipes.names():
        assert f"{name} " in listed
        assert recipes.headline(name) in listed
    assert run("recipes", "show", "fruitbowl").stdout == recipes.text("fruitbowl")
    assert run("recipes", "keys").stdout == recipes.keys_text() + "\n"
    mine = tmp_path / "mine.toml"
    copied = run("recipes", "copy", "lab10-fruit", str(mine))
    assert (copied.returncode, mine.read_text()) == (0, recipes.text("lab10-fruit"))
    assert f"turnaround train {mine}" in copied.stdout


def test_doctor(run: Callable[..., subprocess.CompletedProcess[str]], forking_parent: ForkingParent) -> None:
    done = run("doctor", "--json", python=forking_parent.python_with_agent)
    facts = json.loads(done.stdout)
    assert facts["all_reduce"]["is_right"] is True
    assert facts["all_reduce"]["processes"] == 2
    assert facts["torch"]["gloo"] is True
    assert facts["cores"] >= 1
    assert done.returncode == bool(facts["problems"])


def test_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], forking_parent: ForkingParent
) -> None:
    monkeypatch.setattr(sys, "executable", forking_parent.python)
    demo = importlib.import_module("turnaround.cli.demo")  # `from turnaround.cli import demo` is the verb
    monkeypatch.setattr(demo, "OVERRIDES", ("data.images=60", "data.size_px=32", "training.epochs=1"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(demo, "TRAINED", (1,))
    monkeypatch.setattr(demo, "REHEARSED", (2,))
    demo.demo(out=tmp_path / "demo", device="cpu", json_=True)
    runs = json.loads(capfd.readouterr().out)
    assert [(r["workers"], r["processes"], r["is_rehearsal"]) for r in runs] == [(1, 1, False), (2, 1, True)]
    assert [r["state"] for r in runs] == ["finished", "finished"]
    summaries = [summarise(Run.load(Path(r["directory"]))) for r in runs]
    demo._print_story(summaries, tmp_path / "demo")
    story = capfd.readouterr().out
    for words in ("workers", "turnaround", "rehearsed", "64 images instead of 32", "What next", "turnaround doctor"):
        assert words in story
    told = story[story.index("What the runs say") : story.index("What next")].splitlines()
    assert 1 <= sum(line.startswith(("problem: ", "caution: ", "note: ")) for line in told) <= 5
    assert f"turnaround report {tmp_path / 'demo'}" in story


# --- stopping and going on


@pytest.mark.fault(6, "Ctrl-C once: stops after the step, saved, exit code 75, and says how to go on")
def test_ctrl_c_stops_after_the_step_and_resume_goes_on(
    environment: dict[str, str], fruit_folder: Path, tmp_path: Path, forking_parent: ForkingParent
) -> None:
    out = tmp_path / "my run"
    arguments = ("train", str(fruit_folder), *QUICK, "--set", "training.epochs=5", "--out", str(out))
    slow = slowed(environment, "kind=slow,step=7,ms=400")
    with started(*arguments, environment=slow, python=forking_parent.python) as process:
        wait_for(lambda: num_epochs(out))
        process.send_signal(signal.SIGINT)
        _, shown = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 75, shown
    assert "Stopping after this step. Ctrl-C again stops at once." in shown
    done = num_epochs(out)
    assert 0 < done < 5
    within = rf"error: Stopped after step [1-6] of 6 in epoch {done + 1} of 5; everything up to there is saved\."
    assert re.search(rf"{within}|error: Stopped after epoch {done} of 5; everything", shown)
    assert f"turnaround resume '{out}'" in shown  # what to type next
    assert status(out)["state"] == "interrupted"
    assert status(out)["epochs_done"] == done
    assert not (out / "run.lock").exists()
    again = subprocess.run(
        command("resume", str(out), "--device", "cpu", "--json", python=forking_parent.python),
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert again.returncode == 0, again.stderr
    result = json.loads(again.stdout)
    assert (result["state"], result["epochs"]) == ("finished", 5)
    assert status(out)["segments"] == 2
    assert [e.segment for e in Run.load(out).epochs] == [1] * done + [2] * (5 - done)


@pytest.mark.fault(6, "Ctrl-C twice: ends at once, the last checkpoint is intact, no process is left")
def test_a_second_ctrl_c_stops_at_once(
    environment: dict[str, str], fruit_folder: Path, tmp_path: Path, forking_parent: ForkingParent
) -> None:
    out = tmp_path / "out"
    arguments = ("train", str(fruit_folder), *QUICK, "--set", "training.epochs=1000", "--out", str(out))
    hangs = slowed(environment, "kind=hang,step=2")
    with started(*arguments, environment=hangs, python=forking_parent.python) as process:
        wait_for(lambda: step(out) == 2)  # which does not end: only the second request can
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        assert "Stopping after this step" in next(line for line in process.stderr if "Stopping" in line)  # type: ignore[union-attr]
        process.send_signal(signal.SIGINT)
        _, shown = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 75, shown
    assert "error: Stopped at once" in shown
    assert f"turnaround resume {out}" in shown
    assert status(out)["state"] == "interrupted"
    assert children
    wait_for(lambda: not any(alive(child) for child in children), timeout_s=10)


def test_ctrl_c_while_the_processes_start(environment: dict[str, str], fruit_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("train", str(fruit_folder), *QUICK, "--workers", "2", "--processes", "2", "--out", str(out))
    with started(*arguments, environment=environment) as process:
        wait_for(lambda: is_told_of_images(out))
        process.send_signal(signal.SIGINT)
        _, shown = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 75, shown
    assert "died without a word" not in shown
    assert status(out)["state"] == "interrupted"


def test_ctrl_c_within_a_long_epoch_does_not_wait_for_its_end(
    environment: dict[str, str], fruit_folder: Path, tmp_path: Path, forking_parent: ForkingParent
) -> None:
    out = tmp_path / "out"
    epoch = ("--set", "training.epochs=1", "--set", "training.batch_per_worker=2")  # of 48 steps
    how = ("--workers", "2", "--processes", "2", *epoch, "--out", str(out))
    slow = slowed(environment, "kind=slow,ms=500")
    python = forking_parent.python_with_agent
    with started("train", str(fruit_folder), *QUICK, *how, environment=slow, python=python) as process:
        wait_for(lambda: status(out).get("first_step_at"))
        process.send_signal(signal.SIGINT)
        _, shown = process.communicate(timeout=PATIENCE_S)
    assert "Stopping after this step" in shown
    assert process.returncode == 75, shown
    assert status(out)["state"] == "interrupted"
    assert num_epochs(out) == 0
    assert len(list((out / "checkpoint").glob("epoch-00000-step-*"))) == 1


def test_ctrl_c_while_drawing_leaves_nothing(environment: dict[str, str], tmp_path: Path) -> None:
    own = {**environment, "TURNAROUND_CACHE": str(tmp_path / "cache")}
    arguments = ("train", "fruitbowl", "--set", "data.images=100000", "--out", str(tmp_path / "out"))
    with started(*arguments, environment=own) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "drawing images: 100,000\n"
        os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to all of them
        _, shown = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "Traceback" not in shown
    assert [p for p in tmp_path.rglob("*") if p != tmp_path / "cache"] == []


@pytest.mark.fault(5, "SIGKILL of the launcher: all its processes are gone within 10 s; resume takes the lock over")
def test_killing_the_launcher_ends_its_processes_and_resume_goes_on(
    environment: dict[str, str], fruit_folder: Path, tmp_path: Path, forking_parent: ForkingParent
) -> None:
    out = tmp_path / "out"
    settings = ("--set", "training.epochs=6", "--set", "training.checkpoint_every_s=0")
    how = ("--workers", "2", "--processes", "2", *settings, "--out", str(out))
    slow = slowed(environment, "kind=slow,step=7,ms=400")
    python = forking_parent.python_with_agent
    with started("train", str(fruit_folder), *QUICK, *how, environment=slow, python=python) as process:
        wait_for(lambda: num_epochs(out) > 1)
        children = [child for child in processes_of(out) if child.pid != process.pid]
        process.kill()
        process.wait()
    assert len(children) >= 3  # torch.distributed.run and two workers
    wait_for(lambda: not any(alive(child) for child in children), timeout_s=10)
    assert status(out)["state"] == "running"  # nobody was left to say otherwise
    assert (out / "run.lock").exists()
    again = subprocess.run(
        command("resume", str(out), "--processes", "1", "--device", "cpu", python=forking_parent.python),
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert again.returncode == 0, again.stderr
    assert (status(out)["state"], status(out)["segments"]) == ("finished", 2)
    assert [e.epoch for e in Run.load(out).epochs] == list(range(1, 7))
    assert not (out / "run.lock").exists()
