"""`turnaround export` as a user sees it; what is in the files is tests/use/test_export.py's."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from turnaround import cli
from turnaround.use.formats import FORMATS
from turnaround.use.trained import load_trained


def run(*arguments: object) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["turnaround", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
    return int(end.value.code or 0)


def test_the_file_bears_the_runs_name_and_is_here(
    trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("export", trained_run, "--to", "safetensors") == 0
    told = capsys.readouterr()
    assert told.out.startswith(
        "fruit.safetensors: 1.2 MB, safetensors. It names the same class as the trained network "
    )
    assert "for 48 of 48 validation images" in told.out
    assert "Model card: fruit.safetensors.md" in told.out
    assert told.err == f"note: {load_trained(trained_run).which}\nreading images for the check: 48\n"
    assert {path.name for path in tmp_path.iterdir()} == {"fruit.safetensors", "fruit.safetensors.md"}


def test_json(trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("export", trained_run, "--to", "torchscript", "--out", tmp_path / "a.pt", "--json") == 0
    told = capsys.readouterr()
    content = json.loads(told.out)
    assert (content["file"], content["format"], told.err) == (str(tmp_path / "a.pt"), "torchscript", "")
    assert (content["agreement"]["num_images"], content["agreement"]["same_top1"]) == (48, 48)
    assert content["num_bytes"] == (tmp_path / "a.pt").stat().st_size


def test_refusals(trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.pt").touch()
    for arguments, sentence in (
        ((trained_run, "--to", "tflite"), "Unknown --to 'tflite'."),
        ((trained_run, "--to", "torchscript", "--out", tmp_path / "a.pt"), "already exists"),
        ((tmp_path, "--to", "onnx"), "is not a run directory"),
    ):
        assert run("export", *arguments) == 2
        assert sentence in capsys.readouterr().err


def test_the_help_names_every_format() -> None:
    """The command line imports no torch before it is needed, so its help has the names by heart."""
    shown = CliRunner().invoke(cli.app, ["export", "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    assert [name for name in FORMATS if name not in shown] == []
