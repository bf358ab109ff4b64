"""`turnaround report --out` and the page that a training leaves, as a user sees them."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from analysis.build import LAB, Plan, build, import_table
from console import Console, Done
from forking import ForkingParent
from turnaround.analysis.workloads import survey
from turnaround.launch.forked import OFF, SERVER_VARIABLE
from turnaround.record.files import read_json
from turnaround.record.writer import write_json
from turnaround.reporting.page.build import page_view
from turnaround.reporting.page.examples import MAX_PICTURES

QUICK = ("--device", "cpu", "--processes", "1", "--set", "data.size_px=32", "--set", "training.epochs=2")


@pytest.fixture
def turnaround(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], forking_parent: ForkingParent
) -> Callable[..., Done]:
    """The console script, in this process: its text and its exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", forking_parent.python)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return Console(monkeypatch, capfd)


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    return import_table(LAB, tmp_path / "lab")


def pictures_in(text: str) -> list[bytes]:
    return [base64.b64decode(found) for found in set(re.findall(r"data:image/jpeg;base64,([A-Za-z0-9+/=]+)", text))]


# --- report --out


def test_a_page_is_written_and_said_where(turnaround: Callable[..., Done], lab: Path) -> None:
    done = turnaround("report", lab, "--out", "page.html", "--job", "caltech", "--price", "2.5")
    assert done == Done(0, "", "page: page.html\n")
    page = Path("page.html").read_text()
    assert "8 V100 finish 30 epochs first" in page.replace("\u00a0", " ")
    assert "fruit, fine-tuned" not in page
    assert f"turnaround report {lab} --job caltech --price 2.5 --out page.html" in page
    assert list(Path().glob(".page*")) == []


def test_json_stays_pure_beside_a_page(turnaround: Callable[..., Done], lab: Path) -> None:
    done = turnaround("report", lab, "--out", "page.html", "--json")
    assert set(json.loads(done.out)) >= {"runs", "jobs", "findings"}
    assert done.err == "page: page.html\n"


def test_our_own_page_is_replaced_and_nobody_elses_file_is(turnaround: Callable[..., Done], lab: Path) -> None:
    assert turnaround("report", lab, "--out", "page.html").code == 0
    assert turnaround("report", lab, "--out", "page.html").code == 0
    Path("empty.html").touch()
    assert turnaround("report", lab, "--out", "empty.html").code == 0
    Path("thesis.html").write_text("<h1>my thesis</h1>")
    done = turnaround("report", lab, "--out", "thesis.html")
    assert (done.code, done.out) == (2, "")
    assert "'thesis.html' already exists, and is no page of turnaround: it is left as it is." in done.err
    assert Path("thesis.html").read_text() == "<h1>my thesis</h1>"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--out", "."), "Cannot write '.': it is a folder. Give the path of a file: page.html."),
        (("--out", "no/such/page.html"), "there is no folder 'no/such'. Make it first."),
        (("--out", "/proc/page.html"), "Cannot write '/proc/page.html': No such file or directory in its folder."),
        (("--out", "page.txt"), "a page is html, and no browser opens it under that name. Give 'page.html'."),
        (("--price", "2"), "--price is about the page: add --out page.html, or leave it out."),
        (("--no-pictures",), "--no-pictures is about the page: add --out page.html, or leave it out."),
        (("--out", "page.html", "--price", "-1"), "--price must be above 0 (for one GPU for one hour), received -1."),
        (("--out", "page.html", "--job", "x"), "No job of these runs is called 'x'."),
    ],
)
def test_refusals(turnaround: Callable[..., Done], lab: Path, arguments: tuple[str, ...], message: str) -> None:
    done = turnaround("report", lab, *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert message in done.err
    assert not Path("page.html").exists()


# --- at the end of a training


def test_train_leaves_a_page_with_examples_of_confused_classes(
    turnaround: Callable[..., Done], fruit_folder: Path
) -> None:
    done = turnaround("train", fruit_folder, *QUICK, "--out", "run")
    assert done.code == 0
    assert done.err.splitlines()[-1] == "page: run/page.html"
    pictures = pictures_in(Path("run/page.html").read_text())
    assert 0 < len(pictures) <= 2 * MAX_PICTURES  # of the confused classes, and of the mistakes
    for picture in pictures:
        with Image.open(BytesIO(picture)) as image:
            assert max(image.size) <= 96
            assert not image.getexif()
    again = turnaround("resume", "run", "--json")
    assert json.loads(again.out)["state"] == "finished"
    assert again.err == ""


def test_a_page_that_cannot_be_written_is_a_warning_no_more(
    turnaround: Callable[..., Done], trained_run: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained_run, tmp_path / "run", ignore=shutil.ignore_patterns("page.html"))
    (tmp_path / "run" / "page.html").mkdir()
    done = turnaround("resume", "run")  # finished: it is only told
    assert done.code == 0
    assert "final accuracy" in done.out
    assert done.err == (
        "run is finished: there is nothing to go on with; --epochs N gives it more. This is its result:\n"
        "warning: the page run/page.html could not be written: Cannot write 'run/page.html': it is a folder. Give the "
        "path of a file: run/page.html/page.html.\n"
    )


def test_ctrl_c_while_the_page_is_written_leaves_a_finished_run_that_resume_completes(
    turnaround: Callable[..., Done], trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(trained_run, tmp_path / "run", ignore=shutil.ignore_patterns("page.html"))

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("turnaround.reporting.page.build.write_page", interrupted)
        done = turnaround("resume", "run")
    assert done.code == 0
    assert done.err.splitlines()[-1] == (
        "warning: the page run/page.html could not be written: Ctrl-C. Everything else is whole; write it with: "
        "turnaround report run --out run/page.html"
    )
    assert not Path("run/page.html").exists()
    assert turnaround("resume", "run").code == 0
    assert Path("run/page.html").is_file()


def test_a_training_that_fails_leaves_a_page_too(
    turnaround: Callable[..., Done], fruit_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNAROUND_FAULT", "kind=nan,step=8")
    done = turnaround("train", fruit_folder, *QUICK, "--out", "run")
    assert done.code == 1
    assert "page: run/page.html\n" in done.err
    assert done.err.splitlines()[-1].startswith("error: ")
    page = Path("run/page.html").read_text()
    assert "the run diverged" in page


def test_what_is_refused_leaves_no_page(turnaround: Callable[..., Done], fruit_folder: Path, tmp_path: Path) -> None:
    build(tmp_path / "run", Plan())
    for source, out in (("no/such/folder", "new"), (fruit_folder, "run")):
        done = turnaround("train", source, *QUICK, "--out", out)
        assert done.code == 2
        assert "page" not in done.err
    assert not Path("new").exists()
    assert not Path("run/page.html").exists()


def test_a_study_ends_with_its_page(fruit_folder: Path, tmp_path: Path, forking_parent: ForkingParent) -> None:
    asked = ["study", str(fruit_folder), "--workers", "1", "--out", "study", "--device", "cpu", *QUICK[4:]]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", SERVER_VARIABLE: OFF}
    done = subprocess.run(
        [forking_parent.python, "-m", "turnaround", *asked],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "page: study/page.html"
    assert {path.parent.name for path in tmp_path.rglob("page.html")} == {"study", "1w-seed0"}


# --- example pictures


def test_pictures_come_only_from_the_folder_as_the_run_found_it(
    trained_run: Path, fruit_folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained_run, run, ignore=shutil.ignore_patterns("page.html"))
    view = page_view(survey([run]), [run])
    assert view.notes == ()
    assert any(view.thumbnails.values())
    others = tmp_path / "others"
    shutil.copytree(fruit_folder, others)
    min(others.glob("*/*")).unlink()
    recipe = read_json(run / "recipe.json")
    for source in (others, tmp_path / "nowhere"):
        write_json(run / "recipe.json", {**recipe, "data": {**recipe["data"], "source": str(source)}})
        view = page_view(survey([run]), [run])
        assert not any(view.thumbnails.values())
        assert view.notes[0].endswith("no example pictures, because its folder of images is not here as it was.")


def test_an_imported_run_opens_no_folder(lab: Path, tmp_path: Path) -> None:
    assert page_view(survey([lab]), [lab]).thumbnails == {}
    build(tmp_path / "run", Plan(per_class={"a": 3, "b": 4}))  # no mistakes in it
    assert page_view(survey([tmp_path / "run"]), [tmp_path / "run"]).notes == ()
