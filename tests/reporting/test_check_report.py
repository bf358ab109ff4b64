"""The report of a check: which files of a group are shown, and that long paths fit a phone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reporting.page.browsing import PHONE_PX, check_access, opened
from turnaround.reporting.check_report import MAX_FILES, check_page, shown_files


def group(*, train: int, validation: int) -> dict[str, Any]:
    files = [f"train/a/{n}.png" for n in range(train)] + [f"val/a/{n}.png" for n in range(validation)]
    return {
        "kind": "near",
        "files": files,
        "parts": ["train"] * train + ["validation"] * validation,
        "classes": ["a"],
        "crosses_split": bool(train and validation),
        "links": [{"files": [files[0], files[-1]], "kind": "near", "change": ""}],
    }


@pytest.mark.parametrize(
    ("train", "validation", "shown"),
    [(30, 1, (11, 1)), (30, 30, (6, 6)), (2, 30, (2, 10)), (30, 0, (12, 0)), (1, 1, (1, 1)), (0, 20, (0, 12))],
)
def test_a_group_that_leaks_shows_both_sides(train: int, validation: int, shown: tuple[int, int]) -> None:
    parts = [part for _, part in shown_files(group(train=train, validation=validation))]
    assert (parts.count("train"), parts.count("validation")) == shown
    assert len(parts) <= MAX_FILES


@pytest.mark.browser
def test_long_paths_fit_a_phone(browser: Any, tmp_path: Path) -> None:
    name = "a-folder-with-a-very-long-name_and_no_space_at_all" * 3
    one = group(train=2, validation=2)
    one["files"] = [f"{name}/{file}" for file in one["files"]]
    payload = {
        "folder": f"/home/somebody/{name}",
        "split": "holdout 0.2",
        "num_train": 2,
        "num_validation": 2,
        "leaks": {"num": 2, "of": 2, "by_kind": {"near": 2}},
        "groups": [one],
        "bad": [{"file": f"{name}/x.jpg", "reason": f"no {name}"}],
        "odd": [{"what": "palette", "becomes": "converted to RGB", "files": [f"{name}/p.png"]}],
        "classes": {name: {"train": 2, "validation": 2, "bad": 0}},
        "warnings": [f"Only {name}."],
    }
    page = tmp_path / "check.html"
    page.write_text(check_page(payload, {}, most_groups=5))
    with opened(browser, page, width=PHONE_PX) as shown:
        check_access(shown, name="check")
