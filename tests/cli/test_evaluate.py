"""`turnaround evaluate` as a user sees it."""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import turnaround as ta
from turnaround import cli

Evaluate = Callable[..., tuple[int, str, str]]


@pytest.fixture
def evaluate(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Evaluate:
    """The command in this process: exit code, stdout, stderr."""
    monkeypatch.setenv("COLUMNS", "100")

    def evaluate(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["turnaround", "evaluate", *map(str, arguments), "--device", "cpu"])
        with pytest.raises(SystemExit) as end:
            cli.main()
        told = capsys.readouterr()
        return int(end.value.code or 0), told.out, told.err

    return evaluate


@pytest.fixture(scope="module")
def photos(fruit_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve images of two classes, somewhere else."""
    root = tmp_path_factory.mktemp("photos")
    for name in ("fresh_apple", "rotten_orange"):
        (root / name).mkdir()
        for file in sorted((fruit_folder / name).iterdir())[:6]:
            shutil.copy(file, root / name)
    return root


def test_figures_for_people(evaluate: Evaluate, trained_run: Path, photos: Path) -> None:
    code, out, err = evaluate(trained_run, photos)
    assert code == 0
    right = round(12 * ta.evaluate(trained_run, photos, device="cpu").accuracy)
    assert out.startswith(f"{right / 12:.1%}".replace("%", " %") + f" accuracy: {right} of 12 images (95 % interval ")
    assert re.search(r"(?m)^class +images +precision +recall +F1$", out)
    assert re.search(r"(?m)^fresh_apple +6 ", out)
    assert max(map(len, out.splitlines())) <= 100
    assert "note: weights of epoch" in err


def test_two_runs_as_json_with_a_page_and_a_table(
    evaluate: Evaluate, trained_run: Path, photos: Path, tmp_path: Path
) -> None:
    page, table = tmp_path / "page.html", tmp_path / "images.csv"
    code, out, err = evaluate(
        trained_run, photos, "--against", trained_run, "--weights", "last", "--page", page, "--csv", table, "--json"
    )
    found = json.loads(out)
    assert (code, found["run"], found["num_images"], found["weights"]) == (0, str(trained_run), 12, "last")
    assert found["accuracy"]["low"] < found["accuracy"]["value"] < found["accuracy"]["high"]
    assert sum(map(sum, found["confusion"])) == 12
    compared = found["against"]["comparison"]
    assert (compared["only_first"], compared["only_second"], compared["p"]) == (0, 0, 1.0)
    assert compared["sentence"].endswith("are right on the same images.")
    assert err == f"written: {page}\nwritten: {table}\n"
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert len(rows) == 12
    assert all((row["predicted"] == row["label"]) == (row["is_right"] == "True") for row in rows)
    assert all(row["against_predicted"] == row["predicted"] for row in rows)
    html = page.read_text()
    assert html.count('<img src="data:image/jpeg;base64,') == sum(row["is_right"] == "False" for row in rows)
    assert found["sentences"][0].replace(" %", "\u00a0%").replace(" images", "\u00a0images") in html
    assert "<script" not in html
    # The same from Python.
    report = ta.evaluate(trained_run, photos, against=trained_run, weights="last", device="cpu")
    assert report.as_json() == found
    assert (len(report.images), len(report.mistakes)) == (12, len(found["mistakes"]))
    assert report.text(width=60).startswith(found["sentences"][0][:40])


def test_files_that_cannot_be_read(evaluate: Evaluate, trained_run: Path, photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    (tmp_path / "photos" / "fresh_apple" / "bad.png").write_text("no image")
    code, out, err = evaluate(trained_run, tmp_path / "photos", "--page", tmp_path / "p.html")
    assert code == 1
    assert "of 12 images" in out
    assert "could not be read: fresh_apple/bad.png: " in err
    assert "1 file could not be read and count" in (tmp_path / "p.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("{run}", "{photos}/fresh_apple"), "no class folders, so nothing says what they show"),
        (("{run}", "{photos}/fresh_apple"), "turnaround classify"),
        (("{run}", "gone"), "There is no folder and no table 'gone'"),
        (("gone", "{photos}"), "gone"),
        (("{run}", "{photos}", "--page", "p.txt"), "a page is html"),
        (("{run}", "{photos}", "--csv", "gone/x.csv"), "there is no folder 'gone'"),
        (("{run}", "{photos}", "--weights", "worst"), "Unknown --weights 'worst'"),
        (("{run}", "{photos}", "--against", "gone"), "gone"),
    ],
)
def test_mistakes_are_answered(
    evaluate: Evaluate, trained_run: Path, photos: Path, arguments: tuple[str, ...], said: str
) -> None:
    code, out, err = evaluate(*(word.format(run=trained_run, photos=photos) for word in arguments))
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize(("flag", "name", "what"), [("--csv", "images.csv", "table"), ("--page", "p.html", "page")])
def test_a_full_disk_names_what_could_not_be_written(
    evaluate: Evaluate, trained_run: Path, photos: Path, tmp_path: Path, flag: str, name: str, what: str
) -> None:
    (tmp_path / name).symlink_to("/dev/full")
    code, _, err = evaluate(trained_run, photos, flag, tmp_path / name)
    assert code == 2
    assert f"Cannot write the {what} '{tmp_path / name}': No space left on device" in err
