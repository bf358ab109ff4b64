"""The report of an evaluation: narrow terminals, hostile names, many classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reporting.page.browsing import PHONE_PX, check_access, opened
from turnaround.reporting.evaluate_report import (
    MAX_MATRIX,
    compared,
    evaluation_lines,
    evaluation_page,
    evaluation_payload,
    images_csv,
    shown_mistakes,
)
from turnaround.reporting.pictures import data_uri
from turnaround.training.evaluate import ClassCounts, Counts, final_evaluation
from turnaround.use.evaluate import EvaluatedImage, EvaluatedRun, UnreadableFile

PIXEL = data_uri(np.zeros((1, 1, 3), np.uint8))
EVIL = "<script>alert(1)</script>\x1b[31m\u202e"


def evaluated(num_classes: int = 3, *, name: str = "run", hostile: bool = False, wrong_every: int = 3) -> EvaluatedRun:
    """Two images a class; of one in `wrong_every` the answer is the next class."""
    classes = tuple(f"{EVIL if hostile else 'class'} {number:02}" for number in range(num_classes))
    images, by_class = [], ClassCounts(num_classes, torch.device("cpu"))
    for number in range(2 * num_classes):
        label = number % num_classes
        best = (label + 1) % num_classes if wrong_every and number % wrong_every == 0 else label
        logits = torch.zeros(1, num_classes)
        logits[0, best], logits[0, label] = 2.0, max(1.0, float(logits[0, label]))
        by_class.add(logits, torch.tensor([label]), predicted=torch.tensor([best]))
        images.append(
            EvaluatedImage(
                file=f"{classes[label]}/{number}.jpg",
                label=classes[label],
                predicted=classes[best],
                confidence=0.5 + number / 1000,
                label_probability=0.2,
                rank=1 + (best != label),
            )
        )
    counts = Counts(
        num_images=len(images),
        loss_sum=1.0,
        num_top1=sum(image.is_right for image in images),
        num_top5=len(images),
        confusion=by_class.confusion,
        num_predicted=by_class.num_predicted,
        calibration=by_class.calibration,
    )
    return EvaluatedRun(
        run=Path(name),
        weights="best",
        which="weights of epoch 3",
        evaluation=final_evaluation(counts, epoch=3, classes=classes),
        images=tuple(images),
        unreadable=(UnreadableFile(file=EVIL, reason="no image"),) if hostile else (),
        notes=(EVIL,) if hostile else (),
    )


@pytest.mark.parametrize("width", [30, 60, 120])
def test_lines_fit_the_terminal_and_obey_nobody(width: int) -> None:
    lines = [line.plain for line in evaluation_lines(evaluated(hostile=True), width=width)]
    assert max(map(len, lines)) <= max(width, 40)
    assert not any("\x1b" in line or "\u202e" in line for line in lines)


def test_the_page_holds_text_only() -> None:
    run = evaluated(hostile=True)
    page = evaluation_page(run, EVIL, {}, (run, compared(run, run)))
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert not {"\x1b", "\u202e"} & set(page)
    assert "default-src 'none'; img-src data:; style-src &#39;sha256-" in page


def test_of_many_classes_the_matrix_has_the_most_confused() -> None:
    run = evaluated(100)
    page = evaluation_page(run, "photos", {})
    assert page.count('scope="row"') <= MAX_MATRIX
    assert "of 100 classes that are confused most" in page
    assert page.count("<tr><td>class ") == 100  # the table of classes has all of them
    text = "\n".join(line.plain for line in evaluation_lines(run, width=80))
    assert "and 40 classes more: --page and --json have all of them" in text


def test_an_evaluation_without_a_mistake() -> None:
    run = evaluated(wrong_every=0)
    page, lines = evaluation_page(run, "photos", {}), [line.plain for line in evaluation_lines(run, width=80)]
    assert "Every image was recognised." in page
    assert lines[0].startswith("100.0 % accuracy: 6 of 6 images")
    assert not any(line.startswith(("Confused", "Surest")) for line in lines)


def test_runs_of_one_name_go_by_their_paths() -> None:
    first, second = evaluated(name="a/fruit"), evaluated(name="b/fruit", wrong_every=2)
    sentence = evaluation_payload(first, "photos", (second, compared(first, second)))["against"]["comparison"][
        "sentence"
    ]
    assert sentence.startswith("a/fruit is right on ")
    assert "that b/fruit gets wrong" in sentence


def test_the_table_has_a_line_for_each_image_of_both() -> None:
    first, second = evaluated(), evaluated(2)
    lines = images_csv(first, second).splitlines()
    assert lines[0].split(",")[:3] == ["file", "label", "predicted"]
    assert len(lines) == 1 + len(first.images)
    assert lines[-1].endswith(",,,,,")  # an image that the other could not read


@pytest.mark.browser
def test_the_page_is_for_everybody_and_its_style_is_allowed(browser: Any, tmp_path: Path) -> None:
    path, run = tmp_path / "page.html", evaluated(40)
    pictures = {image.file: PIXEL for image in shown_mistakes(run)}
    path.write_text(evaluation_page(run, f"/home/somebody/{60 * 'long'}", pictures, (run, compared(run, run))))
    with opened(browser, path, width=PHONE_PX) as page:  # which listens to the console
        # The style came through the content policy: the best cell of a row is the darkest.
        assert page.evaluate("getComputedStyle(document.querySelector('td.right.s8')).color") == "rgb(255, 255, 255)"
        check_access(page, name="evaluate")
