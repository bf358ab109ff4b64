"""`turnaround classify` as a user sees it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from forking import ForkingParent
from turnaround import cli
from turnaround.use.predictor import Predictor
from turnaround.use.trained import load_trained
from use_helpers import validation_images

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command in this process: exit code, stdout, stderr."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["turnaround", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        told = capsys.readouterr()
        return int(end.value.code or 0), told.out, told.err

    return run


@pytest.fixture(scope="module")
def files(trained_run: Path) -> list[Path]:
    return validation_images(trained_run)[0]


def test_one_file_gives_bars(run: Run, trained_run: Path, files: list[Path]) -> None:
    code, out, err = run("classify", trained_run, files[0], "--top", 3)
    guesses = Predictor.load(trained_run, device="cpu").classify([files[0]], top=3)[0]
    assert (code, err) == (0, f"note: {load_trained(trained_run).which}\n")
    lines = [line.split() for line in out.splitlines()]
    assert [line[0] for line in lines] == [guess.name for guess in guesses]
    assert [line[1] for line in lines] == [f"{100 * guess.probability:.1f}" for guess in guesses]


def test_a_folder_gives_a_line_for_each(run: Run, trained_run: Path, fruit_folder: Path) -> None:
    code, out, err = run("classify", trained_run, fruit_folder / "fresh_apple", "--top", 1)
    assert code == 0
    assert len(out.splitlines()) == 40
    assert all(".bmp  " in line and line.endswith(" %") for line in out.splitlines())
    assert err.endswith("classifying images: 40\n")


def test_json_and_bad_files(run: Run, trained_run: Path, files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "page.jpg").write_text("<html>")
    code, out, err = run("classify", trained_run, files[0], tmp_path / "page.jpg", tmp_path / "gone", "--json")
    told = json.loads(out)
    assert (code, err) == (1, "")
    assert (told["run"], told["epoch"]) == (str(trained_run), 3)
    assert [answer["file"] for answer in told["answers"]] == [str(files[0])]
    assert len(told["answers"][0]["classes"]) == 5
    assert told["failed"] == [
        {"file": str(tmp_path / "page.jpg"), "reason": "not an image (starts with '<html>')"},
        {"file": str(tmp_path / "gone"), "reason": "no such file or directory"},
    ]


def test_bad_files_are_named_after_the_answers(run: Run, trained_run: Path, files: list[Path], tmp_path: Path) -> None:
    bad = tmp_path / "\x1b[31mred.jpg"
    bad.write_bytes(b"")
    code, out, err = run("classify", trained_run, files[0], bad)
    assert code == 1
    assert len(out.splitlines()) == 1
    assert f"{tmp_path}/?[31mred.jpg: empty file" in err
    assert "1 of 2 could not be read" in err
    code, out, _ = run("classify", trained_run, bad)
    assert (code, out) == (1, "")


def test_standard_input(trained_run: Path, files: list[Path], forking_parent: ForkingParent) -> None:
    command = [forking_parent.python, "-m", "turnaround", "classify", str(trained_run), "-", "--top", "1", "--json"]
    done = subprocess.run(command, input=files[0].read_bytes(), capture_output=True, timeout=180, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    told = json.loads(done.stdout)["answers"]
    assert told[0]["file"] == "standard input"
    assert told[0]["classes"][0]["name"] == Predictor.load(trained_run, device="cpu").classify([files[0]])[0][0].name


def test_a_damaged_checkpoint_is_told(run: Run, trained_run: Path, files: list[Path], tmp_path: Path) -> None:
    copied = Path(shutil.copytree(trained_run, tmp_path / "copied"))
    os.truncate(copied / "checkpoint" / "epoch-00003" / "weights.safetensors", 1000)
    code, out, err = run("classify", copied, files[0], "--weights", "last")
    assert (code, len(out.splitlines())) == (0, 5)
    assert err.startswith("note: epoch-00003 is damaged")
    assert "epoch-00002 is used\n" in err
    assert err.endswith("note: weights after epoch 2, the last that are saved\n")


def test_refusals(run: Run, trained_run: Path, files: list[Path], tmp_path: Path) -> None:
    for arguments, sentence in (
        ((tmp_path, files[0]), "is not a run directory: no recipe.json"),
        ((trained_run, tmp_path), "holds no image"),
        ((trained_run, files[0], "--top", 0), "top must be 1 or more"),
        ((trained_run, files[0], "--device", "tpu"), "Unknown --device 'tpu'"),
    ):
        code, out, err = run("classify", *arguments)
        assert (code, out) == (2, "")
        assert sentence in err
