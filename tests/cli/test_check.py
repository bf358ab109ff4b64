"""`turnaround check`, through the real command."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from forking import ForkingParent


def picture(number: int) -> Image.Image:
    rng = np.random.default_rng(number)
    return Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)).resize((48, 48), Image.Resampling.BICUBIC)


Check = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def check(forking_parent: ForkingParent) -> Check:
    def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        command = [forking_parent.python, "-m", "turnaround", "check", *arguments]
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)

    return run


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`photos` with a leak and an unreadable image, `clean` with neither; one class has a name to be afraid of."""
    place = tmp_path_factory.mktemp("check")
    for folder in ("photos", "clean"):
        for number in range(50):
            name = "plain" if number % 2 else "<img src=x onerror=alert(1)>"
            target = place / folder / ("val" if number >= 46 else "train") / name / f"{number}.png"
            target.parent.mkdir(parents=True, exist_ok=True)
            picture(number).save(target)
    picture(1).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(place / "photos" / "val" / "plain" / "mirrored.jpg")
    (place / "photos" / "train" / "plain" / "broken.png").write_bytes(b"nothing")
    return place


def test_json_and_split_file(place: Path, check: Check) -> None:
    done = check("photos", "--json", "--split-by-photo", "split.json", cwd=place)
    assert (done.returncode, done.stderr) == (1, "")
    payload = json.loads(done.stdout)
    assert [set(one["files"]) for one in payload["groups"]] == [{"train/plain/1.png", "val/plain/mirrored.jpg"}]
    assert payload["groups"][0]["kind"] == "augmented"
    assert [one["file"] for one in payload["bad"]] == ["train/plain/broken.png"]
    assert payload["classes"]["plain"] == {"train": 23, "validation": 3, "bad": 1}
    assert isinstance(payload["warnings"], list)
    parts = json.loads((place / "split.json").read_text())["files"]
    assert parts["train/plain/1.png"] == parts["val/plain/mirrored.jpg"]
    assert payload["split_file"]["num_validation"] == sum(part == "validation" for part in parts.values()) > 0


def test_text_tells_the_worst_first_and_what_to_do(place: Path, check: Check) -> None:
    done = check("photos", cwd=place)
    assert done.returncode == 1
    text = " ".join(done.stdout.split())
    assert "problem: 1 of 5 validation images (20.0 %) show a photo that is also trained on" in text
    assert "train/plain/1.png = val/plain/mirrored.jpg: mirrored" in text
    assert "turnaround check photos --split-by-photo split.json, then train with" in text
    assert "problem: 1 image cannot be read. train/plain/broken.png" in text
    assert text.index("also trained on") < text.index("cannot be read") < text.index("caution")


def test_a_split_that_was_written_is_what_comes_next(place: Path, check: Check) -> None:
    text = " ".join(check("photos", "--split-by-photo", "split.json", cwd=place).stdout.split())
    assert "Next: Train with the split that was written" in text
    assert "Next: turnaround train photos --set data.split_by_photo=split.json" in text
    assert "Next: turnaround check" not in text


def test_nothing_serious_is_exit_code_0(place: Path, check: Check) -> None:
    done = check("clean", cwd=place)
    assert done.returncode == 0, done.stdout
    assert "Nothing serious was found." in done.stdout


def test_the_page_stands_alone_and_escapes_names(place: Path, check: Check) -> None:
    done = check("photos", "--page", "check.html", cwd=place)
    assert done.returncode == 1
    assert "page: check.html" in done.stderr
    page = (place / "check.html").read_text()
    assert page.count("data:image/jpeg;base64,") >= 2
    assert "val/plain/mirrored.jpg" in page
    assert "<img src=x" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert re.findall(r"(?:src|href)='(?!data:)", page) == []
    assert "<script" not in page


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nosuch"], ["There is no folder 'nosuch'"]),
        (["photos", "--holdout", "2"], ["--holdout must be between 0 and 1", "Received: 2"]),
        (
            ["photos", "--page", "no/such/x.html"],
            ["Cannot write 'no/such/x.html': there is no folder 'no/such'", "Make it first"],
        ),
        (["photos", "--split-by-photo", "clean"], ["Cannot write 'clean'", "is a folder"]),
        (["photos", "--page", "page.txt"], ["Cannot write the page 'page.txt': a page is html", "Give 'page.html'"]),
        (["photos", "--page", "/proc/x.html"], ["Cannot write '/proc/x.html'", "Choose another place"]),
    ],
)
def test_bad_input(arguments: list[str], words: list[str], place: Path, check: Check) -> None:
    done = check(*arguments, cwd=place)
    assert (done.returncode, done.stdout) == (2, "")
    assert [word for word in words if word not in done.stderr] == []
    assert "Traceback" not in done.stderr
