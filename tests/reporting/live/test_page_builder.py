"""The blocks of the live page, made of what lies in a folder."""

from __future__ import annotations

from pathlib import Path

from turnaround.record.folder import FollowedFolder
from turnaround.reporting.live.page_builder import PageBuilder
from turnaround.study.plan import plan
from turnaround.study.state import agree_with_before


def overview(folder: Path) -> str:
    def unused(*_: object) -> None:
        raise AssertionError

    [first, *_] = PageBuilder(FollowedFolder(folder), unused, title="t").now().blocks  # type: ignore[arg-type]
    return str(first)


def test_a_study_says_what_is_still_to_come(tmp_path: Path) -> None:
    assert "Still to come" not in overview(tmp_path)
    agree_with_before(tmp_path, {"source": "<b>"}, plan(workers=[1, 2], rehearse=[8], seeds=range(6), devices=2))
    shown = overview(tmp_path)
    assert "Still to come in this study: 1 worker, seed 0; 2 workers, seed 0; 8 workers rehearsed, seed 0;" in shown
    assert ", and 6 more." in shown
